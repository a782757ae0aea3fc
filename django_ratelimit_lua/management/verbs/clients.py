"""Verbs about clients: their bans, overrides and counts, and all data about one of them."""

from __future__ import annotations

import time
from collections import Counter

from django.core.management.base import CommandError
from django.db.models import Q

from ...conf import conf
from ...engine.bans import ban_list
from ...engine.decide import build_call, forgetting
from ...engine.run import run
from ...exceptions import StoreError
from ...extension import extensions
from ...identity.address import parse_address
from ...identity.names import name_words
from ...limits.call import Charge
from ...limits.limit import Limit
from ...models import RateLimitChange, RateLimitOverride
from ...operations.bans import ActiveBan, active_bans, lift_bans, scan_bans
from ...operations.confirmations import override_confirmations
from ...operations.explain import explain, reset_counts
from ...operations.formatting import count_words
from ...operations.known_limits import rule_names
from ...operations.subjects import Subject, add_override, end_overrides
from ...rules.overrides import EVERY_RULE
from ...store import FLUSH_SECONDS, get_store
from ..arguments import (
    add_length,
    add_request,
    add_subject,
    describe_decision,
    format_moment,
    parse_request,
    parse_seconds,
    parse_subject,
    require_confirmation,
)
from . import Printer, VerbOptions, argument, verb

MIN_LENGTH = 6
"""Letters of a digest that identify a client."""

_LIMIT = argument("--limit", metavar="NAME", help="only bans of this limit")


@verb(
    "bans list",
    "list the bans in force: client, limit, start and end",
    _LIMIT,
    argument(
        "--scan",
        action="store_true",
        help="first repair the list: read all bans in Redis, which takes a while",
    ),
)
def _list_bans(command: Printer, options: VerbOptions) -> None:
    if options["scan"]:
        scan_bans()
    bans = _find_bans(options["limit"])
    for ban in bans:
        command.write(_ban_words(ban))
    if not bans:
        command.write("No bans.")


@verb(
    "bans lift",
    "end bans, in all processes",
    argument("identity", nargs="?", help="the identity as listed, or its beginning"),
    argument("--all", action="store_true", help="all bans"),
    _LIMIT,
    argument(
        "--forget",
        action="store_true",
        help="forget earlier bans: the next one is as short as the first",
    ),
)
def _lift_listed_bans(command: Printer, options: VerbOptions) -> None:
    """Lift the bans of a limit or of an identity. All of them only with `--all`."""
    prefix = options["identity"] or ""
    is_clear = bool(prefix) != options["all"]
    if not is_clear or 0 < len(prefix) < MIN_LENGTH:
        raise CommandError(
            f"name the identity (at least its first {MIN_LENGTH} digits), or use --all"
        )
    bans = _find_bans(options["limit"], prefix)
    lift_bans(bans, forget=options["forget"])
    for ban in bans:
        command.write(f"lifted: {_ban_words(ban)}")
    if not bans:
        command.write("Nothing was lifted: no such ban.")


def _find_bans(limit: str | None, prefix: str = "") -> list[ActiveBan]:
    """Return the bans by a limit (None: by any) of identities whose digest begins so."""
    return [ban for ban in active_bans(identities=[prefix]) if limit in (None, ban.limit)]


def _ban_words(ban: ActiveBan) -> str:
    """Return a ban in one line."""
    text = f"{ban.identity[:12]} {name_words(ban.limit)} until {format_moment(ban.until)}"
    if ban.who:
        name = " ".join(f"{kind}={value}".removeprefix("=") for kind, value in ban.who)
        text += f" ({name})"
    if ban.offences:
        text += f": {count_words(ban.offences, 'refusal')}"
    else:
        text += f": by an operator: {ban.why}".removesuffix(": ")
    text += f", ban number {ban.times}"
    if ban.is_shadow:
        text += "; in shadow mode, which refuses no request"
    return text


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
        command.write(override_words(override))


@verb(
    "block",
    "refuse all requests of a user, an address or network, a value of a field or key, or a client "
    "with a digest",
    add_subject,
    add_length,
    argument(
        "--rule",
        metavar="NAME",
        default=EVERY_RULE,
        help="only if this rule or limit in the code applies; default: always",
    ),
    argument("--confirm", action="store_true", help="block a large part of the internet"),
    argument("--reason", default="", help="the reason, stored with the override"),
)
def _block_client(command: Printer, options: VerbOptions) -> None:
    """Add an override that blocks the subject, unless an equal one exists."""
    subject = parse_subject(options)
    rule = options["rule"]
    if rule and rule not in rule_names():
        raise CommandError(f"--rule {rule!r}: no rule or limit in the code has this name")
    seconds = None
    if not options["for_good"]:
        seconds = parse_seconds("--for", options["period"])
    override = subject.make_override("block", seconds, rule=rule, reason=options["reason"])
    require_confirmation(options, override_confirmations(subject.address))
    existing = add_override(override)
    until = f"until {format_moment(override.ends)}" if override.ends else "for good"
    by = f" by the rule {rule}" if rule else ""
    note = "" if existing is override else ", which existed already"
    command.write(f"{subject} is blocked{by} {until}: override {existing.pk}{note}")
    command.warn_if_unpublished()


