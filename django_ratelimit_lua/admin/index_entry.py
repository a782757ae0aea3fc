"""The inspector on the admin's index, which lists models alone: so it stands there as one that has no table."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig, apps
from django.contrib import admin
from django.http import HttpRequest, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.translation import gettext_lazy as _

from .inspector import may_inspect


class _Options:
    """What the admin asks of a model's `_meta`."""

    app_label = "django_ratelimit_lua"
    object_name = "Inspector"
    model_name = "inspector"
    verbose_name = verbose_name_plural = _("Inspector")
    concrete_model = None
    abstract = swapped = is_composite_pk = False
    label, label_lower = f"{app_label}.{object_name}", f"{app_label}.{model_name}"

    @property
    def app_config(self) -> AppConfig:
        """Of our app."""
        return apps.get_app_config(self.app_label)


class InspectorEntry:
    """The inspector, as the admin registers a model."""

    _meta = _Options()


class InspectorEntryAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Leads to the inspector, for those who may see it."""

    def get_urls(self) -> list[Any]:
        """The one page that a model of the index needs."""
        name = f"{self.opts.app_label}_{self.opts.model_name}_changelist"
        return [path("", self.admin_site.admin_view(self._to_inspector), name=name)]

    def _to_inspector(self, request: HttpRequest) -> HttpResponseRedirect:
        inspector = reverse("admin:django_ratelimit_lua_inspect", current_app=self.admin_site.name)
        return HttpResponseRedirect(inspector)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return may_inspect(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may_inspect(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
