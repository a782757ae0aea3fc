"""`publish`: publish the rules and overrides of the database again."""

from __future__ import annotations

from django.db import transaction

from ...exceptions import StoreError
from ...models import RateLimitRevision
from ...models.rule import rules_database
from ...publishing import publish
from ...publishing.publisher import OwnerError
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
    take_over = options["take_over"]
    if not options["new_id"]:
        command.say(f"published revision {publish(rebuild=True, take_over=take_over)}")
        return
    using = rules_database()
    with transaction.atomic(using):
        command.say(f"the database now has the id {RateLimitRevision.rename(using)}")
    try:
        command.say(f"published revision {publish(take_over=take_over)}")
    except OwnerError as error:
        command.warn(str(error))
    except StoreError as error:
        command.warn_if_unpublished(str(error))
