"""`bans`: list bans, and end them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime

from django.core.management.base import CommandError

from ...engine.evidence import Offence
from ...identity.names import name_words
from ...limits.rate import SECOND
from ...operations.bans import MAX_ENTRIES, ActiveBan, active_bans, evidence_of_bans, lift_bans
from ...operations.formatting import count_words
from ...web.durations import duration_words
from ..arguments import format_moment
from . import Printer, VerbOptions, argument, verb

LISTED = 10_000
"""Bans of which Redis keeps a list."""
MIN_LENGTH = 6
"""Letters of a digest that identify a client."""


_LIMIT = argument("--limit", metavar="NAME", help="only bans of this limit")


@verb(
    "bans list",
    "list the bans in force: client, limit, start and end",
    _LIMIT,
    argument(
        "--max",
        type=int,
        default=MAX_ENTRIES,
        metavar="N",
        help=f"maximum number of bans ({MAX_ENTRIES})",
    ),
    argument("--json", action="store_true", help="print one JSON object per line"),
    argument("--evidence", action="store_true", help="print the last offences as well"),
)
def _list_bans(command: Printer, options: VerbOptions) -> None:
    limit = options["limit"]
    most = options["max"]
    if most < 1:
        raise CommandError(f"--max {most}: must be at least 1")
    found = [active for active in active_bans(LISTED) if limit in (None, active.limit)][-most:]
    evidences: Sequence[Sequence[Offence]] = [()] * len(found)
    if options["evidence"]:
        evidences = evidence_of_bans(found)
    for active, evidence in zip(found, evidences, strict=True):
        if options["json"]:
            members = _object(active)
            if options["evidence"]:
                members["last"] = [
                    {**offence._asdict(), "moment": offence.moment / SECOND} for offence in evidence
                ]
            command.say(json.dumps(members))
            continue
        command.say(_line(active))
        for offence in evidence:
            at = format_moment(datetime.fromtimestamp(offence.moment / SECOND, UTC))
            command.say(f"    {at} {offence.method} {offence.path} {offence.agent}".rstrip())
    if not found and not options["json"]:
        command.say("No bans.")


@verb(
    "bans lift",
    "end bans, in all processes",
    argument("identity", nargs="?", help="the identity as listed, or its beginning"),
    argument("--all", action="store_true", help="all bans"),
    _LIMIT,
    argument(
        "--forget",
        action="store_true",
        help="forget earlier bans: the next one is as short as the first",
    ),
)
def _lift(command: Printer, options: VerbOptions) -> None:
    begin = options["identity"] or ""
    limit = options["limit"]
    if bool(begin) == options["all"] or (begin and len(begin) < MIN_LENGTH):
        raise CommandError(
            f"name the identity (at least its first {MIN_LENGTH} digits), or use --all"
        )
    found = [
        active
        for active in active_bans(LISTED)
        if active.identity.startswith(begin) and limit in (None, active.limit)
    ]
    lift_bans(found, forget=options["forget"])
    for active in found:
        command.say(f"lifted: {_line(active)}")
    if not found:
        command.say("Nothing was lifted: no such ban.")


def _object(active: ActiveBan) -> dict[str, object]:
    made = active.ban
    return {
        "limit": active.limit,
        "rule": active.rule or None,
        "identity": active.identity,
        "who": dict(active.who),
        "since": made.since / SECOND,
        "until": made.until / SECOND,
        "offences": made.offences,
        "times": made.times,
        "by_hand": made.by_hand,
        "why": active.why,
        "shadow": active.is_shadow,
        "next_seconds": active.next_us and active.next_us / SECOND,
    }


def _line(active: ActiveBan) -> str:
    made = active.ban
    text = f"{active.identity[:12]} {name_words(active.limit)} until {format_moment(made.ends_at)}"
    if active.who:
        who = " ".join(f"{kind}={value}".removeprefix("=") for kind, value in active.who)
        text += f" ({who})"
    if made.by_hand:
        text += f": by an operator: {active.why}".removesuffix(": ")
    else:
        text += f": {count_words(made.offences, 'offence')}"
    text += f", ban number {made.times}"
    if active.next_us is not None:
        text += f", the next for {duration_words(active.next_us / SECOND)}"
    if active.is_shadow:
        text += "; in shadow mode, which refuses no request"
    return text
