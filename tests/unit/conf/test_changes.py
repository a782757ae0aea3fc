"""Functions that run when settings change."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import override_settings

from django_ratelimit_lua import conf as settings_room
from django_ratelimit_lua.conf import SETTINGS, conf, on_change


def test_listeners_run_after_a_changed_setting_was_read_again(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function runs for its settings, named in full or by a prefix, and for no others."""
    heard: list[object] = []
    monkeypatch.setattr(settings_room, "_receivers", [*settings_room._receivers])
    on_change(("RATELIMIT_*",), lambda: heard.append(("ours", conf.SLOT_SECONDS)))
    on_change(("RATELIMIT_SLOT_SECONDS", "CACHES"), lambda: heard.append("slots or caches"))
    with override_settings(RATELIMIT_SLOT_SECONDS=7):
        assert heard == [("ours", 7), "slots or caches"]
    assert heard[2:] == [("ours", conf.SLOT_SECONDS), "slots or caches"]
    settings.CACHES = dict(settings.CACHES)
    settings.SECRET_KEY = "another"
    assert heard[4:] == ["slots or caches"]


def test_every_setting_that_code_uses_exists() -> None:
    """A misspelt name would never change."""
    names = {name for names, _ in settings_room._receivers for name in names}
    others = {"RATELIMIT_*", "CACHES", "INSTALLED_APPS", "SECRET_KEY", "SECRET_KEY_FALLBACKS"}
    assert names - others <= {f"RATELIMIT_{name}" for name in SETTINGS}
