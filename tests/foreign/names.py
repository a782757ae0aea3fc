"""The names that django-ratelimit's tests import from its `core`, two of them private."""

from __future__ import annotations

from django.http import HttpRequest

from django_ratelimit_lua import Rate
from django_ratelimit_lua.core import get_usage, is_ratelimited
from django_ratelimit_lua.identity.address import client_address

__all__ = ["_get_ip", "_split_rate", "get_usage", "is_ratelimited"]


def _split_rate(rate: str) -> tuple[int, float]:
    parsed = Rate.parse(rate)
    return parsed.limit, parsed.period


def _get_ip(request: HttpRequest) -> str:
    return str(client_address(request).address)
