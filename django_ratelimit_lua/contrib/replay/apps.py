"""The Django application `django_ratelimit_lua.contrib.replay`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from django.apps import AppConfig
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...extension import Extension, register

if TYPE_CHECKING:
    from ...models import RateLimitRule


class ReplayExtension(Extension):
    """The hooks of the optional app `replay`."""

    name = "replay"
    verbs = ("django_ratelimit_lua.contrib.replay.verbs.replay",)

    def links(self, request: HttpRequest, rule: RateLimitRule) -> Iterable[tuple[str, str]]:
        """Add the replay page to the form of a rule, for users who may change the rule."""
        from ...operations.admin_urls import admin_url

        if rule.exempt:
            return ()
        if not request.user.has_perm("django_ratelimit_lua.change_ratelimitrule"):
            return ()
        return [(gettext("Replay a log"), admin_url(request, "ratelimit_replay_replay", rule.pk))]


class ReplayConfig(AppConfig):
    """Registers the extension."""

    name = "django_ratelimit_lua.contrib.replay"
    label = "ratelimit_replay"
    verbose_name = _("Rate limits: log replay")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        register(ReplayExtension())
