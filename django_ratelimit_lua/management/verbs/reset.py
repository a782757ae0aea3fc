"""`reset`: delete the counts of the client that sends a request."""

from __future__ import annotations

from django.core.management.base import CommandError

from ...exceptions import StoreError
from ...operations.explain import explain, reset
from ..arguments import add_request, described, verdict
from . import Printer, VerbOptions, argument, verb


@verb(
    "reset",
    "reset the counts of a request like the one described, and show the limits of the next one",
    add_request,
    argument("--limit", action="append", metavar="NAME", help="only this limit; may be repeated"),
)
def _reset(command: Printer, options: VerbOptions) -> None:
    explanation = explain(described(options))
    names = {limit.name: None for limit in explanation.met}
    wanted = options["limit"] or names
    unknown = ", ".join(repr(name) for name in sorted(wanted) if name not in names)
    if unknown:
        raise CommandError(
            f"the limit {unknown} does not apply to this request; limits that apply: "
            f"{', '.join(names) or 'none'}"
        )
    try:
        done = reset(explanation, set(wanted))
    except StoreError as error:
        raise CommandError(f"nothing was reset: {error}") from error
    for name in done:
        command.say(f"reset: {name}")
    if not names:
        command.say("Nothing was reset: no limit applies to this request.")
    elif not done:
        command.say(f"Nothing was reset: this request has no count under {', '.join(wanted)}.")
    command.say(verdict(explain(described(options))))
