"""The Django application `django_ratelimit_lua.contrib.breakers`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

from ...extension import Extension, register


class BreakersExtension(Extension):
    name = "breakers"
    verbs = ("django_ratelimit_lua.contrib.breakers.verbs.breakers",)

    def snapshot(self, using: str) -> Any:
        from ...models import RateLimitBreaker

        return [row.published() for row in RateLimitBreaker.objects.using(using)]

    def load(self, part: Any, before: Any, problems: list[str]) -> Any:
        from .rows import read_rows

        return read_rows(part or (), before or {}, problems)

    def on_message(self, words: Collection[bytes]) -> None:
        from .circuits import circuits

        circuits.heard(words)

    def on_gap(self) -> None:
        from .circuits import circuits

        circuits.doubt()

    def is_urgent(self) -> bool:
        from .circuits import circuits

        return circuits.in_use()


class BreakersConfig(AppConfig):
    """Registers the extension."""

    name = "django_ratelimit_lua.contrib.breakers"
    label = "ratelimit_breakers"
    verbose_name = _("Rate limits: circuit breakers")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        register(BreakersExtension())
