"""The printed configuration of proxies, and errors in the options."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
import yaml
from django.core.management import CommandError, call_command

from django_ratelimit_lua.contrib.gateway.conf import DIALECTS
from django_ratelimit_lua.contrib.gateway.verbs import FILES, GRPC
from docs.gateway_files import FOLDER, printed

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def gateway(settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.contrib.gateway.gateway_site"
    settings.RATELIMIT_GATEWAY_SECRET = "the-secret-of-the-tests"
    settings.RATELIMIT_TIMEOUT = 0.1


def told(proxy: str, **options: Any) -> str:
    out = StringIO()
    call_command("ratelimit", "proxy", proxy, stdout=out, stderr=out, **options)
    return out.getvalue()


@pytest.mark.parametrize("proxy", FILES)
def test_the_documentation_shows_the_printed_configurations(proxy: str) -> None:
    """The text is identical, and `make docs` writes it."""
    assert (FOLDER / FILES[proxy]).read_text() == printed(proxy)


def test_missing_settings_and_urls_are_named() -> None:
    """The command names the missing setting, the missing URL or the invalid address."""
    assert 'Set RATELIMIT_GATEWAY_DIALECT = "nginx": it is None.' in told("nginx")
    text = "'nowhere' is not an address; write host:port, such as 127.0.0.1:8000."
    for options, problem in (
        ({"upstream": "nowhere"}, text),
        ({"gateway": "a:b"}, "'a:b' is not an address"),
        ({"upstream": "a@b:80"}, "'a@b:80' is not an address"),
        ({"listen": "127.0.0.1:80/x"}, "'127.0.0.1:80/x' is not an address"),
        ({"user": "$remote_user"}, "--user needs RATELIMIT_GATEWAY_USER_HEADER"),
    ):
        with pytest.raises(CommandError, match=problem.replace("/", "[/]")):
            told("nginx", **options)


def test_a_gateway_with_a_secret_is_required(settings: Any) -> None:
    """Without a secret or the gateway's URLs, no proxy could call the gateway."""
    settings.RATELIMIT_GATEWAY_SECRET = None
    for proxy, purpose in (("envoy", "check"), (GRPC, "protocol")):
        with pytest.raises(
            CommandError, match=f"RATELIMIT_GATEWAY_SECRET has no secret for {purpose}"
        ):
            told(proxy)
    check = {"secret": "the-secret-of-check", "for": "check"}
    settings.RATELIMIT_GATEWAY_SECRET = {"of check": check, "other": "the-other-secret"}
    assert "the-secret-of-check" in told("envoy")
    assert "the-other-secret" in told(GRPC)
    settings.ROOT_URLCONF = "tests.urls"
    with pytest.raises(CommandError, match=r"django_ratelimit_lua\.contrib\.gateway\.urls"):
        told("envoy")


@pytest.mark.parametrize("proxy", DIALECTS)
def test_options_are_written_to_the_configuration(settings: Any, proxy: str) -> None:
    """They are the headers, the user in the proxy's syntax, and the policy."""
    settings.RATELIMIT_GATEWAY_USER_HEADER, settings.RATELIMIT_HEADERS = "X-Auth-User", "x"
    closed, opened = told(proxy), told(proxy, fail="open", user="somebody")
    assert closed != opened
    assert ("X-RateLimit-Remaining" in closed) == (proxy != "traefik")
    assert "somebody" in opened
    assert "X-Auth-User" in closed
    if proxy in ("traefik", "envoy"):
        assert yaml.safe_load(closed)
        assert yaml.safe_load(opened)


@pytest.mark.parametrize("fail", ["open", "closed"])
@pytest.mark.parametrize("proxy", ["envoy", GRPC, "traefik"])
def test_an_ipv6_address_is_quoted_in_yaml(proxy: str, fail: str) -> None:
    """Two colons have another meaning in YAML."""
    places = {"listen": "[::]:8080", "upstream": "[::1]:3000", "gateway": "[2001:db8::1]:8001"}
    text = told(proxy, fail=fail, **places)
    written = str(yaml.safe_load(text))
    for address in ("::1", "2001:db8::1", *(["::"] if proxy != "traefik" else [])):
        assert f"'address': '{address}'" in written or f"'http://[{address}]:" in written


@pytest.mark.parametrize("proxy", FILES)
def test_the_timeout_for_the_gateway_is_configurable(proxy: str) -> None:
    """It is a second by default, and has to be longer than the gateway's timeout for Redis."""
    usual, longer = told(proxy, fail="open"), told(proxy, fail="open", timeout=2.5)
    words = ("1000ms", "2500ms") if "envoy" not in proxy else ("timeout: 1s", "timeout: 2.5s")
    assert (words[0] in usual, words[1] in longer) == (True, True)
    for seconds in (0.1, 0, 3601, float("nan")):
        with pytest.raises(CommandError, match="must be longer than RATELIMIT_TIMEOUT"):
            told(proxy, timeout=seconds)


@pytest.mark.parametrize("proxy", FILES)
def test_a_port_without_a_host_means_all_addresses(proxy: str) -> None:
    """Not every proxy accepts `--listen :80` as it is."""
    assert told(proxy, listen=":80") == told(proxy, listen="0.0.0.0:80")


def test_a_project_without_urls_gets_an_error(settings: Any) -> None:
    """For example, a project of workers has no URLs."""
    del settings.ROOT_URLCONF
    with pytest.raises(CommandError, match="set ROOT_URLCONF"):
        call_command("ratelimit", "proxy", "nginx")


def test_envoy_over_grpc_needs_no_url(settings: Any) -> None:
    """It calls another server, on a port of its own, and a descriptor contains the user."""
    settings.ROOT_URLCONF = "tests.urls"
    closed, opened = told(GRPC), told(GRPC, fail="open")
    assert "port_value: 8081" in closed
    assert "failure_mode_deny: true" in closed
    assert "failure_mode_deny: false" in opened
    with pytest.raises(CommandError, match="a descriptor contains"):
        told(GRPC, user="x")
