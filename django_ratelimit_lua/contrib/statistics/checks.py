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
    """The packages that the settings of metrics need are installed."""
    with suppress(ImproperlyConfigured):  # The core's `check_settings` reports it.
        if settings.METRICS_TOKEN is not None and find_spec("prometheus_client") is None:
            yield _missing(
                "RATELIMIT_METRICS_TOKEN is set, but there is no prometheus-client.", "prometheus"
            )
        if settings.OPENTELEMETRY and find_spec("opentelemetry") is None:
            yield _missing(
                "RATELIMIT_OPENTELEMETRY is True, but opentelemetry-api is not installed.", "otel"
            )


def _missing(text: str, extra: str) -> CheckMessage:
    return Warning(
        text, hint=f"Install django-ratelimit-lua[{extra}].", id="django_ratelimit_lua.W017"
    )
