"""The configuration of proxies: what is printed, and what cannot be."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
import yaml
from django.core.management import CommandError, call_command

from django_ratelimit_lua.gateway.proxies import FILES, GRPC
from docs.gateway_files import FOLDER, printed


@pytest.fixture(autouse=True)
def gateway(settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.gateway_site"
    settings.RATELIMIT_GATEWAY_SECRET = "the-secret-of-the-tests"


def told(proxy: str, **options: str) -> str:
    out = StringIO()
    call_command("ratelimit_proxy", proxy, stdout=out, stderr=out, **options)
    return out.getvalue()


@pytest.mark.parametrize("proxy", FILES)
def test_the_documentation_shows_what_is_printed(proxy: str) -> None:
    """Letter by letter; `make docs` writes it anew."""
    assert (FOLDER / FILES[proxy]).read_text() == printed(proxy)


def test_what_is_missing_is_said() -> None:
    """The setting, the URL, or what is wrong with an address; and which dialect the site has."""
    assert 'Set RATELIMIT_GATEWAY_DIALECT = "nginx": it is None.' in told("nginx")
    for options, problem in (
        ({"upstream": "nowhere"}, "'nowhere' is no address; write host:port, such as 127.0.0.1:8000."),
        ({"gateway": "a:b"}, "'a:b' is no address"),
        ({"gateway": ":8000"}, "':8000' is no address"),
        ({"upstream": "a@b:80"}, "'a@b:80' is no address"),
        ({"listen": "127.0.0.1:80/x"}, "'127.0.0.1:80/x' is no address"),
        ({"user": "$remote_user"}, "Set RATELIMIT_GATEWAY_USER_HEADER"),
    ):
        with pytest.raises(CommandError, match=problem.replace("/", "[/]")):
            told("nginx", **options)


def test_there_has_to_be_a_gateway_with_a_secret(settings: Any) -> None:
    """Else no proxy could ask."""
    settings.RATELIMIT_GATEWAY_SECRET = None
    with pytest.raises(CommandError, match="RATELIMIT_GATEWAY_SECRET is not set"):
        told("envoy")
    settings.ROOT_URLCONF = "tests.acceptance.site"
    with pytest.raises(CommandError, match=r"django_ratelimit_lua\.gateway\.urls"):
        told("envoy")


@pytest.mark.parametrize("proxy", FILES)
def test_what_is_chosen_is_written(settings: Any, proxy: str) -> None:
    """The headers of `RATELIMIT_HEADERS`, the user in the proxy's words, open or closed."""
    settings.RATELIMIT_GATEWAY_USER_HEADER, settings.RATELIMIT_HEADERS = "X-Auth-User", "x"
    closed, opened = told(proxy), told(proxy, fail="open", user="somebody")
    assert closed != opened
    assert ("X-RateLimit-Remaining" in closed) == (proxy != "traefik")
    assert "somebody" in opened
    assert "X-Auth-User" in closed
    if proxy in ("traefik", "envoy"):
        assert yaml.safe_load(closed)
        assert yaml.safe_load(opened)


@pytest.mark.parametrize("proxy", [*FILES, GRPC])
def test_a_port_alone_is_all_addresses(proxy: str) -> None:
    """`--listen :80`, which not every proxy understands."""
    assert told(proxy, listen=":80") == told(proxy, listen="0.0.0.0:80")


def test_envoy_over_grpc_needs_no_url_and_no_secret(settings: Any) -> None:
    """It asks another server; what is printed is what the documentation shows."""
    settings.ROOT_URLCONF, settings.RATELIMIT_GATEWAY_SECRET = "tests.acceptance.site", None
    assert (FOLDER / f"{GRPC}.yaml").read_text() == printed(GRPC)
    closed, opened = told(GRPC), told(GRPC, fail="open", gateway="127.0.0.1:9")
    assert "port_value: 8081" in closed
    assert "failure_mode_deny: true" in closed
    assert "failure_mode_deny: false" in opened
    assert yaml.safe_load(closed)
    for options, problem in (({"gateway": "a:b"}, "'a:b' is no address"), ({"user": "x"}, "a descriptor says")):
        with pytest.raises(CommandError, match=problem):
            told(GRPC, **options)
