"""Slots of concurrency limits that are taken for Envoy: it sends on, with the request, by what they are given back.

A lease names the slot and what it is of, and is signed: what somebody has made up gives nothing back. Any process can
read it. No process renews such a slot: it lasts for `RATELIMIT_GATEWAY_SLOT_SECONDS`, or until it is given back, which
twice gives nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.core import signing

from ...engine.decide import DecidedCharge
from ...limits.call import Charge
from ...limits.limit import Limit
from ...limits.rate import Rate

LEASE = "x-ratelimit-lease"
"""The header of the request, and the key of the entry that brings it back."""
MOST_LEASES = 10
_SALT = "django_ratelimit_lua.gateway.lease"


def write_lease(held: Sequence[DecidedCharge]) -> str:
    """The lease of slots that were taken in one call."""
    charges = [decided.charge for decided in held]
    told = [(charge.limit.name, charge.limit.rate.limit, charge.digest.decode(), charge.cost) for charge in charges]
    return signing.dumps((held[0].slot.hex(), told), salt=_SALT)


def read_leases(text: str) -> list[tuple[bytes, list[Charge]]]:
    """The slots of leases, and what they are of. Clients may have sent others under that name, which a proxy joins by
    commas: what this site has not signed is passed over."""
    found = []
    for lease in text.split(",")[-MOST_LEASES:]:  # What Envoy has added stands last.
        try:
            slot, told = signing.loads(lease.strip(), salt=_SALT)
        except signing.BadSignature:
            continue
        charges = [
            Charge(Limit(name, Rate(slots, 0), algorithm="concurrency"), subject.encode(), cost)
            for name, slots, subject, cost in told
        ]
        found.append((bytes.fromhex(slot), charges))
    return found
