"""The processes that decide limits, and the part that each has of the split limits."""

from __future__ import annotations

import time
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from ..engine.heartbeat import BEAT_SECONDS, USED_SECONDS, Process, processes
from ..exceptions import StoreError
from ..operations.formatting import breakable
from ..web.durations import duration_words
from .pages import Page, page_response
from .slots import may_see_slots


class ProcessPage(Page):
    may_see = staticmethod(may_see_slots)

    def view(self, request: HttpRequest) -> HttpResponse:
        found: list[Process] = []
        is_known = True
        try:
            found = processes()
        except StoreError as error:
            is_known = False
            messages.warning(request, _("Redis is unavailable: %s") % error)
        context = {
            "title": _("Processes"),
            "processes": [_shown(process) for process in found],
            "is_known": is_known,
            "used": duration_words(USED_SECONDS),
            "beat": duration_words(BEAT_SECONDS),
        }
        return page_response(self, request, "processes.html", context)


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
