"""The Django application `django_ratelimit_lua.contrib.gateway`."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

from ...extension import register


class GatewayConfig(AppConfig):
    """Registers the extension."""

    name = "django_ratelimit_lua.contrib.gateway"
    label = "ratelimit_gateway"
    verbose_name = _("Rate limits: gateway")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from .extension import GatewayExtension

        register(GatewayExtension())
