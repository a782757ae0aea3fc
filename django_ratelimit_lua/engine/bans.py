"""Reports of the bans that were just triggered, and the numbers of those in force.

While Redis is unavailable, no ban is triggered, and only the deny cache still refuses a banned
client.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from asgiref.sync import sync_to_async

from ..conf import conf
from ..exceptions import StoreError
from ..identity.names import shown
from ..limits.ban import Ban
from ..limits.call import REGISTER, Call
from ..limits.decision import Decision
from ..limits.rate import SECOND
from ..process.clock import Clock
from ..rules.callsite import known_call_sites, limits_of
from ..rules.provider import current, load
from ..signals import banned
from ..store import get_store
from .evidence import evidence_notes, evidence_now
from .log_sampler import LogSampler
from .run import Wait

if TYPE_CHECKING:
    from .decide import PlannedCharge

logger = logging.getLogger("django_ratelimit_lua.banned")
MAX_ENTRIES = 10_000
"""Maximum number of listed bans in a cluster. The latest are kept."""


def details_key(ban_key: bytes) -> bytes:
    """Return the Redis key of the description of a ban.

    It holds a JSON object with `limit`, `rule` and `who`, the parts of the identity as
    `RATELIMIT_SHOW_IDENTITIES` allows them, but the whole address if it is "masked".
    """
    return ban_key + b":told"


def report_bans(
    call: Call,
    planned: Sequence[PlannedCharge],
    decision: Decision,
    request: object = None,
) -> Iterator[Wait]:
    """Record the offences that a call has counted, and report the bans that they have triggered.

    The description of a ban is stored and logged, and the signal `banned` is sent. A ban in shadow
    mode refuses no client: it is only listed.
    """
    for each, state in zip(planned, decision.limits, strict=False):
        ban = state.ban
        terms = each.charge.limit.ban
        if ban is None or terms is None:
            continue
        (key,) = Call([each.charge], "peek", call.prefix).ban_keys()
        if ban.is_offence and decision.source == "redis":
            evidence_notes.note(key, terms, ban, decision.moment, request)
        if not ban.is_new:
            continue
        rule = None if each.rule is None else each.rule.name or None
        banned_identity = each.identity if each.banned is None else each.banned
        who = shown(banned_identity, shows_address=True)
        description = json.dumps({"limit": state.name, "rule": rule, "who": who}).encode()
        write = partial(_write, call.prefix, key, ban, description)
        yield Wait(write, sync_to_async(write))
        if ban.by_hand or state.mode == "shadow":
            continue
        _log_ban(state.name, rule, each.charge.ban_digest, ban)
        if banned.receivers:
            arguments = {
                "limit": state.name,
                "rule": rule,
                "identity": each.charge.ban_digest.decode(),
                "mode": state.mode,
                "decision": decision,
                "request": request,
            }
            send = partial(_send, key, ban, arguments)
            yield Wait(send, sync_to_async(send))


def _log_ban(limit: str, rule: str | None, identity: bytes, ban: Ban) -> None:
    """Write one record, unless there were too many."""
    if not logger.isEnabledFor(logging.WARNING):
        return
    left_out = ban_log.left_out(limit, identity)
    if left_out is None:
        return
    details = {
        "limit": limit,
        "rule": rule,
        "identity": identity[:8].decode(),
        "until": str(ban.ends_at),
        "offences": ban.offences,
        "times": ban.times,
        "left_out": left_out,
    }
    logger.warning(
        "Banned by %(limit)s (rule: %(rule)s) until %(until)s: identity %(identity)s, offences: "
        "%(offences)s, ban number %(times)s; records dropped before: %(left_out)s",
        details,
        extra=details,
    )


def _send(key: bytes, ban: Ban, arguments: Mapping[str, object]) -> None:
    banned.send_robust(Ban, ban=ban, evidence=evidence_now(key, ban), **arguments)


def _write(prefix: bytes, key: bytes, ban: Ban, description: bytes) -> None:
    """Store the description of a ban. If Redis does not accept it, the ban still holds."""
    store = get_store()
    seconds = (ban.until - ban.since) / SECOND
    with suppress(StoreError):
        store.execute(
            b"SET",
            details_key(key),
            description,
            b"PX",
            b"%d" % (seconds * 1000 + 1000),
        )
        if not store.compares_rules:  # In a cluster, the register lives elsewhere than the ban.
            register = prefix + REGISTER
            store.execute(b"ZADD", register, b"%d" % ban.until, key)
            store.execute(b"ZREMRANGEBYSCORE", register, b"-inf", b"%d" % ban.since)
            store.execute(b"ZREMRANGEBYRANK", register, b"0", b"%d" % (-MAX_ENTRIES - 1))


def clock_of_bans() -> int:
    """Return the current time of the clock by which bans end, in microseconds since 1970.

    It is the time of Redis, if Redis replies. Lists of bans use it.
    """
    # A cluster has no single clock. If Redis does not answer, the list reports it.
    with suppress(StoreError, IndexError):
        seconds, microseconds = get_store(background=True).execute(b"TIME")
        return int(seconds) * SECOND + int(microseconds)
    return Clock.time_ns() // 1000


def bans_active() -> Counter[str]:
    """Return the number of bans in force for each limit, by the name that the limit has in keys.

    Limits in shadow mode are not included. Raises `StoreError`.
    """
    now = b"(%d" % clock_of_bans()
    keys = get_store(background=True).execute(
        b"ZRANGEBYSCORE", conf.CACHE_PREFIX + REGISTER, now, b"+inf"
    )
    sites = [site for name in known_call_sites.names() for site in known_call_sites.of(name)]
    limits = [limit for site in sites for limit in site.limits]
    for rule in (current() or load()).rules:  # A rule's go before those of a call site.
        limits += limits_of(rule)
    modes = {limit.ban.key_part: limit.mode for limit in limits if limit.ban is not None}
    parts = [key.partition(b"}:")[2] for key in keys]
    return Counter(
        part.removesuffix(b":ban").decode(errors="replace")
        for part in parts
        if modes.get(part) != "shadow"
    )


ban_log = LogSampler()
