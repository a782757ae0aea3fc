"""The Django application."""

from __future__ import annotations

from django.apps import AppConfig


class RatelimitConfig(AppConfig):
    """Registers the system checks."""

    name = "django_ratelimit_lua"
    verbose_name = "Rate limits"

    def ready(self) -> None:
        """Register the system checks."""
        from . import checks  # noqa: F401
