"""The names of Celery that the documentation imports, for tests without Celery."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


def _shared_task(*args: Any, **options: Any) -> Any:
    return args[0] if args else lambda function: function


@pytest.fixture
def celery(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `from celery import shared_task` return a decorator that changes nothing."""
    package, signals = ModuleType("celery"), ModuleType("celery.signals")
    package.__dict__["shared_task"] = _shared_task
    signals.__dict__["worker_process_shutdown"] = SimpleNamespace(connect=lambda function: function)
    monkeypatch.setitem(sys.modules, "celery", package)
    monkeypatch.setitem(sys.modules, "celery.signals", signals)
