"""The subjects that overrides may match, and the effect of overrides on charges.

The subjects come from a request, or from a service that names them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol

from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.http import Http404, HttpRequest
from django.http.multipartparser import MultiPartParserError

from ..engine.decide import now_us
from ..engine.decided_charge import DecidedCharge
from ..exceptions import Ratelimited
from ..identity import Identity, digest, secrets_by_id
from ..identity.address import client_address
from ..identity.forwarded import Address
from ..identity.keys import known_identities, read_fields
from ..identity.names import original
from ..limits.call import Charge
from ..limits.decision import LimitState
from ..limits.limit import Limit
from ..rules.overrides import (
    DIGEST,
    USER,
    KnownOverrides,
    SubjectRef,
    client_identity,
    is_field,
    network_digest,
)
from ..rules.ruleset import EVERY_RULE, Ruleset

logger = logging.getLogger("django_ratelimit_lua")
EMPTY: Mapping[str, Any] = MappingProxyType({})
BLOCK = "block"
"""The name under which a decision shows a block that no rule is needed for."""
NOTHING = Limit(BLOCK, "1/s")
"""The limit of such a block, of which nothing is taken."""

_UNKNOWN = "Overrides by %s are not applied, because its value cannot be determined: %s: %s"
_unknown_kinds: set[str] = set()
"""The kinds of subjects that could not be determined; the log names each once."""
REFUSED = (
    Http404,
    PermissionDenied,
    BadRequest,
    SuspiciousOperation,
    MultiPartParserError,
    Ratelimited,
)
"""What Django makes an answer of: the request is refused, and no rule is to blame."""


def override_kinds(
    ruleset: Ruleset, charges: Sequence[DecidedCharge], has_blocks: bool
) -> Collection[str]:
    """Return the kinds of override subjects that may affect these charges.

    With `has_blocks`, the kinds that may block the request are included even if nothing is charged.
    """
    # An exemption lifts a block, also if nothing is charged.
    names = [planned.name for planned in charges]
    if charges or (has_blocks and ruleset.blocks):
        names.insert(0, EVERY_RULE)
    return dict.fromkeys(kind for name in names for kind in ruleset.kinds.get(name, ()))


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
    """Reads the subjects of a request.

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
            return known_identities(self._site_keys[field]())
        return read_fields(field, self._request)


def override_subjects(
    who: SubjectSource,
    ruleset: Ruleset,
    kinds: Collection[str],
    charges: Sequence[DecidedCharge] = (),
) -> list[SubjectRef]:
    """Return the client's subjects of these kinds, if the client has these charges."""
    subjects: list[SubjectRef] = []
    for kind in kinds:
        secrets = ruleset.secrets(kind)
        try:
            if kind == DIGEST:
                digests = client_digests(charges, secrets)
            else:
                digests = _digests(who, kind, secrets)
        except REFUSED:
            raise
        except Exception as error:
            # For example, the database is down. Limits that do not need the subject continue.
            if kind not in _unknown_kinds:
                logger.error(_UNKNOWN, kind, type(error).__name__, error, exc_info=error)
            _unknown_kinds.add(kind)
            continue
        if digests:
            _unknown_kinds.discard(kind)
        subjects += [SubjectRef(kind, subject) for subject in dict.fromkeys(digests)]
    return subjects


def _digests(who: SubjectSource, kind: str, secrets: Sequence[str | bytes]) -> list[bytes]:
    """Return the digests of the client's subjects of one kind, one for each known secret."""
    if kind == USER:
        user = who.user()
        if user is None:
            return []
        identities: Sequence[Identity] = [(USER, user)]
    elif is_field(kind):
        identities = who.fields(kind)
    else:
        address = who.address()
        if address is None:
            return []
        networks = [network_digest(address, kind, secret) for secret in secrets]
        return [network for network in networks if network is not None]
    return [digest(identity, secret) for identity in identities for secret in secrets]


def client_digests(charges: Sequence[DecidedCharge], secrets: Sequence[str | bytes]) -> list[bytes]:
    """Return the subjects for overrides about the digests of the charged clients.

    An operator may have copied a digest that was made with an earlier key, so a client has one
    subject for each key.
    """
    clients: dict[bytes, None] = {}
    _present, *earlier = secrets_by_id().values()
    for planned in charges:
        identity = original(planned.identity)
        if not is_unknown(identity):
            clients[planned.charge.digest] = None
            clients |= dict.fromkeys(digest(identity, secret) for secret in earlier)
    return [
        digest(client_identity(client.decode()), secret) for client in clients for secret in secrets
    ]


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
    overrides: KnownOverrides,
    ruleset: Ruleset,
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
        rule = ruleset.by_name.get(planned.name)
        override = overrides.strongest_for(rule.pk if rule is not None else None, now)
        # Shadow rules refuse no request, so an override of one lifts no block.
        is_enforced = is_enforced or limit.mode == "enforce"
        if override is None:
            applied.append(planned)
        elif override.effect == "block":
            state = LimitState.blocked(
                limit.name, override.retry_after(now), limit.mode, override.block
            )
            blocked_by = overrides.subject_of(override)
            applied.append(replace(planned, state=state, blocked_by=blocked_by))
        elif override.effect == "limit":
            changed = override.limit(limit)
            applied.append(replace(planned, charge=charge._replace(limit=changed)))
        else:
            exempt.append(planned)
    if has_blocks and not is_enforced:
        override = overrides.strongest_for(None, now)
        if override is not None and override.effect == "block":
            state = LimitState.blocked(BLOCK, override.retry_after(now), "enforce", override.block)
            subject = overrides.subject_of(override)
            charge = Charge(NOTHING, subject, 0)
            blocked = DecidedCharge(charge, BLOCK, owner=owner, blocked_by=subject, state=state)
            return [blocked], ()
    return applied, exempt
