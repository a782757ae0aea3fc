"""`stats`: print the counts of the last day."""

from __future__ import annotations

import json

from ....identity.names import name_words
from ....management.verbs import Printer, argument, verb
from ..keys import MAX_NAMES
from ..report import Course, Encoder, overview

_TITLE = "last 24 hours"
_COLUMNS = ("allowed", "refused", "would_be_refused", "blocked", "exempt", "policy", "failed")
_HEADS = ("allowed", "refused", "shadow", "blocked", "exempt", "policy", "failed", "people")


@verb(
    "stats show",
    "show the counts of the last 24 hours, by rule and call site",
    argument("--json", action="store_true", help="print the counts as JSON"),
)
def show(command: Printer, options: dict[str, object]) -> None:
    """Print the last day, as a table or as JSON."""
    found = overview("-requests", size=MAX_NAMES + 1)  # And the further names, counted as one.
    rows = [row for row in found.rows if row.requests]
    if options["json"]:
        members = {"rows": rows, "site": found.site, "dropped": found.dropped}
        command.say(json.dumps(members, indent=2, cls=Encoder))
        return
    if not rows:
        command.say("Nothing was counted yet.")
        return
    names = [name_words(row.name) for row in rows]
    width = max(map(len, (*names, "all requests")))
    command.say(f"{_TITLE:{width}}" + "".join(f"{word:>12}" for word in _HEADS))
    for name, row in zip(names, rows, strict=True):
        command.say(f"{name:{width}}{_numbers(row)}{row.people_refused:>12,}")
    command.say(f"{'all requests':{width}}{_numbers(found.site)}")
    if found.dropped:
        command.warn(
            f"{found.dropped:,} counts of the last 7 days could not be written, and are missing"
        )


def _numbers(day: Course) -> str:
    return "".join(f"{getattr(day, attribute):>12,}" for attribute in _COLUMNS)
