"""The breakers, for operators: how each is at the moment, other thresholds than the code has, and
forcing one.
"""

from __future__ import annotations

import datetime
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import ADDITION, CHANGE, LogEntry
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import router, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import path, reverse
from django.utils import timezone
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...admin.base import ActingAdmin, with_warnings
from ...admin.pages import page_response
from ...admin.times import moment_element
from ...limits.rate import time_text, time_us
from ...models.audit import acting
from ...operations.formatting import number_words
from ...web.durations import duration_words
from .document import notices
from .models import RateLimitBreaker
from .operations import BreakerState, breaker, breakers, force, in_code
from .rows import PPM

FORCE = "ratelimit_breakers.force_breaker"
STATES = {
    "closed": gettext_lazy("closed"),
    "open": gettext_lazy("open"),
    "half-open": gettext_lazy("half-open: being probed"),
    "ramp": gettext_lazy("recovering"),
}
REASONS = {
    "failure_ratio": gettext_lazy("too large a part of the calls failed"),
    "failures": gettext_lazy("too many calls failed"),
    "slow_ratio": gettext_lazy("too large a part of the calls was slow"),
    "probe": gettext_lazy("a probe failed"),
}
HOW = {"open": "open", "closed": "closed", "auto": ""}


class ForceForm(forms.Form):
    """What an operator forces, for how long, and why."""

    how = forms.ChoiceField(
        label=gettext_lazy("Force"),
        widget=forms.RadioSelect,
        choices=(
            ("open", gettext_lazy("Open: it is not asked")),
            ("closed", gettext_lazy("Closed: it is asked, whatever happens")),
            ("auto", gettext_lazy("Automatic: by its own state")),
        ),
    )
    period = forms.ChoiceField(
        label=gettext_lazy("For"),
        required=False,
        initial="1h",
        choices=(
            ("10m", gettext_lazy("10 minutes")),
            ("1h", gettext_lazy("1 hour")),
            ("6h", gettext_lazy("6 hours")),
            ("1d", gettext_lazy("1 day")),
            ("7d", gettext_lazy("7 days")),
            ("", gettext_lazy("until it is taken back")),
        ),
    )
    until = forms.DateTimeField(
        label=gettext_lazy("Or until"),
        required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
    )
    why = forms.CharField(label=gettext_lazy("Reason"), max_length=300, required=False)

    def clean(self) -> dict[str, Any]:
        """Raises `ValidationError` for an end that is over."""
        given: dict[str, Any] = super().clean() or {}
        until = given.get("until")
        if until is not None and until <= timezone.now():
            self.add_error("until", _("Enter a moment in the future."))
        return given

    def ends(self) -> datetime.datetime | None:
        """When it ends; None: not by itself."""
        until: datetime.datetime | None = self.cleaned_data["until"]
        if until is not None or not self.cleaned_data["period"]:
            return until
        return timezone.now() + datetime.timedelta(
            microseconds=time_us(self.cleaned_data["period"])
        )


class BreakerForm(forms.ModelForm):  # type: ignore[type-arg]
    """The form of a breaker's row. It shows the values of the code."""

    class Meta:
        model = RateLimitBreaker
        fields = "__all__"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"label_suffix": "", **kwargs})
        self.known = in_code()
        """The declarations of breakers in the code, by name."""
        name = self.data.get("name") or self.initial.get("name") or ""
        said = self.known[name].declared() if name in self.known else {}
        for word, field in self.fields.items():
            if said.get(word) is not None:
                field.widget.attrs["placeholder"] = said[word]
        if "name" in self.fields:
            self.fields["name"].widget.attrs["list"] = "ratelimit-breakers"

    def _post_clean(self) -> None:
        """If each field is valid, and the code has that breaker, check them together."""
        super()._post_clean()  # type: ignore[misc]
        base = self.known.get(self.instance.name)
        if (
            base is not None
            and not self.errors
            and (found := self.instance.contradiction(base)) is not None
        ):
            self.add_error(*found)


