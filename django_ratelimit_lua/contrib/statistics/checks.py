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
        for name, package, extra in (
            ("METRICS_TOKEN", "prometheus_client", "prometheus"),
            ("OPENTELEMETRY", "opentelemetry", "otel"),
        ):
            if getattr(settings, name) and find_spec(package) is None:
                yield Warning(
                    f"RATELIMIT_{name} is set, but {package} is not installed.",
                    hint=f"Install django-ratelimit-lua[{extra}].",
                    id="django_ratelimit_lua.W017",
                )
