"""The settings are read once, validated, and compatible with django-ratelimit."""

from __future__ import annotations

import os
from ipaddress import ip_network
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_ratelimit_lua.conf import SETTINGS, conf, values


def test_fail_open_means_the_same_as_in_django_ratelimit(settings: Any) -> None:
    """FAIL_OPEN = True means "open" and False means "closed". ON_STORE_ERROR takes precedence."""
    del settings.RATELIMIT_ON_STORE_ERROR
    assert conf.ON_STORE_ERROR == "local"
    settings.RATELIMIT_FAIL_OPEN = False
    assert conf.ON_STORE_ERROR == "closed"
    settings.RATELIMIT_FAIL_OPEN = True
    assert conf.ON_STORE_ERROR == "open"
    settings.RATELIMIT_ON_STORE_ERROR = "closed"
    assert conf.ON_STORE_ERROR == "closed"


def test_every_setting_has_a_default(settings: Any) -> None:
    """Each setting can be read if the project does not set it."""
    for name, row in SETTINGS.items():
        if hasattr(settings, f"RATELIMIT_{name}"):
            delattr(settings, f"RATELIMIT_{name}")
        row.read()


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_documented(name: str) -> None:
    """Each setting has the text from which its documentation is generated."""
    row = SETTINGS[name]
    assert row.name == name
    assert row.doc


@pytest.mark.parametrize(
    ("name", "given", "used"),
    [
        ("CACHE_PREFIX", "site:", b"site:"),
        ("ALGORITHM", "gcra", "token_bucket"),
        ("TIMEOUT", 1, 1.0),
        ("PROXY_HEADER", "forwarded", "Forwarded"),
        ("TRUSTED_PROXIES", 2, 2),
        ("TRUSTED_PROXIES", ["10.0.0.0/8", "unix"], (ip_network("10.0.0.0/8"),)),
        ("TRUSTED_PROXIES", ["::ffff:203.0.113.0/120"], (ip_network("203.0.113.0/24"),)),
        ("IP_META_KEY", "HTTP_X_REAL_IP", "HTTP_X_REAL_IP"),
        ("IP_META_KEY", "os.getcwd", os.getcwd),
        ("VIEW", "os.getcwd", os.getcwd),
        ("EXCEPTION_CLASS", "builtins.KeyError", KeyError),
        ("HISTORY_DAYS", None, None),
        ("KEY_SECRET", None, ("tests",)),
        ("KEY_SECRET", b"other", (b"other",)),
        ("KEY_SECRET", ["new", b"old"], ("new", b"old")),
    ],
)
def test_a_setting_is_converted_when_it_is_read(
    name: str, given: Any, used: Any, settings: Any
) -> None:
    """Text becomes bytes, a dotted path its object, and networks are parsed."""
    setattr(settings, f"RATELIMIT_{name}", given)
    assert getattr(conf, name) == used


def test_a_setting_is_cached_until_settings_change(settings: Any) -> None:
    """A setting is read once and then costs as little as an attribute."""
    assert conf.TIMEOUT is conf.TIMEOUT
    assert "TIMEOUT" in vars(conf)
    with override_settings(RATELIMIT_TIMEOUT=3):
        assert conf.TIMEOUT == 3.0
    assert conf.TIMEOUT == 10.0
    settings.SECRET_KEY = "another"
    assert conf.KEY_SECRET == ("another",)


def test_digests_use_the_secrets_of_the_site(settings: Any) -> None:
    """Digests use `SECRET_KEY` and its fallbacks, unless they have secrets of their own."""
    settings.SECRET_KEY_FALLBACKS = ["old"]
    assert conf.KEY_SECRET == ("tests", "old")
    settings.RATELIMIT_KEY_SECRET = "own"
    assert conf.KEY_SECRET == ("own",)
    for wrong in (["hush", ""], []):
        settings.RATELIMIT_KEY_SECRET = wrong
        with pytest.raises(
            ImproperlyConfigured,
            match="RATELIMIT_KEY_SECRET is a list: must be text or bytes, or a",
        ):
            _ = conf.KEY_SECRET


def test_a_unix_socket_is_trusted_if_configured(settings: Any) -> None:
    """A Unix socket is trusted if "unix" is in the list of trusted proxies."""
    for given, trusts in ((None, False), (1, False), (["10.0.0.0/8"], False), (["unix"], True)):
        settings.RATELIMIT_TRUSTED_PROXIES = given
        assert conf.TRUSTS_SOCKET is trusts


def test_a_dotted_path_is_imported_at_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """`manage.py check` finds the path immediately."""
    monkeypatch.setattr(values, "known_paths", {})
    function = values.import_lazily("os.path.join", "Key")
    missing = values.import_lazily("nowhere.at_all", "Rate")
    assert values.known_paths == {"os.path.join": "Key", "nowhere.at_all": "Rate"}
    assert function("a", "b") == os.path.join("a", "b")
    with pytest.raises(ImproperlyConfigured, match=r"Rate 'nowhere.at_all' cannot be imported"):
        missing()


@pytest.mark.parametrize("name", ["ENABLE", "FAIL_OPEN"])
def test_the_text_of_an_environment_variable_is_not_a_flag(settings: Any, name: str) -> None:
    """The text "False" would be true, so it is an error that names the setting."""
    setattr(settings, f"RATELIMIT_{name}", "False")
    with pytest.raises(
        ImproperlyConfigured, match=f"RATELIMIT_{name} is 'False': must be true or false"
    ):
        SETTINGS[name].read()
