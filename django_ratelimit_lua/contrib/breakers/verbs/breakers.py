"""`breakers`: how the breakers are, and forcing one until a time."""

from __future__ import annotations

import datetime
from typing import Any

from django.core.management.base import CommandError
from django.utils import timezone

from ....management.arguments import add_length, format_moment, seconds_of
from ....management.verbs import Argument, Printer, argument, verb
from ..operations import BreakerState, breaker, breakers, force, meant_by


@verb("breakers list", "the circuit breakers, their states and numbers")
def list_breakers(command: Printer, options: dict[str, Any]) -> None:
    for each in breakers():
        command.say(line(each))


def _declare_force(action: str, forced: str, text: str, *arguments: Argument) -> None:
    name = argument("name", help="of the breaker")

    @verb(
        f"breakers {action}",
        text,
        name,
        *arguments,
        argument("--why", default="", help="kept in the history"),
    )
    def run(command: Printer, options: dict[str, Any]) -> None:
        name = options["name"]
        if breaker(name) is None:
            meant = meant_by(name)
            raise CommandError(
                f"no breaker {name!r} is known" + (f"; do you mean {meant!r}?" if meant else "")
            )
        until = None
        if forced and not options["for_good"]:
            seconds = seconds_of("--for", options["period"], "; or --for-good")
            until = timezone.now() + datetime.timedelta(seconds=seconds)
        force(name, forced, until=until, why=options["why"])
        state = breaker(name)
        assert state is not None
        command.say(line(state))
        command.warn_if_unpublished()


_LENGTH = add_length()
_declare_force("open", "open", "ask the resource no more", _LENGTH)
_declare_force("close", "closed", "ask it whatever happens", _LENGTH)
_declare_force("auto", "", "go by its own state again")


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
        until = (
            "until it is taken back" if row.until is None else f"until {format_moment(row.until)}"
        )
        words.append(f"forced: {row.forced} {until}" + (f" ({row.why})" if row.why else ""))
    return "; ".join(words)
