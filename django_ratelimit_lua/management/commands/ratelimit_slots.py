"""`manage.py ratelimit_slots`: who holds slots of concurrency limits, and ending one."""

from __future__ import annotations

import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ...engine.slots import Holder
from ...exceptions import StoreError
from ...models.audit import acting
from ...operations.slots import release_slot, slots_held


class Command(BaseCommand):
    """Lists the slots that are held, and releases one."""

    help = (
        "Lists who holds slots of concurrency limits, since when, where and what for; or releases one, by its id, "
        "whichever process holds it."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        listing = actions.add_parser("list", help="the slots that are held, the longest first")
        listing.add_argument("--rule", default="", metavar="NAME", help="only those of this rule or call site")
        releasing = actions.add_parser("release", help="end a slot; what it is held for goes on")
        releasing.add_argument("id", help="of the slot, or how it begins")
        releasing.add_argument("--why", default="", help="kept in the history")

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        """Raises `CommandError`."""
        try:
            if action == "list":
                held = slots_held(options["rule"])
                for holder in held:
                    self.stdout.write(line(holder))
                if not held:
                    self.stdout.write("No slot is held.")
                return
            found = [holder for holder in slots_held() if holder.id.startswith(options["id"])]
            if len({holder.id for holder in found}) != 1:
                raise CommandError(f"{len(found)} slots have an id that begins with {options['id']!r}")
            with acting("ratelimit_slots"):
                released = release_slot(found[0].id, options["why"])
        except StoreError as error:
            raise CommandError(f"Redis is unavailable: {error}") from error
        if released is None:
            raise CommandError("nobody holds this slot any more")
        self.stdout.write(f"released: {line(released)}")


def line(holder: Holder) -> str:
    """A slot on one line."""
    whose = ", ".join(f"{kind} {value}".strip() for kind, value in holder.identity) or holder.digest[:8]
    seconds = max(0.0, time.time() - holder.since)
    return (
        f"{holder.id[:12]}  {holder.limit} ({holder.units} of {holder.of})  {whose}  for {seconds:.0f} s  "
        f"{holder.host}:{holder.pid}  {holder.what}"
    )
