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
    "refuse every request of a user, of an address or network, with a value in a field, or of the client with a digest",
    add_subject,
    add_length(default="1h"),
    argument("--rule", metavar="NAME", help="only where this rule of the admin applies; without it: always"),
    argument("--confirm", action="store_true", help="block it although there are warnings"),
    argument("--reason", default="", help="kept with the override"),
)
def block(command: Printer, options: dict[str, Any]) -> None:
    subject = subject_of(options)
    rule = options["rule"]
    named = None if rule is None else RateLimitRule.objects.named(rule).first()
    if rule is not None and named is None:
        raise CommandError(f"--rule {rule!r}: the admin has no rule of this name")
    seconds = None if options["for_good"] else seconds_of("--for", options["period"], "; or --for-good")
    override = subject.override("block", seconds, rule=named, reason=options["reason"])
    warnings = [] if options["confirm"] else subject.surprises("block")
    if warnings:
        raise CommandError("\n".join([*warnings, "Nothing is blocked; --confirm says that this is meant."]))
    (there,) = add([override])
    ends = override.ends
    until = "for good" if ends is None else f"until {format_moment(ends)}"
    known = "" if there is override else ", which was there already"
    where = "" if named is None else f" by the rule {named.name}"
    command.say(f"{subject} is blocked{where} {until}: override {there.pk}{known}")
    command.warn_if_unpublished()


@verb(
    "unblock",
    "end the blocks of exactly this user, address or network, value of a field, or digest",
    add_subject,
)
def unblock(command: Printer, options: dict[str, Any]) -> None:
    subject = subject_of(options)
    blocks = subject.blocks()
    end(blocks)
    for ended in blocks:
        command.say(f"ended: override {ended.pk}, of {subject}")
    if not blocks:
        command.say(command.style.WARNING(f"Nothing was ended: no block is about {subject}."))
    for wider in subject.wider_blocks():
        command.say(command.style.WARNING(f"{wider} is blocked, and with it {subject}: override {wider.pk}"))
    command.warn_if_unpublished()
