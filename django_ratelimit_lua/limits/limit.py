"""A limit: a rate, an algorithm and its options, under a name."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from struct import pack
from typing import Any, Unpack

from . import algorithms
from .algorithms.algorithm import Algorithm, Numbers, Terms
from .ban import BanTerms
from .options import OPTIONS, Options, read_options
from .rate import PERIODS, SECOND, LimitError, Rate
from .values import gettext_noop as _

_MAX_ID_LENGTH = 64
_MAX_NAME_LENGTH = 500
_PLAIN = re.compile(r"[\w.,:/+*=-]+", re.ASCII)
TIER = "tier"
"""Begins the variants that are tiers."""
_VARIANT = b"@"
"""Begins the variant in keys. No name contains it there, so no name is that of a variant."""


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Limit(Terms):
    """A rate with a name, and the algorithm that enforces it.

    >>> Limit("search", "100/m", algorithm="token_bucket", burst=20).burst
    20
    >>> Limit("search", "100/m", algorithm="sliding_log", burst=20)
    Traceback (most recent call last):
    ...
    django_ratelimit_lua.limits.rate.LimitError: Limit 'search': sliding_log has no option ...

    It takes a name, a rate (see `Rate.parse`), the options of the table in `limits/options.py`, and
    `counted_as` and `variant` (see `Terms`). All variants share their bans. Raises `LimitError`.

    - `key_part`: the end of the keys of its count;
    - `packed`: its numbers as arguments of the Lua program; empty if they follow the calendar, see
      `packed_at`;
    - `counts_to`: the capacity of its record;
    - `is_hot`: whether this process decides it, as far as it can;
    - `ban`: when and for how long it bans; None if it does not;
    - `text`: everything that is compared, as one text, which is hashed once;
    - `holds`: whether a hit takes slots, which are held until they are released.
    """

    key_part: bytes = field(repr=False)
    packed: bytes = field(repr=False)
    counts_to: int = field(repr=False)
    is_hot: bool = field(repr=False)
    ban: BanTerms | None = field(repr=False)
    text: str = field(repr=False)
    holds: bool = field(repr=False)

    def __init__(
        self,
        name: str,
        rate: Rate | str | tuple[int, float],
        *,
        counted_as: str = "",
        variant: str = "",
        **options: Unpack[Options],
    ) -> None:
        shown_name = _check_name(name)
        count_name = _check_name(counted_as) if counted_as else shown_name
        names = {"name": shown_name, "counted_as": count_name, "variant": variant}
        try:
            parsed = Rate.parse(rate)
            self._set_attributes(names | read_options(options) | {"rate": parsed})
            self._derive_attributes()
        except LimitError as error:
            error.where = f"Limit {shown_name!r}: "
            raise

    def _set_attributes(self, values: Mapping[str, object]) -> None:
        """Set attributes of this frozen object, while it is made."""
        for attribute, value in values.items():
            object.__setattr__(self, attribute, value)

    def _derive_attributes(self) -> None:
        """Set the attributes that follow from the rate and the options, each from those before."""
        kind = self.kind
        if self.rate.is_slots != kind.holds:
            raise wrong_rate(self.rate)
        max_wait_us = round((self.max_wait or 0) * SECOND)
        if kind.waits_anyway and self.max_wait is None:
            max_wait_us = -1
        capacity = kind.capacity(self.rate, {"burst": self.burst, "queue": self.queue})
        self._set_attributes({"max_wait_us": max_wait_us, "capacity": capacity})
        numbers = kind.numbers(self, 0)
        packed = b""
        if self.align not in PERIODS:
            packed = _pack(numbers)
        is_hot = self.lease is not None or self.split
        self._set_attributes({"packed": packed, "counts_to": numbers[0], "is_hot": is_hot})
        self._set_attributes({"holds": kind.holds, **self._derive_keys()})
        self._set_attributes({"text": repr((self, self.ban))})

    def _derive_keys(self) -> Mapping[str, object]:
        """Return the attributes that name the keys of the count and of the bans."""
        key_name = _name_in_keys(self.counted_as)
        ban = BanTerms.of(self, key_name)
        if self.variant:
            key_name += _VARIANT + _name_in_keys(self.variant)
        return {"key_part": key_name + b":" + self.kind.suffix, "ban": ban}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Limit) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    @property
    def kind(self) -> Algorithm:
        """Return the algorithm object of the limit."""
        return algorithms.ALGORITHMS[self.algorithm]

    @property
    def tier(self) -> str:
        """Return the name of the tier that it is of, or an empty string."""
        prefix, _colon, tier = self.variant.partition(":")
        if prefix != TIER:
            return ""
        return tier

    @property
    def lapse(self) -> float:
        """Return the seconds for which units that were taken ahead may be spent."""
        return self.kind.lapse_us(self) / SECOND

    def advising(self) -> Limit:
        """Return the same limit, with the same count, in the mode "advise".

        A limit in shadow mode is returned unchanged.
        """
        if self.mode == "shadow":
            return self
        return self._replace(mode="advise")

    def without_bans(self) -> Limit:
        """Return the same limit, with the same count, without bans."""
        # Cached, because each request of a client that is never banned uses it.
        return _without_bans(self)

    def with_ban(self, terms: BanTerms) -> Limit:
        """Return the same limit with these ban terms."""
        return self._replace(ban=terms)

    def at_rate(self, rate: Rate, burst: int | None, variant: str) -> Limit:
        """Return this limit at another rate, with a count of its own.

        Without a `burst`, this limit's own stays. Raises `LimitError`.
        """
        options: dict[str, Any] = {option: getattr(self, option) for option in OPTIONS}
        if burst is not None:
            options["burst"] = burst
        is_advising = self.mode == "advise"
        if is_advising:
            options["mode"] = "enforce"
        limit = Limit(self.name, rate, counted_as=self.counted_as, variant=variant, **options)
        if is_advising:
            limit = limit.advising()
        return limit._replace(ban=self.ban)

    def renamed(self, name: str) -> Limit:
        """Return the same limit under another name, with its own count."""
        checked = _check_name(name)
        renamed = self._replace(name=checked, counted_as=checked)
        renamed = renamed._replace(**renamed._derive_keys())
        if self.ban is None:  # It may be a limit `without_bans`.
            return renamed.without_bans()
        return renamed

    def _replace(self, **changes: object) -> Limit:
        """Return a copy with other attributes, without deriving any from them but the text."""
        copy = object.__new__(Limit)
        unchanged = {each.name: getattr(self, each.name) for each in fields(self)}
        copy._set_attributes(unchanged | changes)
        copy._set_attributes({"text": repr((copy, copy.ban))})
        return copy

    def numbers(self, now: int) -> Numbers:
        """Return the numbers of its record at a time in microseconds since 1970."""
        return self.kind.numbers(self, now)

    def packed_at(self, now: int) -> bytes:
        """Return the numbers of its record at a time, encoded as little-endian doubles."""
        return _pack(self.numbers(now))


def _pack(numbers: Numbers) -> bytes:
    return pack(f"<{len(numbers)}d", *numbers)


@lru_cache(maxsize=1024)
def _without_bans(limit: Limit) -> Limit:
    return limit._replace(ban=None)


def wrong_rate(rate: Rate) -> LimitError:
    """Return the error for a rate that does not fit the algorithm: slots or no slots."""
    if rate.is_slots:
        text = _(
            "%(limit)d is a number of slots, for the algorithm %(algorithm)s; others need a rate, "
            "such as %(limit)d/m"
        )
    else:
        text = _("%(algorithm)s needs a number of slots, such as %(limit)d, not the rate %(rate)s")
    return LimitError(text, "rate", algorithm=algorithms.OF_SLOTS, limit=rate.limit, rate=str(rate))


def _check_name(name: object) -> str:
    """Return the name in decisions and caches. Raises `LimitError` if it is not text."""
    if not isinstance(name, str) or not name:
        raise LimitError(f"A limit's name must be text, not {name!r}")
    return shortened(name)


def _name_in_keys(name: str) -> bytes:
    """Return a name as it is in keys: unchanged if it is short and of plain characters.

    Otherwise it is the beginning of the name and a digest.
    """
    shown_name = _check_name(name)
    if len(shown_name) <= _MAX_ID_LENGTH and _PLAIN.fullmatch(shown_name):
        return shown_name.encode()
    readable = re.sub(r"[^\w.,:/+*=-]+", "_", shown_name[: _MAX_ID_LENGTH - 25], flags=re.ASCII)
    return f"{readable}~{_digest(shown_name)}".encode()


def shortened(name: str) -> str:
    """Return a name for decisions and caches, shortened to its maximum length.

    >>> shortened("api"), len(shortened("x" * 1000))
    ('api', 500)
    """
    if len(name) <= _MAX_NAME_LENGTH:
        return name
    return name[: _MAX_NAME_LENGTH - 25] + "~" + _digest(name)


def _digest(name: str) -> str:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
