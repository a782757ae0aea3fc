"""Breakers for operators: which there are, how each of them is, and forcing one until a time."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from django.core.exceptions import ValidationError
from django.db import router, transaction
from django.utils import timezone

from ...exceptions import StoreError
from ...limits.rate import SECOND
from ...rules.places import look_for_call_sites
from ...store import Patience, get_store
from .circuit import SHARES, circuit_key, circuits_key
from .circuits import WORDS, circuits
from .models import RateLimitBreaker
from .rows import BreakerError, Thresholds, thresholds

PATIENCE = 2.0
"""Seconds for which all that is asked of Redis for one page may take."""
_BUCKET = re.compile(rb"([0-9]+) ([0-9]+) ([0-9]+) ([0-9]+)")


@dataclass(frozen=True, slots=True)
class BreakerState:
    """A breaker as it is now: its name, its places in the code, its thresholds, and its row (None: there is none).

    `state`: closed, open, half-open or ramp; None if Redis does not answer. `since`: when that began (None: it has
    always been closed, or for long); `seconds`: until it changes, or may be probed; `share`: percentage of admitted
    calls; `calls`, `failures` and `slow`: in the window; `probes`: running ones; `why`: of the last opening, and
    `opened`: its calls, failures and slow ones.
    """

    name: str
    places: tuple[str, ...]
    by: Thresholds
    row: RateLimitBreaker | None
    state: str | None = None
    since: datetime.datetime | None = None
    seconds: float = 0.0
    share: int = 100
    calls: int = 0
    failures: int = 0
    slow: int = 0
    probes: int = 0
    why: str = ""
    opened: tuple[int, ...] = ()

    @property
    def forced(self) -> str:
        """The forced state; empty: none."""
        return self.row.forced if self.row is not None and self.row.is_forced() else ""


def breakers(only: Collection[str] | None = None) -> list[BreakerState]:
    """All breakers: those of the code, as far as this process or any other has them, and those of rows; or `only`
    those of these names."""
    look_for_call_sites()
    rows = {row.name: row for row in RateLimitBreaker.objects.all()}
    noted, now, patience = {}, 0, Patience(PATIENCE)
    try:
        noted = _noted(patience)
        seconds, microseconds = get_store(background=True).execute(b"TIME", patience=patience)
        now = int(seconds) * SECOND + int(microseconds)
    except (StoreError, IndexError):  # A cluster has no clock of its own; each key's node has.
        now = round(timezone.now().timestamp() * SECOND)
    names = sorted(name for name in {*rows, *noted, *circuits.by_name} if only is None or name in only)
    return [_state(name, rows.get(name), noted.get(name, {}), now, patience) for name in names]


def breaker(name: str) -> BreakerState | None:
    """The breaker of that name, or None."""
    return next(iter(breakers([name])), None)


def meant_by(name: str, names: Collection[str] | None = None) -> str:
    """The closest match for an unknown name; empty if there is none. `names`: the existing names, if they are not to be
    looked up."""
    there = [state.name for state in breakers()] if names is None else names
    return next(iter(get_close_matches(name, there, n=1, cutoff=0.6)), "")


def in_code() -> dict[str, Thresholds]:
    """The declarations of breakers, by name: those of this process, and those that others have recorded in Redis."""
    look_for_call_sites()
    noted: Mapping[str, Mapping[str, Any]] = {}
    with suppress(StoreError):
        noted = _noted(Patience(PATIENCE))
    return {name: _in_code(name, noted.get(name, {})) for name in sorted({*noted, *circuits.by_name})}


def _in_code(name: str, noted: Mapping[str, Any]) -> Thresholds:
    own = circuits.by_name.get(name)
    try:
        return own.declared if own is not None else thresholds(name, _without_nothing(noted.get("declared", {})))
    except (BreakerError, AttributeError, TypeError):  # The value was edited by hand.
        return Thresholds()


def _noted(patience: Patience) -> dict[str, Mapping[str, Any]]:
    """What processes have noted of their breakers, by name."""
    found: dict[str, Mapping[str, Any]] = {}
    reply = get_store(background=True).execute(b"HGETALL", circuits_key(), patience=patience)
    for name, text in zip(reply[::2], reply[1::2], strict=True):
        try:
            noted = json.loads(text)
        except ValueError:
            continue
        if isinstance(noted, dict):
            found[name.decode(errors="replace")] = noted
    return found


def _state(
    name: str, row: RateLimitBreaker | None, noted: Mapping[str, Any], now: int, patience: Patience
) -> BreakerState:
    own = circuits.by_name.get(name)
    by, places = _in_code(name, noted), [str(place) for place in noted.get("places", ())]
    with suppress(BreakerError):  # The value was edited by hand.
        by = by if row is None else thresholds(name, row.thresholds(), by)
    known = BreakerState(name, tuple(dict.fromkeys([*(own.places if own else ()), *places])), by, row)
    try:
        key, store = circuit_key(name), get_store(background=True)
        kept = _pairs(store.execute(b"HGETALL", key, patience=patience))
        shift = int(kept.get(b"shift", 0))
        probes = store.execute(b"ZCOUNT", key + b":probes", b"%d" % (now + shift), b"+inf", patience=patience)
    except (StoreError, ValueError):
        return known
    return _with_numbers(known, kept, now + shift, probes)


def _without_nothing(declared: Mapping[str, Any]) -> dict[str, Any]:
    given = dict(declared)
    if given.get("slow") is None:
        given.pop("slow_ratio", None)
    return given


def _pairs(reply: Any) -> dict[bytes, bytes]:
    return dict(zip(reply[::2], reply[1::2], strict=True))


def _with_numbers(known: BreakerState, kept: Mapping[bytes, bytes], now: int, probes: int) -> BreakerState:
    def number(name: bytes) -> int:
        text = kept.get(name, b"0")
        return int(text) if text.isdigit() else 0

    state = kept.get(b"state", b"closed").decode(errors="replace")
    step = min(max(number(b"step"), 1), len(SHARES))
    calls = failures = slow = 0
    for name, text in kept.items():
        match = _BUCKET.fullmatch(text) if name.startswith(b"b") else None
        if match and int(match[1]) > now - known.by.window_us:
            calls, failures, slow = calls + int(match[2]), failures + int(match[3]), slow + int(match[4])
    words = {str(state): word for state, word in WORDS.items()}
    return replace(
        known,
        state=words.get(state, "closed"),
        since=None if state == "closed" else timezone.now() - datetime.timedelta(microseconds=now - number(b"since")),
        seconds=max(0, number(b"until") - now) / SECOND if state in ("open", "ramp") else 0.0,
        share={"open": 0, "half": 0, "ramp": SHARES[step - 1]}.get(state, 100),
        calls=calls, failures=failures, slow=slow, probes=int(probes),
        why=kept.get(b"why", b"").decode(errors="replace"),
        opened=tuple(int(part) for part in kept.get(b"opened", b"").split() if part.isdigit()),
    )  # fmt: skip


def force(name: str, how: str, *, until: datetime.datetime | None = None, why: str = "") -> RateLimitBreaker:
    """Force a breaker "open" or "closed" until a moment (None: until it is taken back).

    If `how` is empty, the breaker uses its own state again. Recorded in the history, and live everywhere at once.
    Raises `ValidationError`.
    """
    with transaction.atomic(router.db_for_write(RateLimitBreaker)):
        row = RateLimitBreaker.objects.filter(name=name).first() or RateLimitBreaker(name=name)
        if until is not None and until <= timezone.now():
            raise ValidationError("the end has to be in the future")
        row.forced, row.until, row.why = how, until, why
        row.full_clean(validate_unique=False)
        row.force(how, until, why)
    return row
