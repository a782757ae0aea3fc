"""System checks of the statistics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec

from django.core.checks import CheckMessage, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured

from .conf import settings


@register(Tags.caches)
def check_metrics(**kwargs: object) -> Iterator[CheckMessage]:
    """Warn if a package is missing that the settings of metrics need."""
    with suppress(ImproperlyConfigured):  # The core's `check_settings` reports it.
        if settings.METRICS_TOKEN is not None and find_spec("prometheus_client") is None:
            text = "RATELIMIT_METRICS_TOKEN is set, but prometheus-client is not installed."
            yield _missing_package(text, "prometheus")
        if settings.OPENTELEMETRY and find_spec("opentelemetry") is None:
            text = "RATELIMIT_OPENTELEMETRY is True, but opentelemetry-api is not installed."
            yield _missing_package(text, "otel")


def _missing_package(text: str, extra: str) -> CheckMessage:
    hint = f"Install django-ratelimit-lua[{extra}]."
    return Warning(text, hint=hint, id="django_ratelimit_lua.W017")
