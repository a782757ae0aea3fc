"""`history`: delete old rows from the database."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from ...publishing import cleanup
from ...publishing.publish import primary
from ..arguments import format_moment, seconds_of
from . import Printer, VerbOptions, argument, verb


@verb(
    "history prune",
    "delete expired overrides, changes and other old rows from the database",
    argument(
        "--older",
        required=True,
        metavar="TIME",
        help="the minimum age of deleted rows, such as 400d",
    ),
    argument("--dry-run", action="store_true", help="only count the rows"),
)
def _prune(command: Printer, options: VerbOptions) -> None:
    before = timezone.now() - timedelta(seconds=seconds_of("--older", options["older"]))
    moment = format_moment(before)
    if options["dry_run"]:
        action = "would delete"
        counts = {name: rows.count() for name, rows in cleanup.outdated(primary(), before).items()}
    else:
        action = "deleted"
        counts = cleanup.prune(primary(), before)
    numbers = ", ".join(f"{name} {number:,}" for name, number in counts.items())
    command.say(f"{action} rows from before {moment}: {numbers}")
