"""Read the JSON of a `decide` request: every part is bounded, and errors name the part and the
problem.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, NamedTuple, NoReturn

from ...identity import Identity
from ...limits.algorithms.concurrency import SLOT_SIZE
from ...limits.rate import LimitError
from .named_identities import NamedIdentities
from .openapi import check, refuse, schema_of
from .problems import ProblemError

WAITING = ("reserve", "acquire")
MAX_BYTES = 64 * 1024
MAX_DEPTH = 3
"""How deep the parts of an identity may be in one another."""
_BELONGS = {"timeout": WAITING, "seconds": ("slot",), "slot": ("release",)}


class RequestedCharge(NamedTuple):
    """Units of the limit of that name, for one identity.

    `who`: the named client, if it is an object; `partial`: fewer units will do.
    """

    limit: str
    identity: Identity
    cost: int = 1
    who: NamedIdentities | None = None
    partial: bool = False


class DecideRequest(NamedTuple):
    """A request: an operation on charges, all or nothing (`together`) or each by itself.

    `timeout`: maximum seconds until a turn; `seconds`: how long a slot is held; `slot`: the slot to
    release.
    """

    operation: str
    charges: tuple[RequestedCharge, ...]
    together: bool = True
    timeout: float = 0.0
    seconds: float = 0.0
    slot: bytes = b""


def read_decide_request(body: bytes) -> DecideRequest:
    """Read a request. Raises `ProblemError`.

    >>> read_asked(b'{"charges": [{"limit": "mail", "identity": "ada"}]}').charges
    (AskedCharge(limit='mail', identity='ada', cost=1, who=None, partial=False),)
    """
    if len(body) > MAX_BYTES:
        raise ProblemError(413, f"The body has more than {MAX_BYTES} bytes.")
    try:
        given = _DECODER.decode(body.decode(json.detect_encoding(body), "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise ProblemError(400, f"The body is no JSON: {str(error)[:200]}") from None
    question = schema_of("Question")
    check(given, question)
    operation = given.get("operation", "hit")
    for word, operations in _BELONGS.items():
        if word in given and operation not in operations:
            refuse(f"{word} belongs to {' and '.join(operations)}, not to {operation}")
        if operation == operations[0] and word != "timeout":
            check(given.get(word), question["properties"][word], word)
    charges = tuple(
        [_charge(charge, f"charges[{number}]") for number, charge in enumerate(given["charges"])]
    )
    if operation != "hit" and any(charge.partial for charge in charges):
        refuse(f"partial belongs to hit, not to {operation}")
    return DecideRequest(
        operation,
        charges,
        given.get("together", True),
        float(given.get("timeout", 0)),
        float(given.get("seconds", 0)),
        _slot(given["slot"]) if operation == "release" else b"",
    )


def write_slot(slot: bytes) -> str:
    """A slot as text, by which it is released."""
    return base64.urlsafe_b64encode(slot).decode().rstrip("=")


def _slot(text: str) -> bytes:
    try:
        slot = base64.urlsafe_b64decode(f"{text}===")
    except (ValueError, binascii.Error):
        slot = b""
    if len(slot) != SLOT_SIZE:
        refuse("slot must be the one that was answered when it was taken")
    return slot


def _charge(given: dict[str, Any], where: str) -> RequestedCharge:
    """A charge that matches its schema."""
    if ("limit" in given) == ("rule" in given):
        refuse(f"{where} needs the name of one limit or rule")
    name: str = given.get("limit") or given["rule"]
    identity = given["identity"]
    who = None
    try:
        if isinstance(identity, dict):
            who = NamedIdentities({key: str(value) for key, value in identity.items()})
            identity = who.identity()
    except LimitError as error:
        refuse(f"{where}: {error}")
    return RequestedCharge(
        name, _identity(identity, where), given.get("cost", 1), who, given.get("partial", False)
    )


def _identity(given: Any, where: str, depth: int = 0) -> Any:
    """An identity, of a list that matches its schema, or of what else does.

    Raises `ProblemError`.
    """
    if not isinstance(given, list):
        return given
    for part in given:
        check(part, schema_of("Identity"), where)
        if isinstance(part, dict) or depth >= MAX_DEPTH:
            refuse(
                f"{where}: an identity has no objects in a list, and lists at most {MAX_DEPTH} deep"
            )
    return tuple([_identity(part, where, depth + 1) for part in given])


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; no name twice, of which another reader might take the other."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice in an object")
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_number, object_pairs_hook=_members)
"""Made once: `json.loads` would make one for each body."""
