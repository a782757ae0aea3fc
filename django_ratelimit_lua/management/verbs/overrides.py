"""`block` and `unblock` a client, and `overrides list`."""

from __future__ import annotations

from django.core.management.base import CommandError

from ...models import RateLimitOverride
from ...operations.call_sites import rule_names
from ...operations.confirmations import override_confirmations
from ...operations.subjects import add, end
from ...rules.overrides import EVERY_RULE
from ..arguments import (
    add_length,
    add_subject,
    format_moment,
    require_confirmation,
    seconds_of,
    subject_of,
)
from . import Printer, VerbOptions, argument, verb


def override_words(override: RateLimitOverride) -> str:
    """Return an override in one line.

    >>> override_words(RateLimitOverride(pk=7, network="192.0.2.0/24", effect="block"))
    'override 7: 192.0.2.0/24, block, for all limits, for good'
    """
    effect = override.rate or override.effect
    limits = f"for {override.rule}" if override.rule else "for all limits"
    ends = f"until {format_moment(override.ends)}" if override.ends else "for good"
    return f"override {override.pk}: {override.client()}, {effect}, {limits}, {ends}"


@verb("overrides list", "list the overrides that have not ended, the latest first")
def _list_overrides(command: Printer, options: VerbOptions) -> None:
    overrides = RateLimitOverride.objects.lasting().select_related("user").order_by("-pk")
    for override in overrides.iterator():
        command.say(override_words(override))


@verb(
    "block",
    "refuse all requests of a user, an address or network, a value of a field or key, or a client "
    "with a digest",
    add_subject,
    add_length(default="1h"),
    argument(
        "--rule",
        metavar="NAME",
        default=EVERY_RULE,
        help="only if this rule or limit in the code applies; default: always",
    ),
    argument("--confirm", action="store_true", help="block a large part of the internet"),
    argument("--reason", default="", help="the reason, stored with the override"),
)
def _block(command: Printer, options: VerbOptions) -> None:
    subject = subject_of(options)
    rule = options["rule"]
    if rule and rule not in rule_names():
        raise CommandError(f"--rule {rule!r}: no rule or limit in the code has this name")
    seconds = None
    if not options["for_good"]:
        seconds = seconds_of("--for", options["period"], "; or use --for-good")
    override = subject.override("block", seconds, rule=rule, reason=options["reason"])
    require_confirmation(options, override_confirmations(subject.address))
    existing = add(override)
    until = f"until {format_moment(override.ends)}" if override.ends else "for good"
    by = f" by the rule {rule}" if rule else ""
    existed = "" if existing is override else ", which existed already"
    command.say(f"{subject} is blocked{by} {until}: override {existing.pk}{existed}")
    command.warn_if_unpublished()


@verb(
    "unblock",
    "end the blocks of exactly this user, address or network, value, or digest",
    add_subject,
)
def _unblock(command: Printer, options: VerbOptions) -> None:
    subject = subject_of(options)
    blocks = subject.blocks()
    end(blocks)
    for ended in blocks:
        command.say(f"ended: override {ended.pk} for {subject}")
    if not blocks:
        command.say(f"Nothing was ended: there is no block for {subject}.")
    for wider in subject.wider_blocks():
        command.say(f"{subject} is still blocked by the block of {wider}: override {wider.pk}")
    command.warn_if_unpublished()
