"""Trying a rule on an access log that is uploaded: what the rule would have done, and what every other limit would."""

from __future__ import annotations

import time
from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.core.files.uploadhandler import FileUploadHandler, SkipFile, TemporaryFileUploadHandler
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import path
from django.utils.safestring import mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.csrf import csrf_exempt, csrf_protect

from ..conf import conf
from ..exceptions import StoreError
from ..models import RateLimitRule
from ..operations.replay import Log, Progress, ReplayTooSlowError, UnreadableLogError, replay
from ..operations.replay.report import as_json, drawing, period_of
from ..rules.rule import compile_rule
from ..rules.ruleset import Ruleset
from ..store import get_store
from .pages import page_response

LARGEST = 64 * 1024 * 1024
"""Bytes of a log, as it is sent: a gzipped one may be larger once it is unpacked."""
MOST_UNPACKED = 1024 * 1024 * 1024
"""Bytes of a log, once it is unpacked: no page has time for more, and a file of 64 MiB can hold a thousand times that.
"""
MOST_SECONDS = 20.0
"""For how long a page may take; what the log has beyond that is not looked at, and the page says so."""


class BoundedUpload(FileUploadHandler):
    """Lets files pass up to so many bytes; of a larger one, nothing is kept."""

    def __init__(self, request: HttpRequest | None = None) -> None:
        super().__init__(request)
        self.is_too_large = False
        self._received = 0

    def receive_data_chunk(self, raw_data: bytes, start: int) -> bytes:
        """Raises `SkipFile`: the other handlers delete what they have, and the rest of the form is read."""
        self._received += len(raw_data)
        if self._received > LARGEST:
            self.is_too_large = True
            raise SkipFile
        return raw_data

    def file_complete(self, file_size: int) -> Any:
        return None


class LogForm(forms.Form):
    """A log to try a rule on."""

    log = forms.FileField(
        label=gettext_lazy("Access log"),
        help_text=gettext_lazy("From nginx, Apache, Caddy, gunicorn or AWS, also gzipped; at most 64 MiB."),
    )


class LogReplay(admin.ModelAdmin):  # type: ignore[type-arg]
    """The part of the admin of rules that tries one on a log."""

    def get_urls(self) -> list[Any]:
        """The page of a rule's replay, beside Django's pages."""
        # Who may send a log is asked before any of it is read, and where it is kept is said before Django reads it to
        # look for the token: see "Modifying upload handlers on the fly" in Django's documentation.
        view = self.admin_site.admin_view(csrf_exempt(self.replay_view))
        return [path("<int:pk>/replay/", view, name="django_ratelimit_lua_replay"), *super().get_urls()]

    def replay_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """What a rule, as it is saved, would have done to the requests of a log; nothing of the log is kept."""
        rule = get_object_or_404(RateLimitRule, pk=pk)
        if not self.has_change_permission(request, rule):
            raise PermissionDenied
        bound = BoundedUpload(request)
        if request.method == "POST" and not hasattr(request, "_files"):
            request.upload_handlers = [bound, TemporaryFileUploadHandler(request)]

        def answer(request: HttpRequest) -> HttpResponse:
            return self._replayed(request, rule, bound)

        return csrf_protect(answer)(request)

    def _replayed(self, request: HttpRequest, rule: RateLimitRule, bound: BoundedUpload) -> HttpResponse:
        form = LogForm(request.POST, request.FILES) if request.method == "POST" else LogForm()
        if bound.is_too_large:
            form.errors["log"] = form.error_class(
                [_("The log is larger than 64 MiB. Use manage.py ratelimit replay.")], renderer=form.renderer
            )
        context: dict[str, Any] = {
            "title": _("Try “%(rule)s” on a log") % {"rule": rule.name},
            "rule": rule,
            "form": form,
        }
        if request.method == "POST" and form.is_valid():
            file = form.cleaned_data["log"]
            try:
                context |= found_in(rule, file)
            except (UnreadableLogError, ReplayTooSlowError) as error:
                form.add_error("log", str(error))
            except StoreError as error:
                form.add_error(None, _("Redis is unavailable: %s") % error)
            finally:
                file.close()  # Which deletes it.
        return page_response(self, request, "ratelimitrule/replay.html", context)


def found_in(rule: RateLimitRule, file: Any) -> dict[str, Any]:
    """What the page shows of a rule's replay. Raises what `replay` does."""
    given = {**rule.declared(), "mode": "enforce"}
    ends = time.monotonic() + MOST_SECONDS

    def is_enough(progress: Progress) -> bool:
        return time.monotonic() > ends

    log = Log(file.name or "log", file=file.file, most=MOST_UNPACKED)
    replayed = replay(
        [log], Ruleset([compile_rule(given, plain=True)]), get_store(background=True), trusted=conf.TRUSTED_PROXIES,
        draws=True, on_progress=is_enough,
    )  # fmt: skip
    found = as_json(replayed)
    rule_found = next((each for each in found["rules"] if each["lines"]), None)
    curve = next((tally.curve() for tally in replayed.tallies.values() if tally.lines), None)
    return {
        "found": found,
        "counted": rule_found,
        "busiest": rule_found["busiest_minute"]["from"][:16].replace("T", " ") if rule_found else "",
        "curve": mark_safe(drawing(curve, stands_alone=False)) if curve is not None else "",
        "per": "" if curve is None else period_of(curve),
        "suggestions": [(f"{share * 100:g} %", point) for share, point in (curve.suggestions() if curve else ())],
        "unseen": list(replayed.planner.unseen.values()),
        "notes": notes(found),
    }


def notes(found: dict[str, Any]) -> list[str]:
    """What was met in reading the log, and what of the rule is left out."""
    texts = {
        "broken": _("%(count)d lines are broken and left out; the first of them:"),
        "without_request": _("%(count)d lines have no request that a site could see."),
        "late": _("%(count)d lines are more out of order than can be sorted; they take the time of those before."),
        "spread": _("%(count)d lines share a second with others and are spread evenly within it."),
    }
    failed = found["failed"].values()
    return [
        *(_("Note: %(what)s.") % {"what": what} for what in found["notes"]),
        *(
            _("%(count)d lines cannot be counted: %(why)s") % {"count": one["lines"], "why": one["first"]}
            for one in failed
        ),
        *reversed([text % {"count": found[name]} for name, text in texts.items() if found[name]]),
    ]
