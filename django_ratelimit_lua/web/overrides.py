"""The overrides of a client, and their effect on charges.

The values that identify the client come from a request, or from a service that names them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol

from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.http import Http404, HttpRequest
from django.http.multipartparser import MultiPartParserError

from ..engine import DecidedCharge
from ..engine.decide import now_us
from ..exceptions import Ratelimited
from ..identity import Identity, digest, secrets_by_id
from ..identity.address import Address, client_address
from ..identity.keys import drop_missing, read_fields
from ..identity.names import unmark_identity
from ..limits.call import Charge
from ..limits.decision import LimitState
from ..limits.limit import Limit
from ..rules.overrides import DIGEST, EVERY_RULE, NETWORK, USER, Override, Overrides, find_strongest

logger = logging.getLogger("django_ratelimit_lua")
EMPTY: Mapping[str, Any] = MappingProxyType({})
BLOCK = "block"
"""The name under which a decision shows a block that no rule is needed for."""
NOTHING = Limit(BLOCK, "1/s")
"""The limit of such a block, of which nothing is taken."""

_UNKNOWN = "Overrides by %s are not applied, because its value cannot be determined: %s: %s"
_unknown_fields: set[str] = set()
"""The fields whose values could not be determined; the log names each once."""
REFUSED = (
    Http404,
    PermissionDenied,
    BadRequest,
    SuspiciousOperation,
    MultiPartParserError,
    Ratelimited,
)
"""What Django makes an answer of: the request is refused, and no rule is to blame."""


def override_fields(
    overrides: Overrides, charges: Sequence[DecidedCharge], has_blocks: bool
) -> Collection[str]:
    """Return the values to look up for a request with these charges, see `Overrides.fields_for`."""
    return overrides.fields_for([planned.name for planned in charges], has_blocks)


class SubjectSource(Protocol):
    """The interface for reading the user, address and fields that overrides may match.

    Each method raises if its value cannot be determined.
    """

    def user(self) -> str | None:
        """Return the primary key of the signed-in user as text, or None."""

    def address(self) -> Address | None:
        """Return the full address, or None."""

    def fields(self, field: str) -> Sequence[Identity]:
        """Return the identities by the value of a field.

        There is more than one if the field can be read in more than one way, and none if it is
        missing.
        """


class RequestSubjects:
    """Reads the values of a request.

    - `user`: returns the request's user, or raises;
    - `site_keys`: by name of a registered key, a function that returns its identity, or raises.
    """

    __slots__ = ("_request", "_site_keys", "_user")

    def __init__(
        self,
        request: HttpRequest,
        user: Callable[[], Any],
        site_keys: Mapping[str, Callable[[], tuple[str | None, ...]]] = EMPTY,
    ) -> None:
        self._request = request
        self._user = user
        self._site_keys = site_keys

    def user(self) -> str | None:
        user = self._user()
        if user is None or not user.is_authenticated:
            return None
        return str(user.pk)

    def address(self) -> Address | None:
        return client_address(self._request).address

    def fields(self, field: str) -> Sequence[Identity]:
        if field in self._site_keys:
            return drop_missing(self._site_keys[field]())
        return read_fields(field, self._request)


def find_overrides(
    who: SubjectSource,
    overrides: Overrides,
    fields: Collection[str],
    charges: Sequence[DecidedCharge] = (),
) -> list[Override]:
    """Return the overrides of a client by these fields, in force or not.

    `charges` are those of the client.
    """
    found: list[Override] = []
    for field in fields:
        try:
            found += _by_field(who, overrides, field, charges)
        except REFUSED:
            raise
        except Exception as error:
            # For example, the database is down. Limits that do not need the value continue.
            if field not in _unknown_fields:
                logger.error(_UNKNOWN, field, type(error).__name__, error, exc_info=error)
            _unknown_fields.add(field)
    return found


def _by_field(
    who: SubjectSource, overrides: Overrides, field: str, charges: Sequence[DecidedCharge]
) -> Iterable[Override]:
    if field == DIGEST:
        return [
            each for client in client_digests(charges) for each in overrides.find_by_client(client)
        ]
    if field == NETWORK:
        address = who.address()
        if address is None:
            return ()
        return overrides.find_by_address(address)
    identities: Sequence[Identity] = ()
    if field != USER:
        identities = who.fields(field)
    elif (user := who.user()) is not None:
        identities = [(USER, user)]
    return [each for one in identities for each in overrides.find_by_identity(field, one)]


def client_digests(charges: Sequence[DecidedCharge]) -> Collection[bytes]:
    """Return the digests by which overrides may name the charged clients.

    An operator may have copied a digest that was made with an earlier key, so a client has one
    digest for each key.
    """
    clients: dict[bytes, None] = {}
    _present, *earlier = secrets_by_id().values()
    for planned in charges:
        identity = unmark_identity(planned.identity)
        if not is_unknown(identity):
            clients[planned.charge.digest] = None
            clients |= dict.fromkeys(digest(identity, secret) for secret in earlier)
    return clients


def is_unknown(identity: Identity) -> bool:
    """Return whether an identity is shared by callers that have nothing else in common.

    Examples are the identity of all callers together, of all requests for a path, and of all
    requests without the value that the key reads.

    >>> is_unknown(("user", None)), is_unknown((("ip", "192.0.2.1"), ("path", "/")))
    (True, False)
    """
    if not isinstance(identity, tuple) or not identity:
        return identity is None
    if isinstance(identity[0], tuple):
        return all(map(is_unknown, identity))
    return identity[-1] is None or identity[0] in ("path", "route")


def apply_overrides(
    charges: Sequence[DecidedCharge],
    overrides: Sequence[Override],
    has_blocks: bool,
    owner: object = None,
) -> tuple[Sequence[DecidedCharge], Sequence[DecidedCharge]]:
    """Return the remaining charges, and those that an override exempts.

    Overrides may change the limits of remaining charges, or block them.

    With `has_blocks`, a block for all rules applies even if no charge is enforced. In that case the
    only remaining charge is one of the limit `NOTHING`, for this `owner`. If a charge is enforced,
    the override of that charge decides, which may have precedence over the block.
    """
    if not overrides:
        return charges, ()
    now = now_us()
    applied: list[DecidedCharge] = []
    exempt: list[DecidedCharge] = []
    is_enforced = False
    for planned in charges:
        charge = planned.charge
        limit = charge.limit
        override = find_strongest(overrides, planned.name, now)
        # Shadow rules refuse no request, so an override of one lifts no block.
        is_enforced = is_enforced or limit.mode == "enforce"
        if override is None:
            applied.append(planned)
        elif override.effect == "block":
            state = LimitState.blocked(
                limit.name, override.retry_after(now), limit.mode, override.block
            )
            applied.append(replace(planned, state=state, blocked_by=override.subject))
        elif override.effect == "limit":
            changed = override.limit(limit)
            charge = charge._replace(limit=changed)
            applied.append(replace(planned, charge=charge, blocked_by=b""))
        else:
            exempt.append(planned)
    if has_blocks and not is_enforced:
        override = find_strongest(overrides, EVERY_RULE, now)
        if override is not None and override.effect == "block":
            state = LimitState.blocked(BLOCK, override.retry_after(now), "enforce", override.block)
            by = override.subject
            charge = Charge(NOTHING, by, 0)
            blocked = DecidedCharge(charge, BLOCK, owner=owner, blocked_by=by, state=state)
            return [blocked], ()
    return applied, exempt
