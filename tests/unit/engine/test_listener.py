"""The listener of messages, with a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_ratelimit_lua.engine import listener as module
from django_ratelimit_lua.engine.listener import Listener
from django_ratelimit_lua.exceptions import StoreError


@pytest.fixture
def stepping(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    """Yield a listener. The test runs its steps."""
    monkeypatch.setattr(module.provider, "compare_with_published", lambda loads: True)
    listener = Listener()
    yield listener
    listener._begin()


def test_settings_that_change_during_a_connect_are_read_again(
    stepping: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next step closes a connection that was made with the old settings and connects again."""
    get_store = module.get_store

    def changing(*, background: bool) -> Any:
        monkeypatch.setattr(module, "get_store", get_store)
        store = get_store(background=background)
        stepping.reconnect()
        return store

    monkeypatch.setattr(module, "get_store", changing)
    stepping._step()
    first = stepping._subscription
    stepping._step()
    assert stepping._subscription not in (None, first)


def test_changed_settings_wake_the_listener(stepping: Listener) -> None:
    """A listener that waits for a message is woken and connects again, and reports no error."""
    stepping._step()
    first = stepping._subscription
    assert first is not None
    stepping.reconnect()
    with pytest.raises(StoreError):
        first.receive(20)
    stepping._step()
    assert not stepping.error
    stepping._step()
    assert stepping._subscription not in (None, first)
