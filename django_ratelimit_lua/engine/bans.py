"""The bans that this process knows: those in force, and those that were just triggered.

While Redis is unavailable, no ban is triggered. The bans that this process knows hold until their
end, whatever the policies of the limits are, so an outage readmits no client that this process has
seen banned. A client that was banned by another process is limited like any other client.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from asgiref.sync import sync_to_async

from ..conf import conf
from ..conf.changes import on_change
from ..exceptions import StoreError
from ..identity.names import shown
from ..limits.ban import Ban
from ..limits.call import REGISTER, Call, Charge
from ..limits.decision import Decision
from ..limits.rate import SECOND
from ..process.bounded_map import BoundedMap
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
"""Maximum number of known bans. The latest are kept."""
_Key = tuple[bytes, bytes, bytes]


class KnownBans:
    """The bans in force that this process knows, with their ends on the monotonic clock."""

    def __init__(self) -> None:
        self._bans: BoundedMap[_Key, tuple[Ban, float]] = BoundedMap(
            MAX_ENTRIES, labels_of=lambda key: (key[1],)
        )

    def note(self, call: Call, decision: Decision) -> None:
        """Store the bans that Redis has returned."""
        # By a time that is not the present, as of a test.
        if call.now is not None:
            return
        for charge, state in zip(call.charges, decision.limits, strict=True):
            if state.ban is None:
                continue
            if state.ban.until:
                ends_at = time.monotonic() + (state.ban.until - decision.moment) / SECOND
                self._bans.put(_key(call, charge), (state.ban.later(), ends_at))
            elif self._bans.entries:
                self._bans.pop(_key(call, charge))

    def hold(self, call: Call, decision: Decision) -> Decision:
        """Return a decision made without Redis, with the known bans applied to it."""
        states = list(decision.limits)
        for place, charge in enumerate(call.charges):
            ban, seconds = self._find(call, charge)
            if ban is None:
                continue
            state = states[place]
            if state.retry_after is not None:
                state = state._replace(retry_after=max(state.retry_after, seconds))
            reset = max(state.reset_after, seconds)
            states[place] = state._replace(
                allowed=False, remaining=0, reset_after=reset, wait=0.0, ban=ban
            )
        decision = decision._replace(limits=tuple(states))
        if any(state.refuses for state in states):
            return decision._replace(allowed=False, granted=0, wait=0.0)
        return decision

    def refuses(self, call: Call) -> bool:
        """Return whether an enforced limit has banned an identity of the call."""
        return any(
            charge.limit.mode == "enforce" and self._find(call, charge)[0] is not None
            for charge in call.charges
        )

    def _find(self, call: Call, charge: Charge) -> tuple[Ban | None, float]:
        """Return the ban in force, and the seconds until its end."""
        ban, ends_at = self._bans.get(_key(call, charge)) or (None, 0.0)
        seconds = ends_at - time.monotonic()
        if seconds <= 0:
            return None, 0.0
        return ban, seconds

    def forget(self, digests: Iterable[bytes]) -> None:
        """Remove the bans of these identities, which were lifted."""
        for digest in digests:
            self._bans.pop_labelled(digest)

    def clear(self) -> None:
        self._bans.clear()


def _key(call: Call, charge: Charge) -> _Key:
    part = b"" if charge.limit.ban is None else charge.limit.ban.key_part
    return call.prefix, charge.ban_digest, part


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
    return time.time_ns() // 1000


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


known_bans = KnownBans()
ban_log = LogSampler()
on_change(("RATELIMIT_*", "CACHES", "SECRET_KEY"), known_bans.clear)
