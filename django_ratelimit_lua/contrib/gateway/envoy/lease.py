"""Leases of concurrency slots that are taken for Envoy.

Envoy forwards the lease with the request, and the lease releases the slots. A lease contains the
slot and its limit, and is signed, so a forged one releases nothing. Any process can read it. No
process renews such a slot: it lasts for a minute, or until it is released. Releasing it twice has
no effect.

Envoy drops a response if its client has disconnected, and does not report that. So a slot lasts
only for a few seconds until Envoy confirms that it has the lease, before it sends the request to
the service.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from django.core import signing

from ....engine.decide import DecidedCharge
from ....limits.algorithms import OF_SLOTS
from ....limits.call import Charge
from ....limits.limit import Limit
from ....limits.rate import Rate

LEASE = "x-ratelimit-lease"
"""The header of the request, and the key of the entry that brings it back."""
CONFIRM = "x-ratelimit-confirm"
"""The key of the entry that brings the same header to confirm the lease."""
MAX_LEASES = 10
_SALT = "django_ratelimit_lua.contrib.gateway.lease"


class Lease(NamedTuple):
    """A slot and the charges that it holds.

    - `needs_confirmation`: whether Envoy has to confirm it; false for a slot that Redis does not
      have.
    """

    slot: bytes
    charges: list[Charge]
    needs_confirmation: bool


def write_lease(held: Sequence[DecidedCharge], *, needs_confirmation: bool) -> str:
    """Return the lease of slots that were taken in one call."""
    charges = [decided.charge for decided in held]
    limits = [
        (limit.counted_as, limit.variant, limit.rate.limit, charge.digest.decode(), charge.cost)
        for charge in charges
        for limit in [charge.limit]
    ]
    return signing.dumps((held[0].slot.hex(), limits, needs_confirmation), salt=_SALT)


def read_leases(text: str) -> list[Lease]:
    """Return the slots of leases, and their charges.

    Clients may have sent others under that name, which a proxy joins by commas. Leases that this
    site has not signed are ignored.
    """
    found = []
    for lease in text.split(",")[-MAX_LEASES:]:  # What Envoy has added stands last.
        try:
            slot, limits, needs_confirmation = signing.loads(lease.strip(), salt=_SALT)
        except signing.BadSignature:
            continue
        charges = [
            Charge(
                Limit(name, Rate(slots, 0), variant=variant, algorithm=OF_SLOTS),
                subject.encode(),
                cost,
            )
            for name, variant, slots, subject, cost in limits
        ]
        found.append(Lease(bytes.fromhex(slot), charges, needs_confirmation))
    return found
