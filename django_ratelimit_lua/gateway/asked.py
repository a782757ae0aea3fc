"""What a service asks of `decide`, read from JSON: every part of it bounded, and said what is wrong with it."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from ..identity import Identity
from ..limits.algorithms.concurrency import SLOT_SIZE
from ..limits.call import whole_cost
from ..limits.rate import LimitError
from .named import Named
from .problems import ProblemError

OPERATIONS = ("hit", "peek", "refund", "reserve", "acquire", "slot", "release")
WAITING = ("reserve", "acquire")
MOST_BYTES = 64 * 1024
MOST_CHARGES = 100
MOST_PARTS, DEEPEST = 10, 3
"""Parts of an identity, and how deep they may be in one another."""
LONGEST_TEXT = 1000
MOST_SECONDS = 60
"""For which the service waits for a turn, or reserves one ahead."""
LONGEST_SLOT = 3600
"""Seconds that a slot may be held."""
_MEMBERS = {"operation", "charges", "together", "timeout", "seconds", "slot"}
_BELONGS = (("timeout", WAITING), ("seconds", ("slot",)), ("slot", ("release",)))
_CHARGE = {"limit", "rule", "identity", "cost", "partial"}


class AskedCharge(NamedTuple):
    """So many units of the limit of that name, for one identity; `who`: whom it names, if it is an object; `partial`:
    fewer units will do."""

    limit: str
    identity: Identity
    cost: int = 1
    who: Named | None = None
    partial: bool = False


class Asked(NamedTuple):
    """What is asked: an operation about charges, all or nothing (`together`) or each for itself.

    `timeout`: seconds that a turn may be away; `seconds`: how long a slot is held; `slot`: which one is released.
    """

    operation: str
    charges: tuple[AskedCharge, ...]
    together: bool = True
    timeout: float = 0.0
    seconds: float = 0.0
    slot: bytes = b""


def read_asked(body: bytes) -> Asked:
    """What is asked. Raises `ProblemError`.

    >>> read_asked(b'{"charges": [{"limit": "mail", "identity": "ada"}]}').charges
    (AskedCharge(limit='mail', identity='ada', cost=1, who=None, partial=False),)
    """
    if len(body) > MOST_BYTES:
        raise ProblemError(413, f"The body has more than {MOST_BYTES} bytes.")
    try:
        given = _DECODER.decode(body.decode(json.detect_encoding(body), "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise ProblemError(400, f"The body is no JSON: {str(error)[:200]}") from None
    given = _object(given, "The body", _MEMBERS)
    operation, together = given.get("operation", "hit"), given.get("together", True)
    if operation not in OPERATIONS:
        _refuse(f"operation is {_shown(operation)}; choose one of: {', '.join(OPERATIONS)}")
    _check_bool(together, "together")
    charges = given.get("charges")
    if not isinstance(charges, list) or not 1 <= len(charges) <= MOST_CHARGES:
        _refuse(f"charges must be a list of 1 to {MOST_CHARGES}")
    read = tuple([_charge(charge, f"charges[{number}]") for number, charge in enumerate(charges)])
    for word, operations in _BELONGS:
        if word in given and operation not in operations:
            _refuse(f"{word} belongs to {' and '.join(operations)}, not to {operation}")
    if operation != "hit" and any(charge.partial for charge in read):
        _refuse(f"partial belongs to hit, not to {operation}")
    return Asked(
        operation, read, together,
        _seconds(given.get("timeout", 0), "timeout", 0, MOST_SECONDS),
        _seconds(given.get("seconds"), "seconds", 1, LONGEST_SLOT) if operation == "slot" else 0.0,
        _slot(given.get("slot")) if operation == "release" else b"",
    )  # fmt: skip


def write_slot(slot: bytes) -> str:
    """A slot as text, by which it is released."""
    return base64.urlsafe_b64encode(slot).decode().rstrip("=")


def _slot(text: Any) -> bytes:
    try:
        slot = base64.urlsafe_b64decode(f"{text}===") if isinstance(text, str) and text.isascii() else b""
    except (ValueError, binascii.Error):
        slot = b""
    if len(slot) != SLOT_SIZE:
        _refuse("slot must be what was answered when it was taken")
    return slot


def _charge(given: Any, where: str) -> AskedCharge:
    given = _object(given, where, _CHARGE)
    named = [given[word] for word in ("limit", "rule") if word in given]
    if len(named) != 1 or not isinstance(named[0], str) or not 0 < len(named[0]) <= LONGEST_TEXT:
        _refuse(f"{where} needs the name of one limit or rule")
    if "identity" not in given:
        _refuse(f"{where} needs an identity: who is counted; null for everybody together")
    partial = given.get("partial", False)
    _check_bool(partial, f"{where}: partial")
    try:
        cost = whole_cost(given.get("cost", 1))
        identity = given["identity"]
        if isinstance(identity, dict):
            who = read_named(identity)
            return AskedCharge(named[0], who.identity(), cost, who, partial)
        return AskedCharge(named[0], read_identity(identity), cost, partial=partial)
    except LimitError as error:
        _refuse(f"{where}: {error}")


def read_identity(given: Any, depth: int = 0) -> Identity:
    """Who is counted: text, a whole number, null, or a list of these. Raises `LimitError`.

    >>> read_identity(["mail", 7])
    ('mail', 7)
    """
    if given is None or (isinstance(given, int) and not isinstance(given, bool) and abs(given) < 2**63):
        return given
    if isinstance(given, str) and len(given) <= LONGEST_TEXT:
        return given
    if isinstance(given, list) and depth < DEEPEST and 1 <= len(given) <= MOST_PARTS:
        return tuple([read_identity(part, depth + 1) for part in given])
    raise _no_identity()


def read_named(given: Mapping[str, Any]) -> Named:
    """Whom an object names. Raises `LimitError`.

    >>> read_named({"ip": "203.0.113.9", "user": 7}).identity()
    (('ip', '203.0.113.9'), ('user', '7'))
    """
    if not 1 <= len(given) <= MOST_PARTS:
        raise _no_identity()
    return Named({key: _value(key, value) for key, value in given.items()})


def _value(key: str, value: Any) -> str:
    text = str(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else None
    if text is None or len(text) > LONGEST_TEXT or len(key) > LONGEST_TEXT:
        raise LimitError(f"identity: {key[:100]!r} must be text or a whole number")
    return text


def _no_identity() -> LimitError:
    return LimitError(
        f"identity must be text of at most {LONGEST_TEXT} characters, a whole number, null, a list of these, or an "
        'object such as {"ip": "203.0.113.9", "user": 7}'
    )


def _object(given: Any, what: str, members: set[str]) -> Mapping[str, Any]:
    if not isinstance(given, dict):
        _refuse(f"{what} must be an object with {', '.join(sorted(members))}")
    if not given.keys() <= members:
        unknown = sorted(given.keys() - members)
        _refuse(f"{what}: unknown {', '.join(map(_shown, unknown[:5]))}; known are {', '.join(sorted(members))}")
    found: Mapping[str, Any] = given
    return found


def _seconds(given: Any, what: str, least: int, most: int) -> float:
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
    if not is_number or not math.isfinite(given) or not least <= given <= most:
        _refuse(f"{what} is {_shown(given)}; write seconds from {least} to {most}")
    return float(given)


def _check_bool(given: Any, what: str) -> None:
    if not isinstance(given, bool):
        _refuse(f"{what} is {_shown(given)}; write true or false")


def _shown(value: Any) -> str:
    text = str(value) if isinstance(value, str) else type(value).__name__
    return repr(text[:100]) if isinstance(value, str) else f"a {text}" if value is not None else "missing"


def _refuse(problem: str) -> NoReturn:
    raise ProblemError(422, f"{problem}.")


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
