"""The page of the processes that decide limits, and of the weights of their hosts."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from ..conf import MAX_WEIGHT
from ..engine.heartbeat import Host, hosts, live_processes
from ..models import RateLimitHost
from ..models.audit import one_change
from ..publishing.publish import primary
from .pages import Page, may, may_see_rules, page_response, read_or_warn


class WeightsForm(forms.Form):
    """A weight for each host. Empty: the `RATELIMIT_WEIGHT` of its processes."""

    prefix = "weight"

    def __init__(self, names: Iterable[str], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in names:
            self.fields[name] = forms.IntegerField(
                label=_("Weight of %(host)s") % {"host": name},
                min_value=1,
                max_value=MAX_WEIGHT,
                required=False,
            )

    def save(self, stored: dict[str, int]) -> None:
        """Save the weights that differ from the stored ones, as one change."""
        with one_change(primary()):
            for name, weight in self.cleaned_data.items():
                if weight is None:
                    RateLimitHost.objects.filter(name=name).delete()
                elif weight != stored.get(name):
                    RateLimitHost.objects.update_or_create(name=name, defaults={"weight": weight})


class ProcessPage(Page):
    """The processes with their last heartbeat, by host, and the weights of the hosts."""

    may_see = staticmethod(may_see_rules)

    def view(self, request: HttpRequest) -> HttpResponse:
        found = read_or_warn(request, live_processes)
        stored = dict(RateLimitHost.objects.values_list("name", "weight"))
        live = hosts(found or (), stored)
        gone = [Host(name, 0, ()) for name in sorted({*stored} - {host.name for host in live})]
        shown = [*live, *gone]
        posted = None
        if request.method == "POST":
            if not may(request, "change_ratelimitrule"):
                raise PermissionDenied
            posted = request.POST
        form = WeightsForm([host.name for host in shown], posted, initial=stored)
        if form.is_valid():
            form.save(stored)
            messages.success(request, _("The weights are saved."))
            return HttpResponseRedirect(request.get_full_path())
        total = sum(host.weight for host in live)
        now = time.time()
        context = {
            "rows": [
                {
                    "host": host,
                    "field": form[host.name],
                    "percent": 100 * host.weight / total if host.processes else 0,
                    "ages": [
                        (process, max(1.0, now - process.since)) for process in host.processes
                    ],
                }
                for host in shown
            ],
            "number": len(found or ()),
            "is_known": found is not None,
            "may_edit": may(request, "change_ratelimitrule"),
        }
        return page_response(self, request, "processes.html", context)