@verb(
    "unblock",
    "end the blocks of exactly this user, address or network, value, or digest",
    add_subject,
)
def _unblock_client(command: Printer, options: VerbOptions) -> None:
    """End the blocks of the subject, and print those of larger networks, which stay."""
    subject = parse_subject(options)
    blocks = subject.find_blocks()
    end_overrides(blocks)
    for ended in blocks:
        command.write(f"ended: override {ended.pk} for {subject}")
    if not blocks:
        command.write(f"Nothing was ended: there is no block for {subject}.")
    for wider in subject.find_wider_blocks():
        command.write(f"{subject} is still blocked by the block of {wider}: override {wider.pk}")
    command.warn_if_unpublished()


@verb(
    "reset",
    "reset the counts of a request like the one described, and show the limits of the next one",
    add_request,
    argument("--limit", action="append", metavar="NAME", help="only this limit; may be repeated"),
)
def _reset_request(command: Printer, options: VerbOptions) -> None:
    """Reset the counts under the named limits of the request, or under all of them."""
    explanation = explain(parse_request(options))
    names = list(dict.fromkeys(limit.name for limit in explanation.limits))
    wanted = options["limit"] or names
    unknown = ", ".join(repr(name) for name in sorted(wanted) if name not in names)
    if unknown:
        raise CommandError(
            f"the limit {unknown} does not apply to this request; limits that apply: "
            f"{', '.join(names) or 'none'}"
        )
    try:
        done = reset_counts(explanation, set(wanted))
    except StoreError as error:
        raise CommandError(f"nothing was reset: {error}") from error
    for name in done:
        command.write(f"reset: {name}")
    if not names:
        command.write("Nothing was reset: no limit applies to this request.")
    elif not done:
        command.write(f"Nothing was reset: this request has no count under {', '.join(wanted)}.")
    command.write(describe_decision(explain(parse_request(options))))


IN_FLIGHT_SECONDS = 1.5 * FLUSH_SECONDS
"""After this time, every process has received the push, and has written what it was writing."""


def forget(subject: Subject) -> Counter[str]:
    """Erase the counts, bans, overrides, names and statistics of an identity.

    Totals, and counts of keys that combine it with other values, stay.

    Args:
        subject: A user, an address, a value of a field, or the digest of any identity.

    Returns:
        The number of erased items by kind.

    Raises:
        StoreError: Redis is unavailable. Then not everything is erased.
    """
    digests = subject.digests()
    subjects = [*digests, *filter(None, subject.new_override().digests())]
    is_about = Q(subject__in=subjects) | Q(client_digest__in=digests)
    if subject.user is not None:
        is_about |= Q(user=subject.user)
    erased = Counter[str]()
    erased["overrides"], _ = RateLimitOverride.objects.filter(is_about).delete()
    # Twice, because other processes may be writing.
    erased.update(_erase_in_redis([digest.encode() for digest in digests]))
    time.sleep(IN_FLIGHT_SECONDS)
    erased.update(_erase_in_redis([digest.encode() for digest in digests]))
    for change in RateLimitChange.objects.exclude(kind=RateLimitChange.Kind.RULE):
        stored = f"{change.before}{change.after}"
        if any(digest in stored for digest in subjects):
            change.delete()
            erased["entries of the history"] += 1
    return erased


def _erase_in_redis(digests: list[bytes]) -> Counter[str]:
    """Erase the keys of these identities, and what processes remember of them, once."""
    store = get_store(background=True)
    charges = [Charge(Limit("forgotten", "1/s"), digest) for digest in digests]
    # All processes drop refusals, leases and bans.
    run(forgetting(build_call(charges, "peek"), strict=True))
    prefixes = [b"%b{%b}:" % (conf.CACHE_PREFIX, digest) for digest in digests]
    keys = [key for prefix in prefixes for key in store.find_keys(prefix)]
    store.delete_keys(keys)
    ban_list.remove(keys)
    erased = Counter({"counts and bans": len(keys)})
    for extension in extensions:
        erased.update(extension.forget(digests))
    return erased


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
    subject = parse_subject(options)
    if subject.address and parse_address(subject.address) is None:
        raise CommandError(f"--ip {subject.address!r} is a network; name one address")
    for kind, number in forget(subject).items():
        command.write(f"erased: {kind}: {number:,}")
    for what in NOT_ERASED:
        command.write(f"not erased: {what}")
    command.warn_if_unpublished()
