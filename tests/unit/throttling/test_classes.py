"""DRF's throttle classes, used without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from rest_framework.test import APIRequestFactory

from django_ratelimit_lua.throttling import (
    AnonRateThrottle,
    ScopedRateThrottle,
    SimpleRateThrottle,
    UserRateThrottle,
)

RATES = {
    "anon": "30/h",
    "user": "50/h",
    "burst": "20/h",
    "sustained": "500/h",
    "uploads": "10/15m",
    "none": None,
}


class Anon(AnonRateThrottle):
    THROTTLE_RATES = RATES


class User(UserRateThrottle):
    THROTTLE_RATES = RATES


class Scoped(ScopedRateThrottle):
    THROTTLE_RATES = RATES


@pytest.mark.parametrize("rate", ["5/month", "ten/m", "5", "5/fortnight"])
def test_an_invalid_rate_names_its_scope(rate: str) -> None:
    """The error is raised when the throttle is created."""
    with pytest.raises(
        ImproperlyConfigured, match=f"scope 'anon': (Rate {rate!r}|5 is a number of slots)"
    ):
        type("Bad", (AnonRateThrottle,), {"THROTTLE_RATES": {"anon": rate}})()


def test_a_throttle_without_scope_or_rate_is_an_error() -> None:
    """The exceptions are those of DRF."""
    with pytest.raises(ImproperlyConfigured, match="scope"):
        SimpleRateThrottle()
    throttle = type("Half", (SimpleRateThrottle,), {"rate": "5/m"})()
    with pytest.raises(NotImplementedError):
        throttle.get_cache_key(None, None)


@pytest.mark.parametrize("proxies", [None, 0, 1, 2])
@pytest.mark.parametrize("throttle", [Anon, User, Scoped])
@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", "2001:db8:1:3::1"),
        ("[2001:db8:1:2::1]:4711", "[2001:DB8:1:2::2]", "[2001:db8:1:3::1]:4711"),
        ("198.51.100.9:4711", "198.51.100.9:4712", "198.51.100.8:4711"),
        ("::ffff:198.51.100.9", " 198.51.100.9", "::ffff:198.51.100.8"),
        ("fe80::1%eth0", "fe80::2", "fe80:0:0:1::1%eth0"),
        ("unknown", "made up", "198.51.100.8"),
    ],
)
def test_one_client_is_one_identity_for_throttles(
    one: str, same: str, other: str, throttle: Any, proxies: int | None, settings: Any
) -> None:
    """A /64 network is one client. Ports, brackets and zones are ignored."""
    settings.RATELIMIT_TRUSTED_PROXIES = 1
    settings.REST_FRAMEWORK = {"NUM_PROXIES": proxies}
    view = SimpleNamespace(throttle_scope="uploads")

    def key(address: str) -> str | None:
        header = f"203.0.113.1, {address}" + ", 10.0.0.1" * (proxies == 2)
        meta = {"HTTP_X_FORWARDED_FOR": header, "REMOTE_ADDR": "10.0.0.1"}
        if proxies == 0:
            meta = {"REMOTE_ADDR": address}
        request = APIRequestFactory().get("/", **meta)
        request.user = None
        asked = throttle()
        asked.scope = "uploads"
        found: str | None = asked.get_cache_key(request, view)
        return found

    assert key(one) == key(same) != key(other)


def test_the_mask_is_that_of_the_settings(settings: Any) -> None:
    """RATELIMIT_IPV6_MASK also applies if DRF's NUM_PROXIES determines the address."""
    settings.REST_FRAMEWORK = {"NUM_PROXIES": 0}
    request = APIRequestFactory().get("/", REMOTE_ADDR="2001:db8:1:2::1")
    for mask, network in ((64, "2001:db8:1:2::"), (48, "2001:db8:1::"), (128, "2001:db8:1:2::1")):
        settings.RATELIMIT_IPV6_MASK = mask
        assert Anon().get_ident(request) == network
