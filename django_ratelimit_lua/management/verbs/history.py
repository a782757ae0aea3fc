"""`history`: list the last changes, or delete old rows from the database."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from ...models import RateLimitChange
from ...models.rule import rules_database
from ...publishing import publisher
from ..arguments import format_moment, seconds_of
from . import Printer, VerbOptions, argument, verb

MAX_CHANGES = 20


@verb(
    "history",
    f"list the last {MAX_CHANGES} changes, or delete old ones and expired overrides",
    argument("--prune", metavar="AGE", help="delete rows that are older, such as 400d"),
    argument("--dry-run", action="store_true", help="only count these rows"),
)
def _history(command: Printer, options: VerbOptions) -> None:
    if options["prune"] is None:
        for change in RateLimitChange.objects.order_by("-at", "-pk")[:MAX_CHANGES]:
            what = f"{change.get_kind_display()} {change.name}: {change.get_action_display()}"
            by = f" by {change.by}" if change.by else ""
            command.say(f"{format_moment(change.at)} {what}{by}")
        return
    before = timezone.now() - timedelta(seconds=seconds_of("--prune", options["prune"]))
    action = "deleted"
    if options["dry_run"]:
        action = "would delete"
        counts = {
            name: rows.count()
            for name, rows in publisher.outdated_rows(rules_database(), before).items()
        }
    else:
        counts = publisher.prune_rows(rules_database(), before)
    numbers = ", ".join(f"{name} {number:,}" for name, number in counts.items())
    command.say(f"{action} rows from before {format_moment(before)}: {numbers}")
