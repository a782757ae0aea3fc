"""The Django application `django_ratelimit_lua.contrib.gateway`, and its hooks."""

from __future__ import annotations

from types import MappingProxyType

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

from ...extension import Extension, register
from .descriptors import DESCRIPTOR, WORD


class GatewayExtension(Extension):
    """Adds descriptors to rules, and two verbs."""

    name = "gateway"
    verbs = ("django_ratelimit_lua.contrib.gateway.verbs",)
    options = MappingProxyType({WORD: DESCRIPTOR})


class GatewayConfig(AppConfig):
    """Registers the extension and the system check."""

    name = "django_ratelimit_lua.contrib.gateway"
    label = "ratelimit_gateway"
    verbose_name = _("Rate limits: gateway")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import secrets  # noqa: F401 - it registers the system check

        register(GatewayExtension())
