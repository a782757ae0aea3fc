"""`manage.py ratelimit_reset`: forget what limits have counted for whoever sends a request."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ...exceptions import StoreError
from ...models.audit import acting
from ...operations.explain import explain, reset
from ..arguments import add_request, described, hints, verdict


class Command(BaseCommand):
    """Resets what a request like the one described has used up."""

    help = "Forgets what limits have counted for a request like the one described, and says what the next one meets."

    def add_arguments(self, parser: CommandParser) -> None:
        add_request(parser)
        parser.add_argument("--limit", action="append", metavar="NAME", help="only this one; may be repeated")

    def handle(self, *args: Any, limit: list[str] | None, **options: Any) -> None:
        """Raises `CommandError`."""
        request = described(options)
        explanation = explain(request)
        names = [met.name for met in explanation.met]
        if unknown := set(limit or ()) - set(names):
            asked = ", ".join(map(repr, sorted(unknown)))
            raise CommandError(
                f"such a request does not meet the limit {asked}; it meets: {', '.join(names) or 'none'}"
            )
        try:
            with acting("ratelimit_reset"):
                done = reset(explanation, set(limit) if limit else None)
        except StoreError as error:
            raise CommandError(f"nothing was reset: {error}") from error
        for name in done:
            self.stdout.write(f"reset: {name}")
        if not done:
            asked = ", ".join(limit or names)
            why = f"nothing is counted for it under {asked}" if asked else "such a request meets no limit"
            self.stdout.write(self.style.WARNING(f"Nothing was reset: {why}."))
        after = explain(described(options))
        for line in hints(after, options["method"]):
            self.stdout.write(line)
        self.stdout.write(verdict(after))
