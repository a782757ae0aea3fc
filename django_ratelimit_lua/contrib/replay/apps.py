"""The Django application `django_ratelimit_lua.contrib.replay`."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

from ...extension import Extension, register


class ReplayExtension(Extension):
    """The hooks of the optional app `replay`."""

    name = "replay"
    verbs = ("django_ratelimit_lua.contrib.replay.verbs",)


class ReplayConfig(AppConfig):
    """Registers the extension."""

    name = "django_ratelimit_lua.contrib.replay"
    label = "ratelimit_replay"
    verbose_name = _("Rate limits: log replay")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        register(ReplayExtension())
