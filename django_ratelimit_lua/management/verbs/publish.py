"""`publish`: publish the rules and overrides of the database again."""

from __future__ import annotations

from django.db import transaction

from ...models import RateLimitRevision
from ...publishing.publish import primary, publish
from . import Printer, VerbOptions, argument, verb


@verb(
    "publish",
    "publish all rules and overrides again, for example after raw SQL",
    argument(
        "--take-over",
        action="store_true",
        help="replace the rules of another database or of a newer version",
    ),
    argument(
        "--new-id",
        action="store_true",
        help="first give this database a new id, if it is a copy of another one",
    ),
)
def _publish(command: Printer, options: VerbOptions) -> None:
    if options["new_id"]:
        using = primary()
        with transaction.atomic(using):
            command.say(f"the database now has the id {RateLimitRevision.rename(using)}")
    number = publish(rebuild=not options["new_id"], take_over=options["take_over"])
    command.say(f"published revision {number}")
