"""The page of the processes that decide limits, with their parts of split limits."""

from __future__ import annotations

import time

from django.http import HttpRequest, HttpResponse

from ..engine.heartbeat import BEAT_SECONDS, USED_SECONDS, processes
from .pages import Page, may_see_rules, page_response, read_or_warn


class ProcessPage(Page):
    """The processes with their last heartbeat."""

    may_see = staticmethod(may_see_rules)

    def view(self, request: HttpRequest) -> HttpResponse:
        found = read_or_warn(request, processes)
        context = {
            "processes": [
                (process, max(1.0, time.time() - process.since)) for process in found or ()
            ],
            "is_known": found is not None,
            "used": USED_SECONDS,
            "beat": BEAT_SECONDS,
        }
        return page_response(self, request, "processes.html", context)
