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

rules_changed = Signal()
"""Rules or overrides were changed in the database `using`, in a transaction that may still be rolled back."""

store_down = Signal()
"""Redis of the cache `alias` cannot be asked, because of `error`. Sent once, until `store_up`; to functions only."""

store_up = Signal()
"""Redis of the cache `alias` answers again."""


@renew_after_fork
def _renew() -> None:
    for signal in (limit_exceeded, rules_changed, store_down, store_up):
        signal.lock = Lock()  # Django takes it whenever it sends.
