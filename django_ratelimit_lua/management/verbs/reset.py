"""`reset`: delete the counts of the client that sends a request."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError

from ...exceptions import StoreError
from ...operations.explain import explain
from ...operations.explain import reset as reset_limits
from ..arguments import add_request, described, hints, verdict
from . import Printer, argument, verb


@verb(
    "reset",
    "reset the counts of a request like the one described, and show the limits of the next one",
    add_request,
    argument("--limit", action="append", metavar="NAME", help="only this limit; may be repeated"),
)
def reset(command: Printer, options: dict[str, Any]) -> None:
    limit = options["limit"]
    explanation = explain(described(options))
    names = [met.name for met in explanation.met]
    if unknown := set(limit or ()) - set(names):
        asked = ", ".join(map(repr, sorted(unknown)))
        raise CommandError(
            f"the limit {asked} does not apply to this request; these apply: "
            f"{', '.join(names) or 'none'}"
        )
    try:
        done = reset_limits(explanation, set(limit) if limit else None)
    except StoreError as error:
        raise CommandError(f"nothing was reset: {error}") from error
    for name in done:
        command.say(f"reset: {name}")
    if not done:
        asked = ", ".join(limit or names)
        why = f"its count under {asked} is empty" if asked else "no limit applies to this request"
        command.say(command.style.WARNING(f"Nothing was reset: {why}."))
    after = explain(described(options))
    for line in hints(after):
        command.say(line)
    command.say(verdict(after))
