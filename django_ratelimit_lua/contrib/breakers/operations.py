"""Breakers for operators: which there are, how each of them is, and forcing one until a time."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from django.core.exceptions import ValidationError
from django.db import router, transaction
from django.utils import timezone

from ...engine.decide import now_us
from ...exceptions import StoreError
from ...limits.rate import SECOND
from ...rules.places import look_for_call_sites
from ...store import Patience, get_store
from .circuit import SHARES, circuit_key
from .circuits import WORDS, circuits, noted
from .models import RateLimitBreaker
from .rows import BreakerError, Thresholds, thresholds

PATIENCE = 2.0
"""Seconds for which all that is asked of Redis for one page may take."""


@dataclass(frozen=True, slots=True)
class BreakerState:
    """A breaker as it is now: its name, its thresholds, and its row, or None.

    `state`: closed, open, half-open or ramp; None if Redis does not answer. `since`: when that
    began (None: it has always been closed, or for long); `seconds`: until it changes, or may be
    probed; `share`: percentage of admitted calls; `calls`, `failures` and `slow`: in the window;
    `probes`: running ones; `why`: of the last opening, and `opened`: its calls, failures and slow
    ones.
    """

    name: str
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
    """All breakers: those of the code, as far as this process or any other has them, and those of
    rows; or `only` those of these names.
    """
    rows = {row.name: row for row in RateLimitBreaker.objects.all()}
    patience = Patience(PATIENCE)
    declared = in_code(patience)
    names = sorted(name for name in {*rows, *declared} if only is None or name in only)
    return [
        _state(name, rows.get(name), declared.get(name, Thresholds()), patience) for name in names
    ]


def breaker(name: str) -> BreakerState | None:
    """The breaker of that name, or None."""
    return next(iter(breakers([name])), None)


def meant_by(name: str, names: Collection[str] | None = None) -> str:
    """The closest match for an unknown name; or an empty text.

    `names`: the existing names, if they are not to be looked up.
    """
    there = [state.name for state in breakers()] if names is None else names
    return next(iter(get_close_matches(name, there, n=1, cutoff=0.6)), "")


def in_code(patience: Patience | None = None) -> dict[str, Thresholds]:
    """The declarations of breakers, by name: those of this process, and those that others have
    noted in Redis.
    """
    look_for_call_sites()
    found: dict[str, Thresholds] = {}
    with suppress(StoreError):
        for name, declared in noted(patience or Patience(PATIENCE)).items():
            found[name] = thresholds(name, declared)
    return found | {name: circuit.declared for name, circuit in circuits.by_name.items()}


def _state(
    name: str, row: RateLimitBreaker | None, by: Thresholds, patience: Patience
) -> BreakerState:
    with suppress(BreakerError):  # The row contradicts the code, so processes ignore it.
        by = by if row is None else thresholds(name, row.thresholds(), by)
    known = BreakerState(name, by, row)
    try:
        key, store = circuit_key(name), get_store(background=True)
        reply = store.execute(b"HGETALL", key, patience=patience)
        probes = store.execute(
            b"ZRANGE", key + b":probes", b"0", b"-1", b"WITHSCORES", patience=patience
        )
    except StoreError:
        return known
    return _with_numbers(known, _pairs(reply), _pairs(probes))


def _pairs(reply: Any) -> dict[bytes, bytes]:
    return dict(zip(reply[::2], reply[1::2], strict=True))


def _with_numbers(
    known: BreakerState, kept: Mapping[bytes, bytes], probes: Mapping[bytes, bytes]
) -> BreakerState:
    def number(name: bytes) -> int:
        return int(kept.get(name, 0))

    now = now_us() + number(b"shift")
    state = kept.get(b"state", b"closed").decode()
    buckets = [
        [int(part) for part in text.split()] for name, text in kept.items() if name.startswith(b"b")
    ]
    counts = [bucket[1:] for bucket in buckets if bucket[0] > now - known.by.window_us]
    calls, failures, slow = (sum(column) for column in zip((0, 0, 0), *counts, strict=True))
    words = {str(state): word for state, word in WORDS.items()}
    return replace(
        known,
        state=words[state],
        since=None
        if state == "closed"
        else timezone.now() - datetime.timedelta(microseconds=now - number(b"since")),
        seconds=max(0, number(b"until") - now) / SECOND if state in ("open", "ramp") else 0.0,
        share={"open": 0, "half": 0, "ramp": SHARES[number(b"step") - 1]}.get(state, 100),
        calls=calls,
        failures=failures,
        slow=slow,
        probes=sum(int(ends) > now for ends in probes.values()),
        why=kept.get(b"why", b"").decode(),
        opened=tuple(int(part) for part in kept.get(b"opened", b"").split()),
    )


def force(
    name: str, how: str, *, until: datetime.datetime | None = None, why: str = ""
) -> RateLimitBreaker:
    """Force a breaker "open" or "closed" until a moment (None: until it is taken back).

    If `how` is empty, the breaker uses its own state again. Recorded in the history, and live
    everywhere at once. Raises `ValidationError`.
    """
    with transaction.atomic(router.db_for_write(RateLimitBreaker)):
        row = RateLimitBreaker.objects.filter(name=name).first() or RateLimitBreaker(name=name)
        if until is not None and until <= timezone.now():
            raise ValidationError("the end has to be in the future")
        row.forced, row.until, row.why = how, until, why
        row.full_clean(validate_unique=False)
        row.save()
    return row
