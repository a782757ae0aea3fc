"""`slots`: list the holders of slots of concurrency limits, and end one."""

from __future__ import annotations

import time

from django.core.management.base import CommandError

from ...engine.slots import Holder
from ...operations.slots import release_slot, slots_held
from . import Printer, VerbOptions, argument, verb


@verb(
    "slots list",
    "list the held slots of concurrency limits, the longest first",
    argument("--rule", default="", metavar="NAME", help="only slots of this rule or call site"),
)
def _list_slots(command: Printer, options: VerbOptions) -> None:
    held = slots_held(options["rule"])
    for holder in held:
        command.say(line(holder))
    if not held:
        command.say("No slots are held.")


@verb(
    "slots release",
    "end a slot of any process; its work continues",
    argument("id", help="the id of the slot, or its beginning"),
    argument("--reason", default="", help="the reason, stored in the history"),
)
def _release(command: Printer, options: VerbOptions) -> None:
    found = [holder for holder in slots_held() if holder.id.startswith(options["id"])]
    if not found:
        raise CommandError(f"no held slot has an id that begins with {options['id']!r}")
    if len({holder.id for holder in found}) > 1:
        raise CommandError(
            f"{len(found)} slots have an id that begins with {options['id']!r}; name exactly one"
        )
    released = release_slot(found[0].id, options["reason"])
    if released is None:
        raise CommandError("this slot is not held any more")
    command.say(f"released: {line(released)}")


def line(holder: Holder) -> str:
    """Return a slot as one line."""
    client = (
        ", ".join(f"{kind} {value}".strip() for kind, value in holder.identity) or holder.digest[:8]
    )
    seconds = max(0.0, time.time() - holder.since)
    return (
        f"{holder.id[:12]}  {holder.limit} ({holder.units} of {holder.of})  {client}  for "
        f"{seconds:.0f} s  "
        f"{holder.host}:{holder.pid}  {holder.what}"
    )