@admin.register(RateLimitBreaker)
class BreakerAdmin(ActingAdmin):
    """Breakers: the list is of all that there are, with rows or without."""

    form = BreakerForm
    search_fields = ("name",)
    fieldsets = (
        (None, {"fields": ("name", "description")}),
        (
            gettext_lazy("When it opens"),
            {
                "fields": (
                    ("failure_ratio", "failures"),
                    ("slow", "slow_ratio"),
                    ("minimum", "window"),
                )
            },
        ),
        (gettext_lazy("How it comes back"), {"fields": (("open_for", "open_max"), "probes")}),
    )

    class Media:
        css = {"all": ("django_ratelimit_lua/admin.css",)}  # noqa: RUF012
        js = ("django_ratelimit_lua/refresh.js",)

    def get_urls(self) -> list[Any]:
        """Add the URL of the page of one breaker; its name is in the query."""
        view = self.admin_site.admin_view(self.one_view)
        return [path("one/", view, name="ratelimit_breakers_breaker"), *super().get_urls()]

    def has_force_permission(self, request: HttpRequest) -> bool:
        """Whether they may force breakers."""
        return bool(request.user.has_perm(FORCE))

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_view_permission(request, obj) or self.has_force_permission(request)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return super().has_module_permission(request) or self.has_force_permission(request)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        for notice in notices(obj.name):
            messages.warning(request, notice)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """All breakers, as they are now."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        rows = [_shown(state) for state in breakers()]
        context = {
            "title": capfirst(str(self.opts.verbose_name_plural)),
            "breakers": rows,
            "is_known": all(one["of"].state for one in rows),
            "has_add_permission": self.has_add_permission(request),
        }
        return page_response(self, request, "overview.html", context)

    def one_view(self, request: HttpRequest) -> HttpResponse:
        """One breaker, and how to force it."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        state = breaker(request.GET.get("name", ""))
        if state is None:
            raise Http404(_("There is no such breaker."))
        may_force = self.has_force_permission(request)
        form = ForceForm(request.POST or None, initial=_initial(state))
        if request.method == "POST":
            if not may_force:
                raise PermissionDenied
            if form.is_valid() and self._force(request, state, form):
                here = reverse("admin:ratelimit_breakers_breaker", current_app=self.admin_site.name)
                there = HttpResponseRedirect(f"{here}?{urlencode({'name': state.name})}")
                response: HttpResponse = with_warnings(request, there)
                return response
        row = state.row
        context = {
            "title": state.name,
            "breaker": _shown(state),
            "form": form,
            "may_force": may_force,
            "may_change": row is not None and self.has_change_permission(request),
            "may_add": row is None and self.has_add_permission(request),
            "row": row,
        }
        return page_response(self, request, "one.html", context)

    def _force(self, request: HttpRequest, state: BreakerState, form: ForceForm) -> bool:
        given = form.cleaned_data
        how = HOW[given["how"]]
        try:
            with acting(request.user), transaction.atomic(router.db_for_write(RateLimitBreaker)):
                until = form.ends() if how else None
                row = force(state.name, how, until=until, why=given["why"])
                words = (
                    _("Forced: %s.") % row.get_forced_display() if how else _("Automatic again.")
                )
                flag = CHANGE if state.row is not None else ADDITION
                LogEntry.objects.log_actions(request.user.pk, [row], flag, words)  # type: ignore[arg-type]
        except ValidationError as error:
            form.add_error(None, error)
            return False
        messages.success(request, f"{words} {_('This holds everywhere within milliseconds.')}")
        return True


def _initial(state: BreakerState) -> dict[str, Any]:
    if not state.forced or state.row is None:
        return {"how": "open"}
    return {"how": state.row.forced, "why": state.row.why}


def _shown(state: BreakerState) -> dict[str, Any]:
    """A breaker in words, for a template."""
    by, row = state.by, state.row if state.forced else None
    rules = []
    if by.failure_ppm is not None:
        rules.append(_("%(share)s %% failures") % {"share": f"{by.failure_ppm / PPM * 100:g}"})
    if by.failures is not None:
        rules.append(_("%(number)s failures") % {"number": number_words(by.failures)})
    if by.slow_us is not None and by.slow_ppm is not None:
        words = {"share": f"{by.slow_ppm / PPM * 100:g}", "time": time_text(by.slow_us)}
        rules.append(_("%(share)s %% take %(time)s or longer") % words)
    return {
        "of": state,
        "by": by.declared(),
        "query": urlencode({"name": state.name}),
        "state_words": STATES.get(state.state or "", ""),
        "is_ill": state.state == "open" or (row is not None and row.forced == "open"),
        "changes_in": duration_words(state.seconds) if state.seconds else "",
        "rules": rules,
        "why": REASONS.get(state.why, "") if state.state != "closed" else "",
        "forced": row,
        "until": moment_element(row.until) if row is not None and row.until is not None else None,
        "is_retuned": state.row is not None and bool(state.row.thresholds()),
    }
