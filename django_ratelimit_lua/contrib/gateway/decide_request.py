"""Parse the JSON of a `decide` request.

Every part is bounded, and errors name the part and the problem.
"""

from __future__ import annotations

import base64
import json
from typing import Any, NamedTuple, NoReturn

from ...identity import Identity
from ...limits.algorithms.concurrency import SLOT_SIZE
from ...limits.rate import LimitError
from .answer import ProblemError
from .named_identities import NamedIdentities
from .openapi import check, refuse, schema_of

MAX_BYTES = 64 * 1024
MAX_DEPTH = 3
"""Maximum depth of the lists in an identity."""
_MEMBERS = {"reserve": "timeout", "acquire": "timeout", "slot": "seconds", "release": "slot"}
"""The member that only some operations have. A slot needs it."""


class RequestedCharge(NamedTuple):
    """Units of the limit of that name, for one identity.

    - `client`: the values of the identity by key, if it is an object;
    - `partial`: whether fewer units may be granted.
    """

    limit: str
    identity: Identity
    cost: int = 1
    client: NamedIdentities = NamedIdentities({})
    partial: bool = False


class DecideRequest(NamedTuple):
    """An operation on charges, all or nothing (`together`) or each separately.

    - `timeout`: the maximum number of seconds to wait for a turn;
    - `seconds`: how long a slot is held;
    - `slot`: the slot to release.
    """

    operation: str
    charges: tuple[RequestedCharge, ...]
    together: bool = True
    timeout: float = 0.0
    seconds: float = 0.0
    slot: bytes = b""


def read_decide_request(body: bytes) -> DecideRequest:
    """Parse a request. Raises `ProblemError` if it is invalid.

    >>> read_decide_request(b'{"charges": [{"limit": "mail", "identity": "ada"}]}').charges[0].cost
    1
    """
    if len(body) > MAX_BYTES:
        raise ProblemError(413, f"The body has more than {MAX_BYTES} bytes.")
    try:
        given = _DECODER.decode(body.decode(json.detect_encoding(body), "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise ProblemError(400, f"The body is not JSON: {str(error)[:200]}") from None
    schema = schema_of("Question")
    check(given, schema)
    operation = given.get("operation", "hit")
    own = _MEMBERS.get(operation)
    for name in _MEMBERS.values():
        if name in given and name != own:
            refuse(f"the operation {operation} does not take {name}")
    if own in ("seconds", "slot"):
        check(given.get(own), schema["properties"][own], own)
    charges = [_charge(each, f"charges[{place}]") for place, each in enumerate(given["charges"])]
    if operation != "hit" and any(charge.partial for charge in charges):
        refuse(f"the operation {operation} does not take partial")
    together = given.get("together", True)
    shares = {(charge.partial, charge.cost) for charge in charges}
    if together and len(shares) > 1 and any(charge.partial for charge in charges):
        refuse(
            "Partial charges take the same units: give each the same cost and partial=true, or "
            "use together=false."
        )
    slot = b""
    if operation == "release":
        slot = _slot(given["slot"])
    return DecideRequest(
        operation,
        tuple(charges),
        together,
        float(given.get("timeout", 0)),
        float(given.get("seconds", 0)),
        slot,
    )


def write_slot(slot: bytes) -> str:
    """Return the text that identifies a slot for its release."""
    return base64.urlsafe_b64encode(slot).decode().rstrip("=")


def _slot(text: str) -> bytes:
    try:
        slot = base64.urlsafe_b64decode(f"{text}===")
    except ValueError:
        slot = b""
    if len(slot) != SLOT_SIZE:
        refuse("slot must be the value that the operation slot returned")
    return slot


def _charge(given: dict[str, Any], where: str) -> RequestedCharge:
    """Return a charge that matches its schema."""
    if ("limit" in given) == ("rule" in given):
        refuse(f"{where} must have either limit or rule")
    identity = given["identity"]
    client = NamedIdentities({})
    if isinstance(identity, dict):
        client = NamedIdentities({key: str(value) for key, value in identity.items()})
        try:
            identity = client.identity()
        except LimitError as error:
            refuse(f"{where}: {error}")
    else:
        identity = _identity(identity, where)
    return RequestedCharge(
        given.get("limit") or given["rule"],
        identity,
        given.get("cost", 1),
        client,
        given.get("partial", False),
    )


def _identity(given: Any, where: str, depth: int = 0) -> Identity:
    """Return an identity from JSON other than an object. Raises `ProblemError`."""
    if not isinstance(given, list):
        return given  # type: ignore[no-any-return]
    for part in given:
        check(part, schema_of("Identity"), where)
        if isinstance(part, dict) or depth >= MAX_DEPTH:
            refuse(
                f"{where}: a list in an identity must not contain objects, nor be nested "
                f"more than {MAX_DEPTH} deep"
            )
    return tuple([_identity(part, where, depth + 1) for part in given])


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object as a dict.

    Raises `ValueError` if a name is repeated, because parsers disagree about which value applies.
    """
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a name occurs twice in an object")
    return members


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_number, object_pairs_hook=_members)
"""Made once: `json.loads` would make one for each body."""
