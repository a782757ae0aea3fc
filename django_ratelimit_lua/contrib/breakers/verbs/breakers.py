"""`breakers`: list the breakers, and force the state of one for a time."""

from __future__ import annotations

import datetime
from typing import Any

from django.core.management.base import CommandError
from django.utils import timezone

from ....management.arguments import add_length, seconds_of
from ....management.verbs import Argument, Printer, argument, verb
from ....operations.formatting import count_words
from ..operations import BreakerState, breakers, force, meant_by


@verb("breakers list", "list the circuit breakers: state, calls, failures and slow calls")
def list_breakers(command: Printer, options: dict[str, object]) -> None:
    """Print the breakers."""
    for state in breakers():
        command.say(_line(state))


def _declare_force(action: str, forced: str, text: str, *arguments: Argument) -> None:
    name = argument("name", help="the name of the breaker")
    why = argument("--reason", default="", help="the reason, stored in the history")

    @verb(f"breakers {action}", text, name, *arguments, why)
    def run(command: Printer, options: dict[str, Any]) -> None:
        name = options["name"]
        names = [state.name for state in breakers()]
        if name not in names:
            problem = f"there is no breaker {name!r}"
            if meant := meant_by(name, names):
                problem += f"; did you mean {meant!r}?"
            raise CommandError(problem)
        until = None
        if forced and not options["for_good"]:
            seconds = seconds_of("--for", options["period"], "; or use --for-good")
            until = timezone.now() + datetime.timedelta(seconds=seconds)
        force(name, forced, until=until, why=options["reason"])
        for state in breakers([name]):
            command.say(_line(state))
        command.warn_if_unpublished()


_LENGTH = add_length()
_declare_force("open", "open", "stop all calls, whatever the state", _LENGTH)
_declare_force("close", "closed", "allow all calls, whatever the state", _LENGTH)
_declare_force("auto", "", "remove the forced state")


def _line(state: BreakerState) -> str:
    in_force, *own = state.lines
    if state.forced and state.row is not None and state.row.why:
        in_force += f" ({state.row.why})"
    words = [f"{state.name}: {in_force}", *own]
    if state.state is not None:
        calls = count_words(state.calls, "call")
        failures = count_words(state.failures, "failure")
        words.append(f"{calls}, {failures}, {state.slow} slow")
    return "; ".join(words)
