"""The page that replays an uploaded access log against a rule."""

from __future__ import annotations

from django import forms
from django.core.exceptions import PermissionDenied
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...admin.curves import curve_context
from ...admin.pages import Page, page_response, register_page
from ...conf import conf
from ...exceptions import StoreError
from ...models import RateLimitRule
from ...process.clock import Clock
from ...rules.rule import compile_rule
from ...rules.ruleset import Ruleset
from ...store import get_store
from .deciding import ReplayTooSlowError, replay
from .reading import Log, UnreadableLogError
from .report import as_json

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

    limit0 = forms.CharField(
        label=gettext_lazy("Another limit"),
        required=False,
        max_length=13,
        widget=forms.NumberInput(attrs={"min": 0}),
        help_text=gettext_lazy(
            "For example 30 if the rule has 10. The report then also shows "
            "what this limit would have refused."
        ),
    )

    def clean_log(self) -> object:
        """Reject a log that is too large for a page."""
        log = self.cleaned_data["log"]
        if log.size > MAX_BYTES:
            raise forms.ValidationError(
                _("The log is larger than 64 MiB. Use “manage.py ratelimit replay”.")
            )
        return log


class ReplayPage(Page):
    """Replays a log against a saved rule.

    Nothing of the log is stored. The form of the rule links to this page.
    """

    class Media:
        """The style sheet of the page."""

        css = {"all": ("ratelimit_replay/replay.css",)}  # noqa: RUF012
        js = ("django_ratelimit_lua/curve.js",)

    @staticmethod
    def may_see(request: HttpRequest) -> bool:
        return bool(request.user.has_perm("django_ratelimit_lua.change_ratelimitrule"))

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Return False: the page needs a rule, so it has no entry in the index."""
        return False

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.rule_view)
        return [path("<int:pk>/", view, name="ratelimit_replay_replay")]

    def rule_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        if not self.may_see(request):
            raise PermissionDenied
        rule = get_object_or_404(RateLimitRule, pk=pk)
        form = LogForm(request.POST or None, request.FILES or None)
        context: dict[str, object] = {
            "title": _("Replay a log with “%(rule)s”") % {"rule": rule.name},
            "opts": RateLimitRule._meta,
            "rule": rule,
            "form": form,
        }
        if form.is_valid():
            try:
                context |= replay_rule(rule, **form.cleaned_data)
            except (UnreadableLogError, ReplayTooSlowError) as error:
                form.add_error("log", str(error))
            except StoreError as error:
                form.add_error(None, _("Redis is unavailable: %s") % error)
        return page_response(self, request, "replay.html", context)


def replay_rule(
    rule: RateLimitRule, log: UploadedFile[bytes], limit0: str = ""
) -> dict[str, object]:
    """Return the values of the page for a rule's replay. Raises what `replay` raises.

    Args:
        rule: The rule.
        log: The uploaded log.
        limit0: Another limit that is asked for, as it was entered.
    """
    ruleset = Ruleset([compile_rule({**rule.declared(), "mode": "enforce"}, plain=True)])
    ends = Clock.monotonic() + MAX_SECONDS
    opened = Log(log.name or "log", file=log.file)
    try:
        replayed = replay(
            [opened],
            ruleset,
            get_store(background=True),
            trusted=conf.TRUSTED_PROXIES,
            draws=True,
            on_progress=lambda _progress: Clock.monotonic() > ends,
        )
    finally:
        opened.close()
    found = as_json(replayed)
    context: dict[str, object] = {
        "found": found,
        "counted": next((each for each in found["rules"] if each["lines"]), None),
    }
    tally = replayed.tallies.get(rule.name)
    curve = None if tally is None else tally.curve()
    if curve is not None:
        title = f"{rule.name}: {rule.reading()}"
        context["curve"] = curve_context(curve, limit0, title=title)
    return context


register_page("Replay", gettext_lazy("Replay a log"), ReplayPage, "ratelimit_replay")
