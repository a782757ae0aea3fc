"""System checks of the gateway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from django.core.checks import CheckMessage, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured

from ...rules.ruleset import settings_rules
from .descriptors import WORD


@register(Tags.caches)
def check_grpc(**kwargs: Any) -> Iterator[CheckMessage]:
    """Rules for descriptors are of use: Envoy can send them."""
    with suppress(ImproperlyConfigured):  # `check_rules` reports it.
        described = ", ".join(rule.name for rule in settings_rules() if WORD in rule.extra and rule.mode != "off")
        if described and find_spec("grpc") is None:
            text = f"Rules are for Envoy's descriptors, but there is no grpcio: {described}."
            yield Warning(text, hint="Install django-ratelimit-lua[grpc].", id="django_ratelimit_lua.W017")
