"""`forget`: erase everything that is stored about one identity."""

from __future__ import annotations

import sys

from django.core.management.base import CommandError

from ...identity import is_digest
from ...operations.forgetting import ForgottenIdentity, forget, single_address
from ...operations.formatting import count_words
from ..arguments import add_subject, subjects_of
from . import Printer, VerbOptions, argument, verb

NOT_ERASED = (
    "log files, and data that receivers of signals have stored",
    "references on error pages, and digests in copies of data, which cannot be reversed",
    "counts of keys that combine the identity with other values: name all parts of such "
    "a key together",
    "totals in statistics, which contain no identity",
)


@verb(
    "forget",
    "erase everything that is stored about one identity. Several options together name the "
    "identity of a combined key",
    add_subject,
    argument("--overrides", action="store_true", help="delete its overrides without asking"),
)
def _forget_identity(command: Printer, options: VerbOptions) -> None:
    subjects = subjects_of(options)
    if not subjects:
        raise CommandError(
            "name the identity, such as --user ada, --ip 203.0.113.9 or --header 'X-API-Key: k1'"
        )
    if len(subjects) > 1 and any(subject.digest for subject in subjects):
        raise CommandError("--digest names a whole identity; use no other option with it")
    for place, subject in enumerate(subjects):
        if subject.digest and not is_digest(subject.digest):
            raise CommandError(f"--digest {subject.digest!r}: use 32 hexadecimal digits")
        if subject.address:
            try:
                subjects[place] = subject._replace(address=single_address(subject.address))
            except ValueError as error:
                raise CommandError(f"--ip {error}") from None
    identity = ForgottenIdentity(subjects)
    with_overrides = options["overrides"]
    number = identity.overrides().count()
    if number and not with_overrides and sys.stdin is not None and sys.stdin.isatty():
        answer = input(f"Also delete {count_words(number, 'override')} for it? [y/N] ")
        with_overrides = answer.strip().lower() in ("y", "yes")
    forgotten = forget(identity, with_overrides=with_overrides)
    for kind, erased in forgotten.erased.items():
        command.say(f"erased: {kind}: {erased:,}")
    for reason in forgotten.kept:
        command.warn(f"not erased: {reason}")
    for what in NOT_ERASED:
        command.say(f"cannot be erased: {what}")
    command.warn_if_unpublished()
