"""`manage.py ratelimit_block`: refuse every request of somebody, for a time or for good."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from ...models import RateLimitRule
from ...models.audit import acting
from ...operations.subjects import add
from ...publishing import triggers
from ..arguments import add_subject, seconds_of, subject_of


class Command(BaseCommand):
    """Blocks a user, an address or network, a value of a field, or a client by its digest."""

    help = (
        "Refuses every request of a user, of an address or network, with a value in a field, or of the client with a "
        "digest. For an hour, or as you say."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_subject(parser)
        how_long = parser.add_mutually_exclusive_group()
        how_long.add_argument("--for", dest="period", default="1h", metavar="TIME", help="30m, 1h (the default), 7d …")
        how_long.add_argument("--for-good", action="store_true", help="until it is ended")
        parser.add_argument(
            "--rule", metavar="NAME", help="only where this rule of the admin applies; without it: always"
        )
        parser.add_argument("--confirm", action="store_true", help="block it although there are warnings")
        parser.add_argument("--reason", default="", help="kept with the override")

    def handle(
        self, *args: Any, period: str, for_good: bool, rule: str | None, reason: str, confirm: bool, **options: Any
    ) -> None:
        """Raises `CommandError`."""
        subject = subject_of(options)
        named = None if rule is None else RateLimitRule.objects.named(rule).first()
        if rule is not None and named is None:
            raise CommandError(f"--rule {rule!r}: the admin has no rule of this name")
        with acting("ratelimit_block"):
            try:
                override = subject.override(
                    "block",
                    None if for_good else seconds_of("--for", period, "; or --for-good"),
                    rule=named,
                    reason=reason,
                )
            except ValidationError as error:
                raise CommandError("; ".join(error.messages)) from error
            warnings = [] if confirm else subject.surprises("block")
            if warnings:
                raise CommandError("\n".join([*warnings, "Nothing is blocked; --confirm says that this is meant."]))
            (there,) = add([override])
        ends = override.ends
        if ends is not None and timezone.is_aware(ends):
            ends = timezone.localtime(ends)
        until = "for good" if ends is None else f"until {ends:%Y-%m-%d %H:%M %Z}".rstrip()
        known = "" if there is override else ", which was there already"
        where = "" if named is None else f" by the rule {named.name}"
        self.stdout.write(f"{subject} is blocked{where} {until}: override {there.pk}{known}")
        if triggers.unpublished:
            self.stderr.write(self.style.WARNING(f"Saved, but not live yet: {triggers.unpublished}"))
