"""`forget`: erase everything that is stored about one identity."""

from __future__ import annotations

from django.core.management.base import CommandError

from ...identity.forwarded import parse_address
from ...operations.forgetting import forget
from ..arguments import add_subject, subject_of
from . import Printer, VerbOptions, verb

NOT_ERASED = (
    "log files, the log of Django's admin, and data that receivers of signals have stored",
    "counts of keys that combine the identity with other values: give --digest of each, which the "
    "page Clients shows",
    "totals in statistics, which contain no identity, and rules that mention it",
)


@verb(
    "forget",
    "erase the counts, bans, overrides, names and statistics of one identity",
    add_subject,
)
def _forget_identity(command: Printer, options: VerbOptions) -> None:
    subject = subject_of(options)
    if subject.address and parse_address(subject.address) is None:
        raise CommandError(f"--ip {subject.address!r} is a network; name one address")
    for kind, number in forget(subject).items():
        command.say(f"erased: {kind}: {number:,}")
    for what in NOT_ERASED:
        command.say(f"not erased: {what}")
    command.warn_if_unpublished()
