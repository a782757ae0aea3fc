"""`breakers`: how the breakers are, and forcing one until a time."""

from __future__ import annotations

import datetime
from typing import Any

from django.core.management.base import CommandError
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from ....management.arguments import add_length, format_moment, seconds_of
from ....management.verbs import Argument, Printer, argument, verb
from ..operations import BreakerState, breaker, breakers, force, meant_by


@verb("breakers list", "the circuit breakers, their states and numbers")
def list_breakers(command: Printer, options: dict[str, Any]) -> None:
    for each in breakers():
        command.say(line(each))


def _declare_force(action: str, forced: str, text: str, *arguments: Argument) -> None:
    name = argument("name", help="of the breaker")

    @verb(f"breakers {action}", text, name, *arguments, argument("--why", default="", help="kept in the history"))
    def run(command: Printer, options: dict[str, Any]) -> None:
        name = options["name"]
        if breaker(name) is None:
            meant = meant_by(name)
            raise CommandError(f"no breaker {name!r} is known" + (f"; do you mean {meant!r}?" if meant else ""))
        force(name, forced, until=_until(options) if forced else None, why=options["why"])
        state = breaker(name)
        assert state is not None
        command.say(line(state))
        command.warn_if_unpublished()


_UNTIL = add_length(until=True)
_declare_force("open", "open", "ask the resource no more", _UNTIL)
_declare_force("close", "closed", "ask it whatever happens", _UNTIL)
_declare_force("auto", "", "go by its own state again")


def _until(options: dict[str, Any]) -> datetime.datetime | None:
    if options["for_good"]:
        return None
    if options["until"] is None:
        seconds = seconds_of("--for", options["period"], "; or --for-good")
        return timezone.now() + datetime.timedelta(seconds=seconds)
    try:
        moment = parse_datetime(options["until"])
    except ValueError:
        moment = None
    if moment is None:
        raise CommandError(f"--until {options['until']!r}: write a moment such as 2026-11-23T12:00")
    is_naive = timezone.is_naive(moment)
    if is_naive == timezone.is_naive(timezone.now()):
        return moment
    return timezone.make_aware(moment) if is_naive else timezone.make_naive(moment)


def line(state: BreakerState) -> str:
    """A breaker in one line."""
    words = [f"{state.name}: {state.state or 'not known, as Redis does not answer'}"]
    if state.state == "ramp":
        words.append(f"{state.share} % are let through")
    if state.seconds:
        words.append(f"changes in {state.seconds:.0f} s")
    if state.state is not None:
        words.append(f"{state.calls} calls, {state.failures} failures, {state.slow} slow")
    row = state.row
    if row is not None and state.forced:
        until = "until it is taken back" if row.until is None else f"until {format_moment(row.until)}"
        words.append(f"forced: {row.forced} {until}" + (f" ({row.why})" if row.why else ""))
    return "; ".join(words)
