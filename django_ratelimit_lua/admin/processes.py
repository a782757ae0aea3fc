"""The page of the processes that decide limits, and of the weights of their hosts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from ..conf.values import MAX_WEIGHT
from ..engine.heartbeat import Host, Process, group_by_host, live_processes
from ..exceptions import StoreError
from ..models import RateLimitHost
from ..models.audit import one_change
from ..models.rule import rules_database
from ..rules.provider import loaded_ruleset
from ..rules.ruleset import Ruleset
from ..views.call_sites import constant_limits, known_call_sites
from .pages import Context, Page, may, may_see_rules, page_response


def has_split_limits() -> bool:
    """Return whether a limit is split: at a call site, or of a rule in force."""
    sites = (site for name in known_call_sites.names() for site in known_call_sites.get(name))
    if any(limit.split for site in sites for limit in site.limits):
        return True
    ruleset = loaded_ruleset()
    return ruleset is not None and _has_split_rules(ruleset)


@lru_cache(maxsize=1)  # Each page of the admin calls it.
def _has_split_rules(ruleset: Ruleset) -> bool:
    rules = [rule for rule in ruleset.rules if rule.mode != "off"]
    return any(limit.split for rule in rules for limit in constant_limits(rule))


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
        with one_change(rules_database()):
            for name, weight in self.cleaned_data.items():
                if weight is None:
                    RateLimitHost.objects.filter(name=name).delete()
                elif weight != stored.get(name):
                    RateLimitHost.objects.update_or_create(name=name, defaults={"weight": weight})


class ProcessPage(Page):
    """The processes with their last heartbeat, by host, and the weights of the hosts."""

    may_see = staticmethod(may_see_rules)

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Show the entry of the menu only if a limit is split."""
        return super().has_module_permission(request) and has_split_limits()

    def view(self, request: HttpRequest) -> HttpResponse:
        """Show the processes, or save the weights that were sent. Raises `PermissionDenied`."""
        is_known = True
        processes: Sequence[Process] = ()
        try:
            processes = live_processes()
        except StoreError:  # The page shows a warning.
            is_known = False
        stored = dict(RateLimitHost.objects.values_list("name", "weight"))
        live = group_by_host(processes, stored)
        gone = [Host(name, 0, ()) for name in sorted(stored.keys() - {host.name for host in live})]
        listed = [*live, *gone]
        posted = None
        if request.method == "POST":
            if not may(request, "change_ratelimitrule"):
                raise PermissionDenied
            posted = request.POST
        form = WeightsForm([host.name for host in listed], posted, initial=stored)
        if form.is_valid():
            form.save(stored)
            messages.success(request, _("The weights are saved."))
            return HttpResponseRedirect(request.get_full_path())
        total = sum(host.weight for host in live)
        context = {
            "rows": [_host_row(host, total, form) for host in listed],
            "number": len(processes),
            "is_known": is_known,
            "may_edit": may(request, "change_ratelimitrule"),
        }
        return page_response(self, request, "processes.html", context)


def _host_row(host: Host, total: int, form: WeightsForm) -> Context:
    """Return a host as the page shows it, with its share of the `total` of the weights."""
    now = time.time()
    return {
        "host": host,
        "field": form[host.name],
        "percent": 100 * host.weight / total if host.processes else 0,
        "ages": [(process, max(1.0, now - process.since)) for process in host.processes],
    }
