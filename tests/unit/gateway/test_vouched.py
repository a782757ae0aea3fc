"""The request that a proxy describes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimit_lua.gateway.vouched import described, normalised_path


@given(st.text("/.ab%", max_size=30))
def test_a_normalised_path_stays_as_it_is(path: str) -> None:
    """It begins with a slash, and has no empty and no dot segment."""
    normal = normalised_path(path)
    assert normalised_path(normal) == normal
    assert normal.startswith("/")
    assert not {"", ".", ".."} & set(normal.strip("/").split("/")) or normal == "/"


@pytest.mark.parametrize(
    ("dialect", "trusted", "chain", "address"),
    [
        ("caddy", ["10.0.0.0/8"], "203.0.113.9", "203.0.113.9"),
        ("caddy", ["10.0.0.0/8"], "198.51.100.1, 203.0.113.9, 10.0.0.2", "203.0.113.9"),
        ("traefik", 2, "198.51.100.1, 203.0.113.9, 10.0.0.2", "203.0.113.9"),
        ("traefik", ["10.0.0.0/8"], "nonsense", "10.0.0.1"),
        ("nginx", ["10.0.0.0/8"], "10.9.9.9", "10.9.9.9"),
        ("envoy", 2, "::ffff:203.0.113.9", "::ffff:203.0.113.9"),
    ],
)
def test_the_address_is_whom_trusted_proxies_name(
    settings: Any, dialect: str, trusted: Any, chain: str, address: str
) -> None:
    """Of a list, the last that is no proxy; else the one there is, also where that is in the proxies' network."""
    settings.RATELIMIT_GATEWAY_DIALECT, settings.RATELIMIT_TRUSTED_PROXIES = dialect, trusted
    said = {"METHOD": "GET", "URI": "/", "HOST": "shop.example", "ADDRESS": chain}
    asked = {f"HTTP_X_ORIGINAL_{name}": value for name, value in said.items()}
    asked |= {f"HTTP_X_FORWARDED_{name}": value for name, value in said.items() if name != "ADDRESS"}
    asked |= {"HTTP_X_FORWARDED_FOR": chain, "HTTP_X_RATELIMIT_SECRET": "secret", "REMOTE_ADDR": "10.0.0.1"}
    found = described(asked)
    assert found.META["REMOTE_ADDR"] == address
    assert found.META["HTTP_HOST"] == "shop.example"
    assert not [name for name in found.META if "ORIGINAL" in name or "FORWARDED" in name or "SECRET" in name]
