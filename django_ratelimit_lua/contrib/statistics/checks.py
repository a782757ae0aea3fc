"""System checks of the statistics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from django.core.checks import CheckMessage, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured

from .conf import settings


@register(Tags.caches)
def check_metrics(**kwargs: Any) -> Iterator[CheckMessage]:
    """Warn if a package is missing that the settings for metrics need."""
    with suppress(ImproperlyConfigured):  # The core's `check_settings` reports it.
        for is_used, module, extra, text in (
            (
                settings.METRICS_TOKEN is not None,
                "prometheus_client",
                "prometheus",
                "RATELIMIT_METRICS_TOKEN is set, but there is no prometheus-client.",
            ),
            (
                settings.OPENTELEMETRY,
                "opentelemetry",
                "otel",
                "RATELIMIT_OPENTELEMETRY is True, but opentelemetry-api is not installed.",
            ),
        ):
            if is_used and find_spec(module) is None:
                hint = f"Install django-ratelimit-lua[{extra}]."
                yield Warning(text, hint=hint, id="django_ratelimit_lua.W017")
