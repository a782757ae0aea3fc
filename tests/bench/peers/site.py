"""The site of `requests.py`: a view under each installed limiter, on WSGI and ASGI.

It has no middleware, and its views respond immediately, so the share of the limiter is largest.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.bench.settings")
django.setup()
logging.disable()

from django.core.asgi import get_asgi_application  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.urls import path  # noqa: E402

from tests.bench.peers.limiters import (  # noqa: E402
    ASYNC_VIEWS,
    VIEWS,
    Decorate,
    async_undecorated,
    slug,
    undecorated,
)


def _paths(prefix: str, ways: Mapping[str, Decorate], make: Callable[[], Any]) -> Iterator[Any]:
    for name, decorate in ways.items():
        for limits in (1, 3):
            with suppress(ImportError):
                yield path(f"{prefix}/{slug(name)}/{limits}", decorate(limits, make()))


urlpatterns = [
    *_paths("plain", VIEWS, undecorated),
    *_paths("async", ASYNC_VIEWS, async_undecorated),
]
wsgi, asgi = get_wsgi_application(), get_asgi_application()
