"""The Django application `django_ratelimit_lua.contrib.statistics`."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

from ...extension import register


class StatisticsConfig(AppConfig):
    """Registers the extension."""

    name = "django_ratelimit_lua.contrib.statistics"
    label = "ratelimit_statistics"
    verbose_name = _("Rate limits: statistics")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from .extension import StatisticsExtension

        register(StatisticsExtension())
