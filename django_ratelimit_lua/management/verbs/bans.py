"""`bans`: list bans, and end them."""

from __future__ import annotations

from django.core.management.base import CommandError

from ...identity.names import name_words
from ...operations.bans import ActiveBan, active_bans, lift_bans, scan_bans
from ...operations.formatting import count_words
from ..arguments import format_moment
from . import Printer, VerbOptions, argument, verb

MIN_LENGTH = 6
"""Letters of a digest that identify a client."""

_LIMIT = argument("--limit", metavar="NAME", help="only bans of this limit")


@verb(
    "bans list",
    "list the bans in force: client, limit, start and end",
    _LIMIT,
    argument(
        "--scan",
        action="store_true",
        help="first repair the list: read all bans in Redis, which takes a while",
    ),
)
def _list_bans(command: Printer, options: VerbOptions) -> None:
    if options["scan"]:
        scan_bans()
    found = _found(options["limit"])
    for active in found:
        command.say(_line(active))
    if not found:
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
    if bool(begin) == options["all"] or (begin and len(begin) < MIN_LENGTH):
        raise CommandError(
            f"name the identity (at least its first {MIN_LENGTH} digits), or use --all"
        )
    found = _found(options["limit"], begin)
    lift_bans(found, forget=options["forget"])
    for active in found:
        command.say(f"lifted: {_line(active)}")
    if not found:
        command.say("Nothing was lifted: no such ban.")


def _found(limit: str | None, identity: str = "") -> list[ActiveBan]:
    return [each for each in active_bans(identities=[identity]) if limit in (None, each.limit)]


def _line(active: ActiveBan) -> str:
    until = format_moment(active.until)
    text = f"{active.identity[:12]} {name_words(active.limit)} until {until}"
    if active.who:
        who = " ".join(f"{kind}={value}".removeprefix("=") for kind, value in active.who)
        text += f" ({who})"
    if active.offences:
        text += f": {count_words(active.offences, 'refusal')}"
    else:
        text += f": by an operator: {active.why}".removesuffix(": ")
    text += f", ban number {active.times}"
    if active.is_shadow:
        text += "; in shadow mode, which refuses no request"
    return text
