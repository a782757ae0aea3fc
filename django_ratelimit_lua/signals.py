"""Signals (https://docs.djangoproject.com/en/stable/topics/signals/)."""

from threading import Lock

from django.dispatch import Signal

from .process.forks import renew_after_fork

limit_exceeded = Signal()
"""A hit was refused by a limit, or would have been by one in shadow mode.

Sent once for each such limit, with `limit` (its name), `rule` (the name of its rule, or None),
`identity` (its digest, as text), `mode` ("enforce", "advise" or "shadow"), `decision` and
`request`. Not sent for a `RateLimiter`, whose caller has the decision. An exception in a receiver
is logged by Django and changes nothing.
"""

banned = Signal()
"""A ban was triggered.

Sent once for each ban, by the process whose call triggered it, with `limit` (its name), `rule` (the
name of its rule, or None), `identity` (the digest of the banned identity, as text), `ban` (a
`Ban`), `mode` ("enforce" or "advise"), `decision` and `request` (the last refused request, or
None). Not sent for limits in shadow mode, nor for bans by an operator. An exception in a
receiver is logged by Django and changes nothing.
"""

rules_changed = Signal()
"""Rules or overrides were changed in the database `using`, in a transaction that may still be
rolled back.
"""

store_down = Signal()
"""Redis of the cache `alias` is unavailable, because of `error`. Sent once, until `store_up`.
Receivers cannot be coroutine functions.
"""

store_up = Signal()
"""Redis of the cache `alias` is available again."""

slot_lost = Signal()
"""A slot of a concurrency limit ended while its work still ran.

Its process was stopped or disconnected for longer than `RATELIMIT_SLOT_SECONDS`, or Redis has lost
it. Sent once, in a thread of its own, with `limit` (its name), `identity`
(its digest, as text), `what` (its purpose) and `seconds` (how long it was held). Another caller may
hold it.
"""


@renew_after_fork
def _renew_locks() -> None:
    for signal in (
        limit_exceeded,
        banned,
        rules_changed,
        slot_lost,
        store_down,
        store_up,
    ):
        signal.lock = Lock()  # Django takes it whenever it sends.
