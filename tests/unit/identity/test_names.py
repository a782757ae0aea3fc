"""Names of identities show no more than the setting allows."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimit_lua.identity.names import (
    MAX_LENGTH,
    MAX_PARTS,
    NOTHING,
    display_name,
    is_short,
    supplied_identity,
)

SUPPLIED = supplied_identity(("user", "ada@example.org"))
SCALARS = st.text() | st.binary() | st.integers() | st.none() | st.uuids()
IDENTITIES = st.recursive(
    SCALARS, lambda parts: st.lists(parts, max_size=4).map(tuple), max_leaves=12
)


@pytest.mark.parametrize(
    ("identity", "masked", "plain"),
    [
        (("ip", "203.0.113.9"), [("ip", "203.0.113.0/24")], [("ip", "203.0.113.9")]),
        (("ip", "198.51.0.0/16"), [("ip", "198.51.0.0/16")], [("ip", "198.51.0.0/16")]),
        (("ip", None), [("ip", NOTHING)], [("ip", NOTHING)]),
        (("user", None), [("user", NOTHING)], [("user", NOTHING)]),
        (("session", "secret-key"), [("session", "se…")], [("session", "se…")]),
        (("cookie", "token", "secret"), [("cookie:token", "se…")], [("cookie:token", "se…")]),
        (("post", "email", "ada@x.org"), [("post:email", "ad…")], [("post:email", "ada@x.org")]),
        (("path", "/reset/MQ/secret/"), [("path", "/reset/…")], [("path", "/reset/MQ/secret/")]),
        (("path", "/about"), [("path", "/about")], [("path", "/about")]),
        (SUPPLIED, [("", "us…"), ("", "ad…")], [("", "user"), ("", "ada@example.org")]),
        (b"\x00\xff", [("", "00…")], [("", "00ff")]),
        (uuid.UUID(int=0), [("", "00…")], [("", "00000000-0000-0000-0000-000000000000")]),
        ("a\x00b", [("", "a\ufffd…")], [("", "a\ufffdb")]),
    ],
)
def test_identities_are_shown_as_configured(
    identity: Any, masked: Any, plain: Any, settings: Any
) -> None:
    """Values of sessions and cookies are credentials, so they are never shown in full."""
    assert display_name(identity) == masked
    settings.RATELIMIT_SHOW_IDENTITIES = "plain"
    assert display_name(identity) == plain
    settings.RATELIMIT_SHOW_IDENTITIES = "off"
    assert display_name(identity) == []


@given(IDENTITIES)
def test_every_identity_is_shown_shortened(identity: Any) -> None:
    """For any identity, the name has a bounded number of parts of bounded, printable text, and no
    exception is raised.
    """
    name = display_name(identity)
    assert len(name) <= MAX_PARTS
    assert all(len(value) <= MAX_LENGTH + 1 and value.isprintable() for _, value in name)


class Odd(str):
    """Text whose `str` raises an exception."""

    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "identity", [Odd("x"), ("ip", Odd("x")), (Odd("ip"), "x"), object(), [[[]]]]
)
def test_an_identity_that_cannot_be_shown_raises_nothing(identity: Any) -> None:
    """An identity without a text raises no exception, which would prevent the statistics of all
    others.
    """
    assert all(isinstance(value, str) for _, value in display_name(identity))
    assert not is_short(identity)
