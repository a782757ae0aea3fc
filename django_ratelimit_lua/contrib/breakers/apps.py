"""The Django application `django_ratelimit_lua.contrib.breakers`."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

from ...extension import register


class BreakersConfig(AppConfig):
    """Registers the extension."""

    name = "django_ratelimit_lua.contrib.breakers"
    label = "ratelimit_breakers"
    verbose_name = _("Rate limits: circuit breakers")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from .extension import BreakersExtension

        register(BreakersExtension())
