"""Breakers for operators: their states, and forcing a state for a time."""

from __future__ import annotations

import datetime
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches

from django.db import router, transaction
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...engine.decide import now_us
from ...exceptions import StoreError
from ...limits.rate import SECOND
from ...operations.formatting import moment_words
from ...rules.places import look_for_call_sites
from ...store import Patience, get_store
from ...web.durations import duration_words
from .circuit import circuit_key
from .circuits import circuits, noted
from .models import RateLimitBreaker
from .rows import BreakerError, Thresholds, thresholds

PATIENCE = 2.0
"""Maximum time for all commands to Redis for one page, in seconds."""
WORDS = {
    None: gettext_lazy("its own state is unknown, because Redis is unavailable"),
    "closed": gettext_lazy("closed"),
    "open": gettext_lazy("open since %(since)s, next probe in %(time)s"),
    "half-open": gettext_lazy(
        "half-open since %(since)s, %(probes)s of %(most)s trial calls running"
    ),
}


@dataclass(frozen=True, slots=True)
class BreakerState:
    """A breaker with its current state.

    Attributes:
        by: Its thresholds.
        state: closed, open or half-open; None if Redis does not reply.
        since: When the state began, unless it is closed.
        seconds: Seconds until the state changes, or until the next probe.
        calls: The number of calls in the window.
        failures: The number of failed calls among them.
        slow: The number of slow calls among them.
        probes: The number of running probes.
        why: The reason of the last opening.
        opened: The numbers of calls, failures and slow calls at the last opening.
    """

    name: str
    by: Thresholds
    row: RateLimitBreaker | None
    state: str | None = None
    since: datetime.datetime | None = None
    seconds: float = 0.0
    calls: int = 0
    failures: int = 0
    slow: int = 0
    probes: int = 0
    why: str = ""
    opened: tuple[int, ...] = ()

    @property
    def forced(self) -> str:
        """Return the forced state, or an empty string."""
        if self.row is not None and self.row.is_forced():
            return self.row.forced
        return ""

    @property
    def words(self) -> str:
        """Return the breaker's own state in words."""
        text = str(WORDS[self.state])
        if self.state == "open" and not self.seconds:
            text = _("open since %(since)s, the next call is a probe")
        return text % {
            "since": self.since and moment_words(self.since),
            "time": duration_words(self.seconds),
            "probes": self.probes,
            "most": self.by.probes,
        }

    @property
    def forced_words(self) -> str:
        """Return the forced state in words, or an empty string."""
        if self.row is None or not self.forced:
            return ""
        until = _("until it is set to automatic")
        if self.row.until is not None:
            until = _("until %s") % moment_words(self.row.until)
        text = _("forced closed %s")
        if self.forced == "open":
            text = _("forced open %s")
        return text % until

    @property
    def lines(self) -> list[str]:
        """Return the state in force in words, and then the breaker's own if another is forced."""
        if not self.forced:
            return [self.words]
        if self.state is None:
            return [self.forced_words, self.words]
        return [self.forced_words, _("its own state: %s") % self.words]

    @property
    def in_force(self) -> str | None:
        """Return the forced state, or else the breaker's own; None if it is unknown."""
        return self.forced or self.state


def breakers(only: Collection[str] | None = None) -> list[BreakerState]:
    """Return all breakers, by name: those in the code of any process, and those with rows.

    Args:
        only: The names of the breakers to return. Default: all.
    """
    rows = {row.name: row for row in RateLimitBreaker.objects.all()}
    patience = Patience(PATIENCE)
    declared = in_code(patience)
    return [
        _state(name, rows.get(name), declared.get(name, Thresholds()), patience)
        for name in sorted({*rows, *declared})
        if only is None or name in only
    ]


def breaker(name: str) -> BreakerState | None:
    """Return the breaker of a name, or None."""
    return next(iter(breakers([name])), None)


def meant_by(name: str, names: Collection[str]) -> str:
    """Return the closest match for an unknown name, or an empty string."""
    return next(iter(get_close_matches(name, names, n=1, cutoff=0.6)), "")


def in_code(patience: Patience | None = None) -> dict[str, Thresholds]:
    """Return the thresholds that this process and others have declared, by name."""
    look_for_call_sites()
    found: dict[str, Thresholds] = {}
    with suppress(StoreError):
        for name, declared in noted(patience or Patience(PATIENCE)).items():
            found[name] = thresholds(name, declared)
    return found | {name: circuit.declared for name, circuit in circuits.by_name.items()}


def _state(
    name: str, row: RateLimitBreaker | None, by: Thresholds, patience: Patience
) -> BreakerState:
    if row is not None:
        with suppress(BreakerError):  # The row contradicts the code, so processes ignore it.
            by = thresholds(name, row.thresholds(), by)
    key = circuit_key(name)
    store = get_store(background=True)
    try:
        reply = store.execute(b"HGETALL", key, patience=patience)
        texts = [text.decode() for text in reply]
        kept = dict(zip(texts[::2], texts[1::2], strict=True))
        now = now_us() + int(kept.get("shift", 0))
        probes = store.execute(
            b"ZCOUNT", key + b":probes", b"(%d" % now, b"+inf", patience=patience
        )
    except StoreError:
        return BreakerState(name, by, row)
    counts = [0, 0, 0]
    for field, text in kept.items():
        if field.startswith("b"):
            last, *numbers = map(int, text.split())
            if last > now - by.window_us:
                counts = [sum(pair) for pair in zip(counts, numbers, strict=True)]
    since = datetime.timedelta(microseconds=now - int(kept.get("since", 0)))
    return BreakerState(
        name,
        by,
        row,
        state=kept.get("state", "closed"),
        since=timezone.now() - since,
        seconds=max(0, int(kept.get("until", 0)) - now) / SECOND,
        calls=counts[0],
        failures=counts[1],
        slow=counts[2],
        probes=probes,
        why=kept.get("why", ""),
        opened=tuple(map(int, kept.get("opened", "").split())),
    )


def force(
    name: str, how: str, *, until: datetime.datetime | None = None, why: str = ""
) -> RateLimitBreaker:
    """Force the state of a breaker in all processes, and record that in the history.

    Args:
        name: The name of the breaker.
        how: "open", "closed", or empty to end a forced state.
        until: The end, or None.
        why: The reason, for the history.

    Returns:
        The row of the breaker.

    Raises:
        ValidationError: An argument is invalid.
    """
    with transaction.atomic(router.db_for_write(RateLimitBreaker)):
        row = RateLimitBreaker.objects.filter(name=name).first() or RateLimitBreaker(name=name)
        row.forced = how
        row.until = until
        row.why = why
        row.full_clean(validate_unique=False)
        row.save()
    return row
