"""The overrides of a client, and their effect on charges.

The values that identify the client come from a request, or from a service that names them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

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
    overrides: Overrides, charges: Sequence[DecidedCharge], blocks_uncharged: bool
) -> Collection[str]:
    """Return the fields by which overrides may match the client of these charges.

    With `blocks_uncharged`, these include the fields of blocks for all rules.
    """
    return overrides.fields_for([planned.name for planned in charges], blocks_uncharged)


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
    subjects: SubjectSource,
    overrides: Overrides,
    fields: Collection[str],
    charges: Sequence[DecidedCharge] = (),
) -> list[Override]:
    """Return the overrides of a client by these fields, in force or not.

    `charges` are those of the client. If the value of a field cannot be determined, its overrides
    are left out, and the log names the field once.
    """
    matching: list[Override] = []
    for field in fields:
        try:
            matching += _find_by_field(subjects, overrides, field, charges)
        except REFUSED:
            raise
        except Exception as error:
            # For example, the database is down. Limits that do not need the value continue.
            if field not in _unknown_fields:
                logger.error(_UNKNOWN, field, type(error).__name__, error, exc_info=error)
            _unknown_fields.add(field)
    return matching


def _find_by_field(
    subjects: SubjectSource, overrides: Overrides, field: str, charges: Sequence[DecidedCharge]
) -> Iterable[Override]:
    """Return the overrides of a client by one field. Raises if its value cannot be determined."""
    if field == DIGEST:
        digests = client_digests(charges)
        return [each for client in digests for each in overrides.find_by_client(client)]
    if field == NETWORK:
        address = subjects.address()
        return () if address is None else overrides.find_by_address(address)
    if field == USER:
        user = subjects.user()
        return () if user is None else overrides.find_by_identity(USER, (USER, user))
    identities = subjects.fields(field)
    return [each for one in identities for each in overrides.find_by_identity(field, one)]


def client_digests(charges: Sequence[DecidedCharge]) -> Collection[bytes]:
    """Return the digests by which overrides may name the charged clients.

    An operator may have copied a digest that was made with an earlier key, so a client has one
    digest for each key.
    """
    digests: list[bytes] = []
    _present, *earlier = secrets_by_id().values()
    for planned in charges:
        identity = unmark_identity(planned.identity)
        if not is_unknown(identity):
            digests.append(planned.charge.digest)
            digests += [digest(identity, secret) for secret in earlier]
    return list(dict.fromkeys(digests))


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


class AppliedOverrides(NamedTuple):
    """The remaining charges, and those that an override exempts."""

    charges: Sequence[DecidedCharge]
    exempt: Sequence[DecidedCharge] = ()


def apply_overrides(
    charges: Sequence[DecidedCharge],
    overrides: Sequence[Override],
    blocks_uncharged: bool,
    owner: object = None,
) -> AppliedOverrides:
    """Apply the overrides of a client to its charges.

    Overrides may change the limits of remaining charges, or block them.

    With `blocks_uncharged`, a block for all rules applies even if no charge is enforced. In that
    case the only remaining charge is one of the limit `NOTHING`, for this `owner`. If a charge is
    enforced, the override of that charge decides, which may have precedence over the block.
    """
    if not overrides:
        return AppliedOverrides(charges)
    now = now_us()
    # Shadow rules refuse no request, so an override of one lifts no block.
    is_enforced = any(planned.charge.limit.mode == "enforce" for planned in charges)
    if blocks_uncharged and not is_enforced:
        block = find_strongest(overrides, EVERY_RULE, now)
        if block is not None and block.effect == "block":
            return AppliedOverrides([_charge_for_block(block, now, owner)])
    remaining: list[DecidedCharge] = []
    exempt: list[DecidedCharge] = []
    for planned in charges:
        override = find_strongest(overrides, planned.name, now)
        if override is None:
            remaining.append(planned)
        elif override.effect == "exempt":
            exempt.append(planned)
        else:
            remaining.append(_block_or_change(planned, override, now))
    return AppliedOverrides(remaining, exempt)


def _block_or_change(planned: DecidedCharge, override: Override, now: int) -> DecidedCharge:
    """Return the charge, which the override blocks, or whose limit it changes."""
    limit = planned.charge.limit
    if override.effect == "block":
        retry_after = override.retry_after(now)
        state = LimitState.blocked(limit.name, retry_after, limit.mode, override.block)
        return replace(planned, state=state, blocked_by=override.subject)
    charge = planned.charge._replace(limit=override.apply_to(limit))
    # If this process has decided the charge alone, that was by the old limit. Redis decides now.
    return replace(planned, charge=charge, blocked_by=b"")


def _charge_for_block(block: Override, now: int, owner: object) -> DecidedCharge:
    """Return the charge that shows a block of all rules. It takes nothing."""
    subject = block.subject
    state = LimitState.blocked(BLOCK, block.retry_after(now), "enforce", block.block)
    charge = Charge(NOTHING, subject, 0)
    return DecidedCharge(charge, BLOCK, owner=owner, blocked_by=subject, state=state)
