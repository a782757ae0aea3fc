"""`manage.py ratelimit_stats`: what was counted in the last day, and an end for what was kept long enough."""

from __future__ import annotations

import argparse
import json
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError
from django.utils import timezone

from ...exceptions import StoreError
from ...publishing import cleanup
from ...publishing.publish import primary
from ...stats.keys import SITE
from ...stats.names import name_words
from ...stats.reading import Span, dropped, known_names, people_refused, total
from ...stats.results import BANNED, BLOCKED, EXEMPT, FAILED, POLICY
from ..arguments import seconds_of


class Command(BaseCommand):
    """`show`, `prune`."""

    help = "Shows what was counted in the last day, and deletes statistics and history that were kept long enough."

    def add_arguments(self, parser: CommandParser) -> None:
        commands = parser.add_subparsers(dest="subcommand", required=True, parser_class=argparse.ArgumentParser)
        shown = commands.add_parser("show", help="what was counted in the last 24 hours, by rule and call site")
        shown.add_argument("--json", action="store_true", dest="as_json", help="for machines")
        pruned = commands.add_parser(
            "prune", help="delete hours of statistics, ended overrides and history from the database"
        )
        pruned.add_argument(
            "--older", required=True, metavar="TIME", help="what is older, such as 400d; hours at least 92 days"
        )
        pruned.add_argument("--dry-run", action="store_true", help="only say how much that is")

    def handle(self, *args: Any, subcommand: str, **options: Any) -> None:
        """Raises `CommandError`."""
        try:
            getattr(self, f"_{subcommand}")(**options)
        except (StoreError, DatabaseError) as error:
            raise CommandError(str(error)) from error

    def _show(self, *, as_json: bool, **options: Any) -> None:
        span = Span.last(86_400, 3600)
        rows = [_row(name, span) for name in (*sorted(known_names()), SITE)]
        if as_json:
            self.stdout.write(json.dumps({"rules": rows[:-1], "all": rows[-1], "dropped": dropped(2)}, indent=2))
            return
        if len(rows) == 1:
            self.stdout.write("nothing was counted yet")
            return
        names = [*(name_words(row["name"]) for row in rows[:-1]), "all requests"]
        width = max(len(name) for name in (*names, _TITLE))
        self.stdout.write(f"{_TITLE:{width}}" + "".join(f"{word:>12}" for word in (*_SHOWN, "people")))
        for name, row in zip(names, rows, strict=True):
            numbers = "".join(f"{row[word]:>12,}" for word in (*_SHOWN, "people_refused"))
            self.stdout.write(f"{name:{width}}{numbers}")
        lost = dropped(2)  # They are counted by days of UTC.
        if lost:
            warning = f"{lost:,} counts of yesterday and today (UTC) could not be written, and are missing"
            self.stderr.write(self.style.WARNING(warning))

    def _prune(self, *, older: str, dry_run: bool, **options: Any) -> None:
        seconds = seconds_of("--older", older)
        before = timezone.now() - timedelta(seconds=seconds)
        found = (cleanup.older if dry_run else cleanup.prune)(primary(), before)
        until = timezone.localtime(before) if timezone.is_aware(before) else before
        self.stdout.write(
            f"{'would delete' if dry_run else 'deleted'}, from before {until:%Y-%m-%d %H:%M %Z}".rstrip() + ": "
            f"hours of statistics {found.hours:,}, ended overrides {found.overrides:,}, changes {found.changes:,}"
        )


_TITLE = "last 24 hours"
_SHOWN = ("allowed", "refused", "shadow", "blocked", "exempt", "policy", "failed")


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
