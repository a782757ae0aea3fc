"""Trying a rule on an access log that is uploaded: what the rule would have done, and what every other limit would."""

from __future__ import annotations

import time
from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import path
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...admin.pages import page_response
from ...conf import conf
from ...exceptions import StoreError
from ...models import RateLimitRule
from ...rules.rule import compile_rule
from ...rules.ruleset import Ruleset
from ...store import get_store
from .api import Log, ReplayTooSlowError, UnreadableLogError, replay
from .report import as_json, plots

MAX_BYTES = 64 * 1024 * 1024
"""Bytes of a log, as it is sent: a gzipped one may be larger once it is unpacked."""
MAX_UNPACKED = 1024 * 1024 * 1024
"""Bytes of a log, once it is unpacked: no page has time for more, and a file of 64 MiB can hold a thousand times that.
"""
MAX_SECONDS = 20.0
"""For how long a page may take; what the log has beyond that is not looked at, and the page says so."""


class LogForm(forms.Form):
    """A log to try a rule on."""

    log = forms.FileField(
        label=gettext_lazy("Access log"),
        help_text=gettext_lazy("From nginx, Apache, Caddy, gunicorn or AWS, also gzipped; at most 64 MiB."),
    )

    def clean_log(self) -> Any:
        """Refuse a log that is too large for a page."""
        log = self.cleaned_data["log"]
        if log.size > MAX_BYTES:
            raise forms.ValidationError(_("The log is larger than 64 MiB. Use manage.py ratelimit replay."))
        return log


class LogReplay(admin.ModelAdmin):  # type: ignore[type-arg]
    """The part of the admin of rules that tries one on a log."""

    def get_urls(self) -> list[Any]:
        """The page of a rule's replay, beside Django's pages."""
        view = self.admin_site.admin_view(self.replay_view)
        return [path("<int:pk>/replay/", view, name="django_ratelimit_lua_replay"), *super().get_urls()]

    def replay_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """What a rule, as it is saved, would have done to the requests of a log; nothing of the log is kept."""
        rule = get_object_or_404(RateLimitRule, pk=pk)
        if not self.has_change_permission(request, rule):
            raise PermissionDenied
        form = LogForm(request.POST or None, request.FILES or None)
        context: dict[str, Any] = {
            "title": _("Try “%(rule)s” on a log") % {"rule": rule.name},
            "rule": rule,
            "form": form,
        }
        if form.is_valid():
            try:
                context |= replay_rule(rule, form.cleaned_data["log"])
            except (UnreadableLogError, ReplayTooSlowError) as error:
                form.add_error("log", str(error))
            except StoreError as error:
                form.add_error(None, _("Redis is unavailable: %s") % error)
        return page_response(self, request, "ratelimitrule/replay.html", context)


def replay_rule(rule: RateLimitRule, file: Any) -> dict[str, Any]:
    """What the page shows of a rule's replay. Raises what `replay` does."""
    ruleset = Ruleset([compile_rule({**rule.declared(), "mode": "enforce"}, plain=True)])
    ends = time.monotonic() + MAX_SECONDS
    log = Log(file.name or "log", file=file.file, most=MAX_UNPACKED)
    try:
        replayed = replay(
            [log], ruleset, get_store(background=True), trusted=conf.TRUSTED_PROXIES, draws=True,
            on_progress=lambda _progress: time.monotonic() > ends,
        )  # fmt: skip
    finally:
        log.close()
    found = as_json(replayed)
    counted = next((each for each in found["rules"] if each["lines"]), None)
    plot = plots(replayed).get(rule.name) if counted else None
    return {"found": found, "counted": counted, "plot": plot}
