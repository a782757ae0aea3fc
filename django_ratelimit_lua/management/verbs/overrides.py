"""`block` and `unblock`: refuse every request of a client, for a time or for good, and end that."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError

from ...models import RateLimitRule
from ...operations.subjects import add, end
from ..arguments import add_length, add_subject, format_moment, seconds_of, subject_of
from . import Printer, argument, verb


@verb(
    "block",
    "refuse all requests of a user, an address or network, a value of a field or key, or a client "
    "with a digest",
    add_subject,
    add_length(default="1h"),
    argument(
        "--rule", metavar="NAME", help="only if this rule of the admin applies; default: always"
    ),
    argument("--confirm", action="store_true", help="block despite warnings"),
    argument("--reason", default="", help="the reason, stored with the override"),
)
def block(command: Printer, options: dict[str, Any]) -> None:
    subject = subject_of(options)
    rule = options["rule"]
    named = None if rule is None else RateLimitRule.objects.named(rule).first()
    if rule is not None and named is None:
        raise CommandError(f"--rule {rule!r}: the admin has no rule of this name")
    seconds = (
        None if options["for_good"] else seconds_of("--for", options["period"], "; or --for-good")
    )
    override = subject.override("block", seconds, rule=named, reason=options["reason"])
    warnings = [] if options["confirm"] else subject.confirmations("block")
    if warnings:
        raise CommandError(
            "\n".join([*warnings, "Nothing was blocked. Use --confirm to block anyway."])
        )
    (there,) = add([override])
    ends = override.ends
    until = "for good" if ends is None else f"until {format_moment(ends)}"
    known = "" if there is override else ", which existed already"
    where = "" if named is None else f" by the rule {named.name}"
    command.say(f"{subject} is blocked{where} {until}: override {there.pk}{known}")
    command.warn_if_unpublished()


@verb(
    "unblock",
    "end the blocks of exactly this user, address or network, value, or digest",
    add_subject,
)
def unblock(command: Printer, options: dict[str, Any]) -> None:
    subject = subject_of(options)
    blocks = subject.blocks()
    end(blocks)
    for ended in blocks:
        command.say(f"ended: override {ended.pk} for {subject}")
    if not blocks:
        command.say(command.style.WARNING(f"Nothing was ended: there is no block for {subject}."))
    for wider in subject.wider_blocks():
        command.say(
            command.style.WARNING(
                f"{subject} is still blocked, because {wider} is: override {wider.pk}"
            )
        )
    command.warn_if_unpublished()
