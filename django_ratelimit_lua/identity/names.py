"""The names by which operators see identities: in full, masked, or not at all."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any

from ..conf import conf
from . import Identity
from .address import network_words
from .keys import BUILT_IN, FIELDS, registered_keys

Part = tuple[str, str]
"""The name of a key (empty: the identity of a limiter), and the displayed value."""
Name = list[Part]

VISIBLE_LETTERS = 2
"""Letters of a masked value that are displayed."""
MAX_LENGTH = 60
"""Maximum length of a displayed value."""
MAX_SHORT_LENGTH = 256
MAX_PARTS = 8
NOTHING = "—"
"""Stands for a missing value: no signed-in user, no such header."""
_SUPPLIED = "\0own"
"""The mark of an identity that the project has supplied: a name that no key has."""


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


def name_words(name: str, max_length: int = 60) -> str:
    r"""Return the name of a rule or call site as one line of a table.

    Characters that cannot be printed are escaped, and spaces at the ends are quoted. If a name is
    longer than `max_length` characters, its middle is left out.

    >>> name_words("a\nb"), name_words("  "), name_words("abcdefghij", 5)
    ('a\\nb', '"  "', 'ab…ij')
    """
    text = printable(name)
    if text != text.strip():
        text = f'"{text}"'
    if len(text) <= max_length:
        return text
    end = (max_length - 1) // 2
    return f"{text[: max_length - 1 - end]}…{text[-end:]}"


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
        return len(identity) <= MAX_SHORT_LENGTH
    return identity is None or type(identity) is int


def display_name(identity: Identity) -> Name:
    """Return the parts of an identity that operators may see, by `RATELIMIT_SHOW_IDENTITIES`.

    - "plain": all parts as they are;
    - "masked": addresses as networks (/24, /56), paths by their first part, and the first letters
      of other values;
    - "off": none.

    Never raises, whatever the identity is.

    >>> display_name(("ip", "203.0.113.9")), display_name(("user", "7"))
    ([('ip', '203.0.113.0/24')], [('user', '7')])
    >>> display_name((("ip", "2001:db8:1:2::/64"), ("post", "username", "alice")))
    [('ip', '2001:db8:1::/56'), ('post:username', 'al…')]
    >>> display_name(supplied_identity("ada@example.org"))
    [('', 'ad…')]
    >>> display_name(supplied_identity(("user", "ada@example.org")))
    [('', 'us…'), ('', 'ad…')]
    """
    if conf.SHOW_IDENTITIES == "off":
        return []
    is_masked = conf.SHOW_IDENTITIES == "masked"
    try:
        return _display_parts(identity, is_masked=is_masked)[:MAX_PARTS]
    except Exception:  # A function of the project may raise anything: `Key.mask`, `str()`.
        return [("", NOTHING)]


def supplied_identity(identity: Identity, name: Identity = None) -> Identity:
    """Return an identity for a value that the project has supplied instead of a key.

    It never equals an identity that a key has read. It is displayed as `name`, if given. `None`,
    all callers together, stays `None`.
    """
    if identity is None:
        return None
    if name is None:
        return (_SUPPLIED, identity)
    return (_SUPPLIED, identity, name)


def unmark_identity(identity: Identity) -> Identity:
    """Return the identity to digest: without the mark of `supplied_identity`, if it has one."""
    if isinstance(identity, tuple) and identity[:1] == (_SUPPLIED,):
        return identity[1]
    return identity


def _display_parts(identity: object, *, is_masked: bool) -> Name:
    """Return all parts of an identity: one for each key or value in it."""
    if not isinstance(identity, (tuple, list)):
        return [("", _display_value(identity, is_masked=is_masked))]
    if identity and isinstance(identity[0], str):
        kind, *values = identity
        if kind == _SUPPLIED:
            return _display_supplied(values, is_masked=is_masked)
        if len(values) == 1 and kind in (*BUILT_IN, *registered_keys()):
            return [(kind, _display_key_value(kind, values[0], is_masked=is_masked))]
        if len(values) >= 2 and kind in (*FIELDS, "entry"):
            return [_display_field(kind, values, is_masked=is_masked)]
    items = [_display_parts(item, is_masked=is_masked) for item in identity[:MAX_PARTS]]
    return [part for parts in items for part in parts]


def _display_supplied(values: Sequence[object], *, is_masked: bool) -> Name:
    """Return the parts of a supplied identity; `values` are the identity, and its name, if any."""
    if len(values) == 2:
        return _display_parts(values[1], is_masked=is_masked)
    return [("", _display_value(value, is_masked=is_masked)) for value in _flatten(values)]


def _flatten(values: Sequence[object]) -> list[object]:
    """Return at most `MAX_PARTS` of the values in nested sequences."""
    flat: list[object] = []
    for value in values[:MAX_PARTS]:
        if isinstance(value, (tuple, list)):
            flat += _flatten(value)
        else:
            flat.append(value)
    return flat[:MAX_PARTS]


def _display_field(kind: str, values: Sequence[object], *, is_masked: bool) -> Part:
    """Return the part of a field, such as `post:username`; `values` begin with its name."""
    name, *rest = values
    hides_rest = is_masked or kind == "cookie"
    text = " ".join([_display_value(value, is_masked=hides_rest) for value in rest])
    return f"{kind}:{name}"[:MAX_LENGTH], text


def _display_key_value(name: str, value: Any, *, is_masked: bool) -> str:
    """Return the value of a key without a field."""
    if name in ("ip", "subnet"):
        return _display_address(value, is_masked=is_masked)
    if name == "path":
        return _display_path(value, is_masked=is_masked)
    if name in ("user", "route"):
        return _display_value(value, is_masked=False)
    if name == "session":  # The full value would allow impersonation.
        return _display_value(value, is_masked=True)
    key = registered_keys().get(name)
    if is_masked and key is not None and key.mask is not None and value is not None:
        return _display_value(key.mask(value), is_masked=False)
    return _display_value(value, is_masked=is_masked)


def _display_path(value: object, *, is_masked: bool) -> str:
    """Return a path. If masked, only its first part: others may be secret, as in a reset link."""
    first, _slash, more = str(value).removeprefix("/").partition("/")
    path = f"/{first}/…" if is_masked and more else value
    return _display_value(path, is_masked=False)


def _display_address(value: object, *, is_masked: bool) -> str:
    """Return an address or a network. If masked, at most /24 of IPv4 and /56 of IPv6."""
    try:
        network = ipaddress.ip_network(str(value), strict=False)
    except ValueError:
        return _display_value(value, is_masked=is_masked)
    longest = {4: 24, 6: 56}[network.version]
    if is_masked and network.prefixlen > longest:
        network = network.supernet(new_prefix=longest)
    return network_words(network)


def _display_value(value: object, *, is_masked: bool) -> str:
    """Return a value as printable text of bounded length. If masked, only its first letters."""
    if value is None:
        return NOTHING
    if isinstance(value, (bytes, bytearray, memoryview)):
        start = bytes(value[: MAX_LENGTH + 1]).hex()[: MAX_LENGTH + 1]
    else:
        start = str(value)[: MAX_LENGTH + 1]
    text = "".join(letter if letter.isprintable() else "�" for letter in start)
    if is_masked:
        return text[:VISIBLE_LETTERS] + "…"
    if len(text) > MAX_LENGTH:
        return text[:MAX_LENGTH] + "…"
    return text
