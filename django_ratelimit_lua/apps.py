"""The Django application."""

from __future__ import annotations

import logging
from importlib.util import find_spec

from django.apps import AppConfig
from django.db.models.signals import post_migrate, pre_migrate
from django.utils.translation import gettext_lazy as _


class RatelimitConfig(AppConfig):
    """Registers the system checks, and starts publishing the rules of the database."""

    name = "django_ratelimit_lua"
    verbose_name = _("Rate limits")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register checks, signals and DRF's handler for `Ratelimited`."""
        from . import checks  # noqa: F401
        from .models import audit
        from .publishing import triggers

        _enable_loggers()
        _set_drf_handler()
        audit.connect()
        triggers.connect()
        # Without a sender: before the receivers of any app, which may make decisions.
        pre_migrate.connect(_before_migration, dispatch_uid="django_ratelimit_lua.migrating")
        post_migrate.connect(
            _after_migration, sender=self, dispatch_uid="django_ratelimit_lua.migrated"
        )


def _enable_loggers() -> None:
    """Enable the loggers of this package again.

    `LOGGING` disables loggers that exist before `django.setup`, by default. They exist if the
    settings, or the module of an ASGI application, import this package.
    """
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("django_ratelimit_lua"):
            logging.getLogger(name).disabled = False


def _set_drf_handler() -> None:
    """Make our exception handler DRF's default. A project's own `EXCEPTION_HANDLER` is kept.

    DRF's own handler treats `Ratelimited` as any other `PermissionDenied`, and responds with 403.
    """
    if find_spec("rest_framework") is not None:
        from rest_framework.settings import DEFAULTS

        DEFAULTS["EXCEPTION_HANDLER"] = "django_ratelimit_lua.throttling.exception_handler"


def _before_migration(**kwargs: object) -> None:
    """Report no missing tables while they are created."""
    from .publishing import triggers

    triggers.before_migration()


def _after_migration(using: str, plan: object = (), **kwargs: object) -> None:
    """Publish the changes that migrations have made to rules, even if they removed the tables."""
    from .publishing import triggers

    triggers.after_migration(using, has_changed=bool(plan))
