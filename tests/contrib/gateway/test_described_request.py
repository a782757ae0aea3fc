"""The request that a proxy describes."""

from __future__ import annotations

from typing import Any

import pytest

from django_ratelimit_lua.contrib.gateway.described_request import read_described_request
from django_ratelimit_lua.contrib.gateway.http import meta_of


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
def test_the_address_is_the_one_that_trusted_proxies_report(
    settings: Any, dialect: str, trusted: Any, chain: str, address: str
) -> None:
    """It is the last address of the list that is not a trusted proxy's. A single address is used,
    even if it is in the proxies' network.
    """
    settings.RATELIMIT_GATEWAY_DIALECT, settings.RATELIMIT_TRUSTED_PROXIES = dialect, trusted
    said = {"METHOD": "GET", "URI": "/", "HOST": "shop.example", "ADDRESS": chain}
    asked = {f"HTTP_X_ORIGINAL_{name}": value for name, value in said.items()}
    asked |= {
        f"HTTP_X_FORWARDED_{name}": value for name, value in said.items() if name != "ADDRESS"
    }
    asked |= {
        "HTTP_X_FORWARDED_FOR": chain,
        "HTTP_X_RATELIMIT_SECRET": "secret",
        "REMOTE_ADDR": "10.0.0.1",
    }
    found = read_described_request(asked)
    assert found.META["REMOTE_ADDR"] == address
    assert found.META["HTTP_HOST"] == "shop.example"
    assert not [
        name for name in found.META if "ORIGINAL" in name or "FORWARDED" in name or "SECRET" in name
    ]


def test_header_names_are_matched_in_every_spelling() -> None:
    """Repeated headers are joined. A name with underscores is not accepted for one with hyphens,
    and names of any length are converted.
    """
    names = b"X-Original-URI x-original-uri X_Original-URI Cookie cookie content-type".split()
    names.append(b"y" * 500)
    meta = meta_of({"headers": [(name, b"%d" % number) for number, name in enumerate(names)]})
    assert meta == {
        "HTTP_X_ORIGINAL_URI": "0,1",
        "HTTP_COOKIE": "3; 4",
        "CONTENT_TYPE": "5",
        f"HTTP_{'Y' * 500}": "6",
    }
