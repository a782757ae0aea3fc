"""Runs the Python blocks of these pages.

`tests/contrib/all/test_framework_pages.py` runs the pages of other frameworks, and
`tests/tools/tutorial.py` follows the tutorial.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from sybil import Sybil
from sybil.parsers.rest import PythonCodeBlockParser

from tests.conftest import pytest_ignore_collect  # noqa: F401


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


@pytest.fixture
def django_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Django 6.0, let `django.tasks` be the package django-tasks."""
    if not find_spec("django.tasks"):
        monkeypatch.setitem(sys.modules, "django.tasks", import_module("django_tasks"))


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser()],
    patterns=["*.rst"],
    excludes=["tutorial.rst", "ninja.rst", "channels.rst", "task-queues.rst"],
    fixtures=["celery", "django_tasks"],
).pytest()
