"""Pages on the admin's index, which lists models alone: so they stand there as some that have no table."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig, apps
from django.contrib import admin
from django.http import HttpRequest, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.translation import gettext_lazy as _

from .bans import BanPages
from .inspector import may_inspect
from .processes import ProcessPages
from .slots import SlotPages, may_see_slots
from .statistics import StatisticsPages, may_see


class _Options:
    """What the admin asks of a model's `_meta`."""

    app_label = "django_ratelimit_lua"
    concrete_model = None
    abstract = swapped = is_composite_pk = False

    def __init__(self, object_name: str, words: Any) -> None:
        self.object_name, self.model_name = object_name, object_name.lower()
        self.verbose_name = self.verbose_name_plural = words
        self.label, self.label_lower = f"{self.app_label}.{object_name}", f"{self.app_label}.{self.model_name}"

    @property
    def app_config(self) -> AppConfig:
        """Of our app."""
        return apps.get_app_config(self.app_label)


class InspectorEntry:
    """The inspector, as the admin registers a model."""

    _meta = _Options("Inspector", _("Inspector"))


class StatisticsEntry:
    """The statistics, as the admin registers a model."""

    _meta = _Options("Statistics", _("Statistics"))


class BansEntry:
    """The bans, as the admin registers a model."""

    _meta = _Options("Bans", _("Bans"))


class SlotsEntry:
    """The slots that are held, as the admin registers a model."""

    _meta = _Options("Slots", _("Slots"))


class ProcessesEntry:
    """The processes, as the admin registers a model."""

    _meta = _Options("Processes", _("Processes"))


class PageAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """A page, for those who may see it."""

    def may_see(self, request: HttpRequest) -> bool:
        """Whether they may."""
        raise NotImplementedError

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.may_see(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.may_see(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class InspectorEntryAdmin(PageAdmin):
    """Leads to the inspector."""

    def may_see(self, request: HttpRequest) -> bool:
        """Whether they may."""
        return may_inspect(request)

    def get_urls(self) -> list[Any]:
        """The one page that a model of the index needs."""
        name = f"{self.opts.app_label}_{self.opts.model_name}_changelist"
        return [path("", self.admin_site.admin_view(self._to_inspector), name=name)]

    def _to_inspector(self, request: HttpRequest) -> HttpResponseRedirect:
        inspector = reverse("admin:django_ratelimit_lua_inspect", current_app=self.admin_site.name)
        return HttpResponseRedirect(inspector)


class StatisticsEntryAdmin(PageAdmin, StatisticsPages):
    """The statistics."""

    def may_see(self, request: HttpRequest) -> bool:
        """Whether they may."""
        return may_see(request)


class BansEntryAdmin(PageAdmin, BanPages):
    """The bans."""

    def may_see(self, request: HttpRequest) -> bool:
        """Whether they may."""
        return may_inspect(request)


class SlotsEntryAdmin(PageAdmin, SlotPages):
    """The slots that are held."""

    def may_see(self, request: HttpRequest) -> bool:
        """Whether they may."""
        return may_see_slots(request)


class ProcessesEntryAdmin(PageAdmin, ProcessPages):
    """The processes."""

    def may_see(self, request: HttpRequest) -> bool:
        """Whether they may."""
        return may_see_slots(request)
