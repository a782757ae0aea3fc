"""`manage.py ratelimit_unblock`: end the blocks of somebody."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser

from ...models.audit import acting
from ...operations.subjects import end
from ...publishing import triggers
from ..arguments import add_subject, subject_of


class Command(BaseCommand):
    """Ends the blocks of a user, an address or network, a value of a field, or a client's
    digest."""

    help = "Ends the blocks of exactly this user, address or network, value of a field, or digest."

    def add_arguments(self, parser: CommandParser) -> None:
        add_subject(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Raises `CommandError`."""
        subject = subject_of(options)
        try:
            blocks = subject.blocks()
        except ValidationError as error:
            raise CommandError("; ".join(error.messages)) from error
        with acting("ratelimit_unblock"):
            end(blocks)
        for block in blocks:
            self.stdout.write(f"ended: override {block.pk}, of {subject}")
        if not blocks:
            self.stdout.write(self.style.WARNING(f"Nothing was ended: no block is about {subject}."))
        for block in subject.wider_blocks():
            self.stdout.write(self.style.WARNING(f"{block} is blocked, and with it {subject}: override {block.pk}"))
        if triggers.unpublished:
            self.stderr.write(self.style.WARNING(f"Saved, but not live yet: {triggers.unpublished}"))
