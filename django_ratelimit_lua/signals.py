"""Signals (https://docs.djangoproject.com/en/stable/topics/signals/)."""

from threading import Lock

from django.dispatch import Signal

from .process.forks import renew_after_fork

limit_exceeded = Signal()
"""A hit was refused by a limit, or would have been by one in shadow mode.

Sent once for each such limit, with `limit` (its name), `rule` (the name of the rule it comes from, or None),
`identity` (the digest it is counted under, as text), `mode` ("enforce", "advise" or "shadow"), `decision` and
`request`. Refusals by `RateLimiter` are for its caller to see. An exception in a receiver is logged by Django and
changes nothing.
"""

banned = Signal()
"""A ban was triggered.

Sent once for each ban, by the process whose call has triggered it, with `limit` (its name), `rule` (the name of its
rule, or None), `identity` (the digest of the banned identity, as text), `ban` (a `Ban`: its first and its last offence,
how many, until when, how often), `evidence` (the last ten offences at most, each with its `moment`, `method`, `path`
and `agent`), `mode` ("enforce" or "advise"), `decision` and `request` (None if there is none). Not sent for limits in
shadow mode, nor for bans by hand. An exception in a receiver is logged by Django and changes nothing.
"""

rules_changed = Signal()
"""Rules or overrides were changed in the database `using`, in a transaction that may still be rolled back."""

store_down = Signal()
"""Redis of the cache `alias` cannot be asked, because of `error`. Sent once, until `store_up`; to functions only."""

store_up = Signal()
"""Redis of the cache `alias` answers again."""

slot_lost = Signal()
"""A slot of a concurrency limit ended while its work still ran: its process was stopped or cut off for longer than
`RATELIMIT_SLOT_SECONDS`, Redis has lost it, or an operator has ended it.

Sent once, in a thread of its own, with `limit` (its name), `identity` (the digest it is counted under, as text), `what`
(its purpose), `seconds` (how long it was held) and `retaken`: whether there was room to take it again. If not, another
caller may have it by now.
"""


@renew_after_fork
def _renew() -> None:
    for signal in (
        limit_exceeded, banned, rules_changed, slot_lost, store_down, store_up,
    ):  # fmt: skip
        signal.lock = Lock()  # Django takes it whenever it sends.
