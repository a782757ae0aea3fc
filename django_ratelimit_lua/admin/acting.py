"""Every change made in the admin is noted as made by who is logged in."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse

from ..models.tracked import acting


class ActingAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """A `ModelAdmin` whose changes are noted as made by who is logged in."""

    class Media:
        css = {"all": ("django_ratelimit_lua/admin.css",)}  # noqa: RUF012 - Django's way

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Adding and changing."""
        with acting(request.user):
            return super().changeform_view(request, *args, **kwargs)

    def changelist_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Changing in the list, and actions."""
        with acting(request.user):
            return super().changelist_view(request, *args, **kwargs)

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Deleting."""
        with acting(request.user):
            return super().delete_view(request, object_id, extra_context)
