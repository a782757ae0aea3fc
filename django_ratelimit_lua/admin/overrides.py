"""The admin of overrides: the list, and the form with its effect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
from django.db import router, transaction
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..exceptions import StoreError
from ..identity.address import overlaps
from ..identity.names import Name
from ..limits.rate import LimitError
from ..models import RateLimitOverride
from ..operations.formatting import moment_element
from ..operations.known_limits import place_words
from ..operations.subjects import add_override
from ..rules.describe import rate_words
from ..rules.provider import loaded_ruleset
from .client_search import matching_digests
from .identities import known_clients
from .override_form import OverrideForm, override_effects
from .pages import ActingAdmin, Context, View, may

REPEATED = "_ratelimit_repeated"
"""Set on an override that was not added, because an equal one exists."""


class ActiveFilter(admin.SimpleListFilter):
    """Filters overrides by whether they are in force."""

    title = gettext_lazy("active")
    parameter_name = "active"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        return [("yes", _("active")), ("no", _("ended or not started"))]

    def queryset(
        self, request: HttpRequest, queryset: QuerySet[RateLimitOverride]
    ) -> QuerySet[RateLimitOverride]:
        active = Q(pk__in=RateLimitOverride.objects.active().values("pk"))
        return queryset.filter({"yes": active, "no": ~active}.get(str(self.value()), Q()))


class RuleFilter(admin.AllValuesFieldListFilter):
    """Filters overrides by rule. Those of all rules have a name here, too."""

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        for choice in super().choices(changelist):
            yield {**choice, "display": choice["display"] or _("all rules")}


class OverrideAdmin(ActingAdmin):
    """The admin of overrides, each for one client or network."""

    form = OverrideForm
    list_display = ("client", "effect_summary", "of_rule", "lasts", "why")
    list_filter = (ActiveFilter, "effect", ("rule", RuleFilter))
    list_select_related = ("user",)
    search_fields = ("network", "label", "reason", "field", "client_digest", "rule")
    actions = ("end_now",)
    readonly_fields = ("created_by", "created")
    change_list_template = "admin/django_ratelimit_lua/ratelimitoverride/change_list.html"
    change_form_template = "admin/django_ratelimit_lua/ratelimitoverride/change_form.html"
    fieldsets = (
        (
            gettext_lazy("Client (fill in one of these)"),
            {"fields": ("user", "network", ("field", "value"), "client_digest", "label")},
        ),
        (
            gettext_lazy("Effect"),
            {
                "fields": (
                    "effect",
                    ("rate", "burst"),
                    ("forbids", "message"),
                    "rule",
                )
            },
        ),
        (
            gettext_lazy("Duration and reason"),
            {"fields": ("duration", ("starts", "ends"), "reason")},
        ),
        (None, {"fields": (("created_by", "created"),)}),
        (gettext_lazy("Confirm"), {"fields": ("confirm",)}),
    )

    class Media:
        """The script of the form."""

        js = ("django_ratelimit_lua/preview.js",)

    @admin.display(description=gettext_lazy("created at"))
    def created(self, override: RateLimitOverride) -> str:
        """Return the moment as on all pages."""
        if override.created_at:
            return moment_element(override.created_at)
        return "—"  # It is not saved yet.

    @admin.action(description=gettext_lazy("End now"), permissions=["block"])
    def end_now(self, request: HttpRequest, queryset: QuerySet[RateLimitOverride]) -> None:
        """End overrides in one change, with an entry for each in Django's log."""
        overrides = RateLimitOverride.objects.filter(pk__in=queryset.values("pk")).lasting()
        ending = list(overrides.select_related("user"))
        with transaction.atomic(router.db_for_write(RateLimitOverride)):
            overrides.update(ends=timezone.now())
            # One statement for Django's log, too: one for each row would outlast the request.
            LogEntry.objects.log_actions(request.user.pk, ending, CHANGE, _("Ended."))  # type: ignore[arg-type]
        messages.success(
            request,
            ngettext(
                "%(number)d override ended. This applies to the next request.",
                "%(number)d overrides ended. This applies to the next request.",
                len(ending),
            )
            % {"number": len(ending)},
        )

    def added_views(self) -> Iterable[tuple[str, View, str]]:
        return [("effect/", self.effect_view, "effect")]

    def has_block_permission(self, request: HttpRequest) -> bool:
        return may(request, "block_identity")

    def effect_view(self, request: HttpRequest) -> HttpResponse:
        """Show what the override in a form does to each limit that it concerns."""
        if not self.has_add_permission(request) and not self.has_change_permission(request):
            raise PermissionDenied
        values = request.POST
        effect = values.get("effect", "")
        rate = values.get("rate", "")
        burst = values.get("burst", "")
        is_limit = effect == RateLimitOverride.Effects.LIMIT
        context: Context = {"needs_rule": is_limit and not values.get("rule")}
        if is_limit and not rate:
            context["problem"] = _("Enter the rate to see what the client gets.")
        else:
            number = int(burst) if burst.isdecimal() else None
            try:
                context["effects"] = override_effects(values.get("rule", ""), effect, rate, number)
            except LimitError as error:
                context["problem"] = error
        template = "admin/django_ratelimit_lua/ratelimitoverride/effect.html"
        return TemplateResponse(request, template, context)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[RateLimitOverride], search_term: str
    ) -> tuple[QuerySet[RateLimitOverride], bool]:
        """Find overrides by their texts, and by a client or a network within or around them."""
        rows, is_distinct = super().get_search_results(request, queryset, search_term)
        if not search_term:
            return rows, is_distinct
        named: dict[str, Name] = {}
        with suppress(StoreError):  # The page reports it, see `audited`.
            named = known_clients(request)
        digests = matching_digests(search_term, named)
        networks = [
            network
            for network in queryset.values_list("network", flat=True)
            if overlaps(network, search_term)
        ]
        matching = queryset.filter(Q(subject__in=digests) | Q(network__in=networks))
        return rows | matching, is_distinct

    def get_autocomplete_fields(self, request: HttpRequest) -> tuple[str, ...]:
        """Return the user, if the admin of users can search. Otherwise, its field is a list."""
        users = self.admin_site._registry.get(get_user_model())
        if users is None or not users.get_search_fields(request):
            return ()
        return ("user",)

    def get_form(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Return a class of the form that knows the request."""
        form = super().get_form(request, *args, **kwargs)
        return type(form.__name__, (form,), {"request": request})

    @admin.display(description=gettext_lazy("client"))
    def client(self, override: RateLimitOverride) -> str:
        return override.client()

    @admin.display(description=gettext_lazy("effect"))
    def effect_summary(self, override: RateLimitOverride) -> str:
        if override.effect != override.Effects.LIMIT or not override.rate:
            return str(override.get_effect_display())
        rate = rate_words(override.rate)
        if self._is_skipped(override):
            return _("%(rate)s (skipped: does not fit the rule)") % {"rate": rate}
        return rate

    @staticmethod
    def _is_skipped(override: RateLimitOverride) -> bool:
        """Return whether the numbers of an override do not fit its rule in force."""
        if override.effect != override.Effects.LIMIT:
            return False
        ruleset = loaded_ruleset()
        if ruleset is None:
            return False
        return bool(override.limit_problems(ruleset.by_name.get(override.rule)))

    @admin.display(description=gettext_lazy("rule"), ordering="rule")
    def of_rule(self, override: RateLimitOverride) -> str:
        return place_words(override.rule) or _("all rules")

    @admin.display(description=gettext_lazy("active"), ordering="ends")
    def lasts(self, override: RateLimitOverride) -> SafeString:
        """Return whether an override is in force, from when and until when."""
        now = timezone.now()
        moment = override.ends
        if override.ends is not None and override.ends <= now:
            text = _("ended {moment}")
        elif override.starts is not None and override.starts > now:
            moment = override.starts
            text = _("from {moment}")
        elif override.ends is None:
            text = _("for good")
        else:
            text = _("until {moment}")
        is_in_force = override.is_active() and not self._is_skipped(override)
        state = "on" if is_in_force else "off"
        text = format_html(text, moment=moment and moment_element(moment))
        return format_html('<span class="ratelimit-state {}">{}</span>', state, text)

    @admin.display(description=gettext_lazy("reason"), ordering="reason")
    def why(self, override: RateLimitOverride) -> SafeString:
        """Return the reason of an override, and its author."""
        return format_html(
            '{}<div class="quiet">{}</div>', override.reason or "—", override.created_by
        )

    def has_view_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return super().has_view_permission(request, obj) or self.has_block_permission(request)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return super().has_module_permission(request) or self.has_block_permission(request)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Save an override. A new one that exists already becomes the existing one."""
        if change:
            super().save_model(request, obj, form, change)
            return
        obj.created_by = str(request.user)
        existing = add_override(obj)
        if existing is not obj:
            text = _("Already present, so not added again: %(overrides)s.")
            messages.warning(request, text % {"overrides": existing})
            obj.pk = existing.pk
            vars(obj)[REPEATED] = True

    def log_addition(self, request: HttpRequest, obj: RateLimitOverride, message: object) -> Any:
        if REPEATED in vars(obj):
            return None
        return super().log_addition(request, obj, message)

    def response_add(
        self, request: HttpRequest, obj: RateLimitOverride, post_url_continue: str | None = None
    ) -> HttpResponse:
        """Report the addition, unless an equal override existed already."""
        if REPEATED in vars(obj):
            return self.response_post_save_add(request, obj)
        return super().response_add(request, obj, post_url_continue)
