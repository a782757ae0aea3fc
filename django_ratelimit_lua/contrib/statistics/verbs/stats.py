"""`stats`: what was counted in the last day."""

from __future__ import annotations

import json
from typing import Any

from ....identity.names import name_words
from ....management.verbs import Printer, argument, verb
from ..keys import SITE
from ..reading import Span, dropped, known_names, people_refused, total
from ..results import BANNED, BLOCKED, EXEMPT, FAILED, POLICY

_TITLE = "last 24 hours"
_SHOWN = ("allowed", "refused", "shadow", "blocked", "exempt", "policy", "failed")


@verb(
    "stats show", "what was counted in the last 24 hours, by rule and call site",
    argument("--json", action="store_true", help="for machines"),
)  # fmt: skip
def show(command: Printer, options: dict[str, Any]) -> None:
    span = Span.last(86_400, 3600)
    rows = [_row(name, span) for name in (*sorted(known_names()), SITE)]
    if options["json"]:
        command.say(json.dumps({"rules": rows[:-1], "all": rows[-1], "dropped": dropped(2)}, indent=2))
        return
    if len(rows) == 1:
        command.say("nothing was counted yet")
        return
    names = [*(name_words(row["name"]) for row in rows[:-1]), "all requests"]
    width = max(len(name) for name in (*names, _TITLE))
    command.say(f"{_TITLE:{width}}" + "".join(f"{word:>12}" for word in (*_SHOWN, "people")))
    for name, row in zip(names, rows, strict=True):
        numbers = "".join(f"{row[word]:>12,}" for word in (*_SHOWN, "people_refused"))
        command.say(f"{name:{width}}{numbers}")
    lost = dropped(2)  # They are counted by days of UTC.
    if lost:
        command.warn(f"{lost:,} counts of yesterday and today (UTC) could not be written, and are missing")


def _row(name: str, span: Span) -> dict[str, Any]:
    of = total(name, span)
    return {
        "name": name,
        "allowed": of.allowed,
        "refused": of.refused,
        "banned": of.counts[BANNED],
        "shadow": of.would_be_refused,
        "blocked": of.counts[BLOCKED],
        "exempt": of.counts[EXEMPT],
        "policy": of.counts[POLICY],
        "failed": of.counts[FAILED],
        "units": of.units,
        "near": of.near,
        "people_refused": people_refused(name, span) if name else 0,
    }
