"""The breakers in the admin: their states, their thresholds, and forcing a state."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ...admin.base import ActingAdmin, View
from ...admin.pages import page_response
from ...limits.rate import time_us
from ...models.rate_fields import problem_text
from ...operations.admin_urls import admin_url
from ...operations.formatting import number_words
from .document import notices
from .models import RateLimitBreaker
from .operations import BreakerState, breaker, breakers, force, in_code
from .rows import BreakerError, thresholds

FORCE = "ratelimit_breakers.force_breaker"
REASONS = {
    "failure_ratio": gettext_lazy("the failure ratio was too high"),
    "failures": gettext_lazy("too many calls failed"),
    "slow_ratio": gettext_lazy("the slow call ratio was too high"),
    "probe": gettext_lazy("a probe failed"),
}


class ForceForm(forms.Form):
    """The form of a page: the state to force, the duration, and the reason."""

    how = forms.ChoiceField(
        label=gettext_lazy("Force"),
        widget=forms.RadioSelect,
        choices=(
            ("open", gettext_lazy("Open: calls are stopped")),
            ("closed", gettext_lazy("Closed: calls are allowed")),
            ("auto", gettext_lazy("Automatic: its own state applies")),
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
            ("", gettext_lazy("until it is set to automatic")),
        ),
    )
    why = forms.CharField(label=gettext_lazy("Reason"), max_length=300, required=False)

    def ends(self) -> datetime.datetime | None:
        """Return the end, or None."""
        period = self.cleaned_data["period"]
        if not period:
            return None
        return timezone.now() + datetime.timedelta(microseconds=time_us(period))


class BreakerForm(forms.ModelForm):  # type: ignore[type-arg]
    """The form of a breaker's row. Placeholders show the values that the code declares."""

    class Meta:
        """The model and its fields."""

        model = RateLimitBreaker
        fields = "__all__"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"label_suffix": "", **kwargs})
        self.known = in_code()
        """The declarations of breakers in the code, by name."""
        name = self.data.get("name") or self.initial.get("name")
        if name in self.known:
            for word, value in self.known[name].declared().items():
                if word in self.fields and value is not None:
                    self.fields[word].widget.attrs["placeholder"] = value
        if "name" in self.fields:
            self.fields["name"].widget.attrs["list"] = "ratelimit-breakers"

    def _post_clean(self) -> None:
        """Check the fields together with the thresholds in the code, if each field is valid."""
        super()._post_clean()  # type: ignore[misc]
        row = self.instance
        if row.name in self.known and not self.errors:
            try:
                thresholds(row.name, row.thresholds(), self.known[row.name])
            except BreakerError as error:
                self.add_error(error.field, problem_text(error))


@admin.register(RateLimitBreaker)
class BreakerAdmin(ActingAdmin):
    """The admin of breakers. The list contains all breakers, with rows or without."""

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
        (gettext_lazy("Recovery"), {"fields": (("open_for", "open_max"), "probes")}),
    )

    class Media:
        """The style sheets and scripts of the pages."""

        css = {"all": ("django_ratelimit_lua/admin.css",)}  # noqa: RUF012
        js = ("django_ratelimit_lua/refresh.js",)

    def own_views(self) -> Iterable[tuple[str, View, str]]:
        return [("one/", self.one_view, "breaker")]

    def has_force_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may force breakers."""
        return bool(request.user.has_perm(FORCE))

    def has_view_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return super().has_view_permission(request, obj) or self.has_force_permission(request)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return super().has_module_permission(request) or self.has_force_permission(request)

    def save_model(
        self, request: HttpRequest, obj: RateLimitBreaker, form: object, change: bool
    ) -> None:
        super().save_model(request, obj, form, change)
        for notice in notices(obj.name):
            messages.warning(request, notice)

    def changelist_view(self, request: HttpRequest, extra_context: object = None) -> HttpResponse:
        """Show all breakers, as they are now."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        states = breakers()
        context = {
            "title": capfirst(str(self.opts.verbose_name_plural)),
            "breakers": [_shown(state) for state in states],
            "is_known": all(state.state for state in states),
            "has_add_permission": self.has_add_permission(request),
        }
        return page_response(self, request, "overview.html", context)

    def one_view(self, request: HttpRequest) -> HttpResponse:
        """Show one breaker, or force its state."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        state = breaker(request.GET.get("name", ""))
        if state is None:
            raise Http404(_("There is no such breaker."))
        may_force = self.has_force_permission(request)
        form = ForceForm(request.POST or None, initial={"how": state.forced or "open"})
        if request.method == "POST":
            if not may_force:
                raise PermissionDenied
            if form.is_valid():
                self._force(request, state, form)
                here = admin_url(request, "ratelimit_breakers_breaker")
                return HttpResponseRedirect(f"{here}?{urlencode({'name': state.name})}")
        context = {
            "title": state.name,
            "breaker": _shown(state),
            "form": form,
            "may_force": may_force,
            "may_change": self.has_change_permission(request),
            "may_add": self.has_add_permission(request),
        }
        return page_response(self, request, "one.html", context)

    def _force(self, request: HttpRequest, state: BreakerState, form: ForceForm) -> None:
        how = form.cleaned_data["how"]
        until = form.ends()
        if how == "auto":
            how = ""
            until = None
        log = self.log_change
        if state.row is None:
            log = self.log_addition
        row = force(state.name, how, until=until, why=form.cleaned_data["why"])
        words = _("The breaker is automatic again.")
        if how:
            words = _("Forced: %s.") % row.get_forced_display()
        log(request, row, words)
        effect = _("It applies in every process within milliseconds.")
        messages.success(request, f"{words} {effect}")


def _shown(state: BreakerState) -> dict[str, object]:
    """Return a breaker for a template."""
    by = state.by.declared()
    rules = []
    if by["failure_ratio"]:
        rules.append(_("%(share)s %% failures") % {"share": f"{by['failure_ratio'] * 100:g}"})
    if by["failures"]:
        failures = ngettext("%(number)s failure", "%(number)s failures", by["failures"])
        rules.append(failures % {"number": number_words(by["failures"])})
    if by["slow"] and by["slow_ratio"]:
        words = {"share": f"{by['slow_ratio'] * 100:g}", "time": by["slow"]}
        rules.append(_("%(share)s %% take %(time)s or longer") % words)
    return {
        "of": state,
        "by": by,
        "query": urlencode({"name": state.name}),
        "is_ill": state.in_force == "open",
        "rules": rules,
        "why": REASONS.get(state.why),
    }
