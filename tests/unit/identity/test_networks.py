"""Named networks: lists, and files that are read again when they change."""

from __future__ import annotations

import json
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured

from django_ratelimit_lua.conf import conf
from django_ratelimit_lua.identity import networks as module
from django_ratelimit_lua.identity.networks import networks
from django_ratelimit_lua.operations.health import health

GOOD = {"prefixes": [{"ipv4Prefix": "192.0.2.0/24"}, {"ipv6Prefix": "2001:db8::/64"}]}
BAD = ["", "{", "[]", "{}", '{"prefixes": []}', '{"prefixes": [{"x": 1}]}', '{"prefixes": 7}']
BAD += ['{"prefixes": [{"ipv4Prefix": "192.0.2.1/24"}]}', '{"prefixes": ["192.0.2.0/24"]}']


@pytest.fixture(autouse=True)
def _checks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECK_SECONDS", 0.0)


@pytest.fixture
def file(tmp_path: Path, settings: Any) -> Path:
    path = tmp_path / "google.json"
    settings.RATELIMIT_NETWORKS = {"google": str(path), "office": ["198.51.100.0/24"]}
    return path


def contains(address: str, name: str = "google") -> bool | None:
    """Return None if the network was never read."""
    found = networks.find(name)
    return None if found is None else ip_address(address) in found


def messages() -> list[str]:
    return [each.msg for each in run_checks(tags=["caches"]) if str(each.id).endswith("W041")]


def test_lists_and_files_are_networks(file: Path) -> None:
    """Ranges of IPv4 and IPv6 of any length, as Google, Bing and OpenAI publish them."""
    file.write_text(json.dumps(GOOD))
    assert contains("192.0.2.7") is True
    assert contains("2001:db8::7") is True
    assert contains("192.0.3.7") is False
    assert contains("2001:db8:1::7") is False
    assert contains("198.51.100.7", "office") is True
    assert messages() == []


@pytest.mark.parametrize("content", BAD)
def test_an_invalid_file_keeps_its_last_valid_content(file: Path, content: str) -> None:
    """The content before stays in force, health and `check` report it, and a new file is read."""
    file.write_text(json.dumps(GOOD))
    assert contains("192.0.2.7") is True
    file.write_text(content)
    assert contains("192.0.2.7") is True
    [problem] = messages()
    assert "last valid content stays" in problem
    assert any("last valid content stays" in each for each in health().problems)
    file.write_text(json.dumps({"prefixes": [{"ipv4Prefix": "203.0.113.0/24"}]}))
    assert contains("192.0.2.7") is False
    assert contains("203.0.113.7") is True
    assert messages() == []


@pytest.mark.parametrize("content", [None, *BAD])
def test_a_network_that_was_never_read_is_reported(file: Path, content: str | None) -> None:
    """It has no ranges, until its file is valid for the first time."""
    if content is not None:
        file.write_text(content)
    assert contains("192.0.2.7") is None
    assert any("rules that name it do not apply" in each for each in health().problems)
    [problem] = messages()
    assert "'google'" in problem
    file.write_text(json.dumps(GOOD))
    assert contains("192.0.2.7") is True


def test_a_file_that_is_removed_keeps_its_content(file: Path) -> None:
    """It is read again when it is back."""
    file.write_text(json.dumps(GOOD))
    assert contains("192.0.2.7") is True
    file.unlink()
    assert contains("192.0.2.7") is True
    assert len(messages()) == 1
    file.write_text(json.dumps({"prefixes": [{"ipv4Prefix": "203.0.113.0/24"}]}))
    assert contains("203.0.113.7") is True


@pytest.mark.parametrize(
    "value",
    [["google"], {"google": "relative.json"}, {"google": ["nowhere"]}, {"!x": []}, {"x": 7}],
)
def test_an_invalid_setting_shows_a_valid_value(value: object, settings: Any) -> None:
    """Names, ranges and paths are checked."""
    settings.RATELIMIT_NETWORKS = value
    with pytest.raises(ImproperlyConfigured, match="must be a dict"):
        conf.NETWORKS  # noqa: B018
