"""`breakers`: list the breakers, and force the state of one for a time."""

from __future__ import annotations

import datetime
from typing import Any

from django.core.management.base import CommandError
from django.utils import timezone

from ....management.arguments import add_length, seconds_of
from ....management.verbs import Argument, Printer, argument, verb
from ..operations import BreakerState, breaker, breakers, force, meant_by


@verb("breakers list", "the circuit breakers, their states and numbers")
def list_breakers(command: Printer, options: dict[str, Any]) -> None:
    """Print the breakers."""
    for state in breakers():
        command.say(_line(state))


def _declare_force(action: str, forced: str, text: str, *arguments: Argument) -> None:
    name = argument("name", help="of the breaker")
    why = argument("--why", default="", help="kept in the history")

    @verb(f"breakers {action}", text, name, *arguments, why)
    def run(command: Printer, options: dict[str, Any]) -> None:
        name = options["name"]
        names = [state.name for state in breakers()]
        if name not in names:
            problem = f"no breaker {name!r} is known"
            if meant := meant_by(name, names):
                problem += f"; do you mean {meant!r}?"
            raise CommandError(problem)
        until = None
        if forced and not options["for_good"]:
            seconds = seconds_of("--for", options["period"], "; or --for-good")
            until = timezone.now() + datetime.timedelta(seconds=seconds)
        force(name, forced, until=until, why=options["why"])
        state = breaker(name)
        assert state is not None
        command.say(_line(state))
        command.warn_if_unpublished()


_LENGTH = add_length()
_declare_force("open", "open", "ask the resource no more", _LENGTH)
_declare_force("close", "closed", "ask it whatever happens", _LENGTH)
_declare_force("auto", "", "go by its own state again")


def _line(state: BreakerState) -> str:
    words = [f"{state.name}: {state.words}"]
    if state.state is not None:
        words.append(f"{state.calls} calls, {state.failures} failures, {state.slow} slow")
    if state.forced:
        words.append(state.forced_words)
        if state.row is not None and state.row.why:
            words[-1] += f" ({state.row.why})"
    return "; ".join(words)
