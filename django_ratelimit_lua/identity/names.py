"""The names by which operators see identities: plain, masked, or not at all."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any

from ..conf import conf
from . import Identity
from .forwarded import network_words
from .keys import BUILT_IN, FIELDS, registered_keys

Part = tuple[str, str]
"""What identifies, as keys name it (empty: a limiter's own identity), and the value as it is shown.
"""
Name = list[Part]

SHOWN_LETTERS = 2
"""Letters of a masked value that are shown."""
MAX_LENGTH = 60
SHORT = 256
MAX_PARTS = 8
NOTHING = "—"
"""Stands for a missing value: no signed-in user, no such header."""
_OWN = "\0own"
"""A prefix that no kind of a key has."""


def printable(text: str) -> str:
    r"""Escape unprintable characters, so that the text is safe in pages, logs and terminals.

    >>> printable("a\r\nb\x1b[2J")
    'a\\r\\nb\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def name_words(name: str, most: int = 60) -> str:
    r"""Return the name of a rule or call site as one line of a table.

    Characters that cannot be printed are escaped, and spaces at the ends are quoted. If a name is
    longer than `most` characters, its middle is left out.

    >>> name_words("a\nb"), name_words("  "), name_words("abcdefghij", 5)
    ('a\\nb', '"  "', 'ab…ij')
    """
    text = printable(name)
    if text != text.strip():
        text = f'"{text}"'
    if len(text) <= most:
        return text
    last = (most - 1) // 2
    return f"{text[: most - 1 - last]}…{text[-last:]}"


def is_short(identity: object) -> bool:
    """Return whether an identity is short and immutable.

    It is text, an integer, None, or a tuple of these.

    >>> (
    ...     is_short((("ip", "203.0.113.9"), ("post", "username", "alice"))),
    ...     is_short("x" * 1000),
    ...     is_short(["a"]),
    ... )
    (True, False, False)
    """
    if type(identity) is tuple:
        return len(identity) <= MAX_PARTS and all(map(is_short, identity))
    if type(identity) is str:
        return len(identity) <= SHORT
    return identity is None or type(identity) is int


def shown(identity: Identity) -> Name:
    """Return the parts of an identity that may be shown, by `RATELIMIT_SHOW_IDENTITIES`.

    - "plain": all parts as they are;
    - "masked": addresses as networks (/24, /56), paths by their first part, and the first letters
      of other values;
    - "off": none.

    Whatever the identity is, nothing is raised.

    >>> shown(("ip", "203.0.113.9")), shown(("user", "7"))
    ([('ip', '203.0.113.0/24')], [('user', '7')])
    >>> shown((("ip", "2001:db8:1:2::/64"), ("post", "username", "alice")))
    [('ip', '2001:db8:1::/56'), ('post:username', 'al…')]
    >>> shown(supplied_identity("ada@example.org"))
    [('', 'ad…')]
    >>> shown(supplied_identity(("user", "ada@example.org")))
    [('', 'us…'), ('', 'ad…')]
    """
    if conf.SHOW_IDENTITIES == "off":
        return []
    try:
        return _parts(identity, conf.SHOW_IDENTITIES == "masked")[:MAX_PARTS]
    except Exception:
        return [("", NOTHING)]


def supplied_identity(identity: Identity, name: Identity = None) -> Identity:
    """Return an identity for a value that the project has supplied instead of a key.

    It never equals an identity that a key has read. It is shown as `name`, if given. `None`, all
    callers together, stays `None`.
    """
    if identity is None:
        return None
    if name is None:
        return (_OWN, identity)
    return (_OWN, identity, name)


def original(identity: Identity) -> Identity:
    """Return the identity to digest: without the mark of `supplied_identity`, if it has one."""
    if isinstance(identity, tuple) and identity[:1] == (_OWN,):
        return identity[1]
    return identity


def _parts(identity: object, is_masked: bool) -> Name:
    if not isinstance(identity, (tuple, list)):
        return [("", _value(identity, is_masked=is_masked))]
    if identity and isinstance(identity[0], str):
        kind, *rest = identity
        if kind == _OWN and len(rest) == 2:
            return _parts(rest[1], is_masked)
        if kind == _OWN:
            return [("", _value(value, is_masked=is_masked)) for value in _flat(rest)]
        if len(rest) == 1 and kind in (*BUILT_IN, *registered_keys()):
            return [(kind, _of_key(kind, rest[0], is_masked))]
        if len(rest) >= 2 and kind in (*FIELDS, "entry"):
            is_masked = is_masked or kind == "cookie"
            text = " ".join([_value(value, is_masked=is_masked) for value in rest[1:]])
            return [(f"{kind}:{rest[0]}"[:MAX_LENGTH], text)]
    items = [_parts(item, is_masked) for item in identity[:MAX_PARTS]]
    return [part for parts in items for part in parts]


def _flat(values: Sequence[object]) -> list[object]:
    found: list[object] = []
    for value in values[:MAX_PARTS]:
        if isinstance(value, (tuple, list)):
            found += _flat(value)
        else:
            found.append(value)
    return found[:MAX_PARTS]


def _of_key(name: str, value: Any, is_masked: bool) -> str:
    if name in ("ip", "subnet"):
        return _address(value, is_masked=is_masked)
    if name == "path":
        return _path(value, is_masked=is_masked)
    if name in ("user", "route"):
        is_masked = False
    if name == "session":  # The full value would allow impersonation.
        is_masked = True
    key = registered_keys().get(name)
    if is_masked and key is not None and key.mask is not None and value is not None:
        value = key.mask(value)
        is_masked = False
    return _value(value, is_masked=is_masked)


def _path(value: object, *, is_masked: bool) -> str:
    """Return a path. If masked, only its first part: others may be secret, as in a reset link."""
    first, _, more = str(value).removeprefix("/").partition("/")
    if is_masked and more:
        value = f"/{first}/…"
    return _value(value, is_masked=False)


def _address(value: object, *, is_masked: bool) -> str:
    try:
        network = ipaddress.ip_network(str(value), strict=False)
    except ValueError:
        return _value(value, is_masked=is_masked)
    if is_masked:
        longest = {4: 24, 6: 56}[network.version]
        if network.prefixlen > longest:
            network = network.supernet(new_prefix=longest)
    return network_words(network)


def _value(value: object, *, is_masked: bool) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, (bytes, bytearray, memoryview)):
        value = bytes(value[: MAX_LENGTH + 1]).hex()
    text = str(value)
    text = "".join(letter if letter.isprintable() else "�" for letter in text[: MAX_LENGTH + 1])
    if is_masked:
        return text[:SHOWN_LETTERS] + "…"
    if len(text) > MAX_LENGTH:
        return text[:MAX_LENGTH] + "…"
    return text
