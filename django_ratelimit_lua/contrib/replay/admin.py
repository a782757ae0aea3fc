"""The page that replays an uploaded access log against a rule."""

from __future__ import annotations

import time
from typing import Any

from django import forms
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import path
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...admin.pages import Page, page_response, register_page
from ...conf import conf
from ...exceptions import StoreError
from ...models import RateLimitRule
from ...rules.rule import compile_rule
from ...rules.ruleset import Ruleset
from ...store import get_store
from .deciding import ReplayTooSlowError, replay
from .reading import Log, UnreadableLogError
from .report import as_json, plots

MAX_BYTES = 64 * 1024 * 1024
"""Maximum size of an upload. A gzipped log may be larger once it is unpacked."""
MAX_SECONDS = 20.0
"""Maximum time for a page. It shows the part of the log that was replayed until then."""


class LogForm(forms.Form):
    """The access log that is replayed against a rule."""

    log = forms.FileField(
        label=gettext_lazy("Access log"),
        help_text=gettext_lazy(
            "From nginx, Apache, Caddy, gunicorn or AWS, optionally gzipped; at most 64 MiB."
        ),
    )

    def clean_log(self) -> Any:
        """Reject a log that is too large for a page."""
        log = self.cleaned_data["log"]
        if log.size > MAX_BYTES:
            raise forms.ValidationError(
                _("The log is larger than 64 MiB. Use manage.py ratelimit replay.")
            )
        return log


class ReplayPage(Page):
    """Replays a log against a saved rule.

    Nothing of the log is stored. The form of the rule links to this page.
    """

    class Media:
        """The style sheet of the page."""

        css = {"all": ("ratelimit_replay/replay.css",)}  # noqa: RUF012

    @staticmethod
    def may_see(request: HttpRequest) -> bool:
        return bool(request.user.has_perm("django_ratelimit_lua.change_ratelimitrule"))

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Return False: the page needs a rule, so it has no entry in the index."""
        return False

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.rule_view)
        return [path("<int:pk>/", view, name="ratelimit_replay_replay")]

    def rule_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        if not self.may_see(request):
            raise PermissionDenied
        rule = get_object_or_404(RateLimitRule, pk=pk)
        form = LogForm(request.POST or None, request.FILES or None)
        context: dict[str, Any] = {
            "title": _("Replay a log with “%(rule)s”") % {"rule": rule.name},
            "opts": RateLimitRule._meta,
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
        return page_response(self, request, "replay.html", context)


def replay_rule(rule: RateLimitRule, file: Any) -> dict[str, Any]:
    """Return the context of the page for a rule's replay. Raises the exceptions of `replay`."""
    ruleset = Ruleset([compile_rule({**rule.declared(), "mode": "enforce"}, plain=True)])
    ends = time.monotonic() + MAX_SECONDS
    log = Log(file.name or "log", file=file.file)
    try:
        replayed = replay(
            [log],
            ruleset,
            get_store(background=True),
            trusted=conf.TRUSTED_PROXIES,
            draws=True,
            on_progress=lambda _progress: time.monotonic() > ends,
        )
    finally:
        log.close()
    found = as_json(replayed)
    counted = next((each for each in found["rules"] if each["lines"]), None)
    plot = plots(replayed).get(rule.name)
    return {"found": found, "counted": counted, "plot": plot}


register_page("Replay", gettext_lazy("Replay a log"), ReplayPage, "ratelimit_replay")
