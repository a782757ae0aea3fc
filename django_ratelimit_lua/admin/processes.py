"""The processes that decide limits, and the part that each has of the split limits."""

from __future__ import annotations

import time
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.translation import gettext as _

from ..engine.heartbeat import BEAT_SECONDS, USED_SECONDS, Process, processes
from ..exceptions import StoreError
from ..operations.words import breakable
from ..web.durations import duration_words
from .slots import SlotPages, may_see_slots


class ProcessPages(admin.ModelAdmin):  # type: ignore[type-arg]
    """The page, where the admin expects that of a model."""

    Media = SlotPages.Media

    def get_urls(self) -> list[Any]:
        """The one page."""
        name = f"{self.opts.app_label}_{self.opts.model_name}_changelist"
        return [path("", self.admin_site.admin_view(self.processes_view), name=name)]

    def processes_view(self, request: HttpRequest) -> HttpResponse:
        """List the processes."""
        if not may_see_slots(request):
            raise PermissionDenied
        found: list[Process] = []
        is_known = True
        try:
            found = processes()
        except StoreError as error:
            is_known = False
            messages.warning(request, _("Redis is unavailable: %s") % error)
        context = {
            **self.admin_site.each_context(request),
            "title": _("Processes"),
            "opts": self.opts,
            "media": self.media,
            "processes": [_shown(process) for process in found],
            "is_known": is_known,
            "used": duration_words(USED_SECONDS),
            "beat": duration_words(BEAT_SECONDS),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/django_ratelimit_lua/processes.html", context)


def _shown(process: Process) -> dict[str, Any]:
    """A process, for the template."""
    return {
        "host": breakable(process.host),
        "pid": process.pid,
        "age": duration_words(max(1.0, time.time() - process.since)),
        "parts": [
            {
                "name": breakable(part.name),
                "units": _("%(units)s of %(limit)s") % {"units": part.units, "limit": part.limit},
                "weight": f"{part.weight:g}",
            }
            for part in process.parts
        ],
    }
