"""The admin of rules: a readable list, a form with a preview, and all earlier versions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.options import IS_POPUP_VAR
from django.contrib.admin.utils import flatten_fieldsets, unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.forms import ModelForm
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..exceptions import StoreError
from ..limits.algorithms import ALGORITHMS
from ..models import RateLimitChange, RateLimitOverride, RateLimitRule
from ..models.audit import Conflict
from ..operations.admin_urls import admin_url
from ..operations.call_sites import SETTINGS, call_sites_of, rule_words
from ..publishing.publish import OwnerError, primary, publish
from ..rules import RuleError
from ..rules.describe import reading
from ..rules.options import options
from ..rules.places import meant_by
from ..rules.problems import problems
from ..rules.provider import load_published
from ..rules.ruleset import settings_rules
from .base import ActingAdmin, View
from .choices import choices
from .forms import (
    AUDIENCES,
    CONFIRMED,
    GROUP,
    PreviewForm,
    RowForm,
    RuleForm,
    absent_options,
    confirmation_of,
    versions_of,
)
from .history import (
    changed_words,
    may_undo,
    revision_of,
    rule_of,
    undo_label,
    undo_warnings,
    undone,
)
from .limits import LimitsInCode, ListColumn, column_cells, list_columns
from .pages import Context, page_response
from .preview import previewed

MAX_PROBLEMS = 5
"""Maximum number of problems of published rules on the list of rules."""
_TOKEN = "csrfmiddlewaretoken"
MODES = {
    "enforce": gettext_lazy("Enforce"),
    "shadow": gettext_lazy("Shadow mode"),
    "off": gettext_lazy("Switch off"),
}


def sections() -> list[tuple[Any, dict[str, Any]]]:
    """Return the sections of the form. The table of options decides where each option is."""
    table = options()
    places = [name for name, option in table.items() if option.is_place]
    special = frozenset[str]().union(*(kind.options for kind in ALGORITHMS.values()))
    of_algorithms = [name for name in table if name == "algorithm" or name in special]
    bans = [name for name in table if name.startswith("ban_")]
    placed = {"exempt", "tiers", "cost", *places, *of_algorithms, *bans}
    folded = {
        _("Methods, audience and call site"): [
            *("method", "audience", "groups", "exempt", "group"),
            *places,
        ],
        _("Tiers"): ["tiers"],
        _("Mode, description and message"): [
            *("mode", "description", "message", "order", "dependents")
        ],
        _("Algorithm and cost"): [*of_algorithms, "cost"],
        _("Bans"): bans,
        _("Advanced"): [name for name in table if name not in placed],
    }
    return [
        (None, {"fields": ["name"]}),
        (_("Limit"), {"classes": ("ratelimit-limit",), "fields": ["rate", "key"]}),
        (_("Where it applies"), {"fields": ["path", "route"]}),
        *(
            (title, {"classes": ("collapse",), "fields": fields})
            for title, fields in folded.items()
        ),
        (_("Confirm"), {"fields": ["confirm"]}),
    ]


class AudienceFilter(admin.SimpleListFilter):
    """Filters rules by their audience. Those for groups are one choice."""

    title = gettext_lazy("audience")
    parameter_name = "audience"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, Any]]:
        return [*AUDIENCES, (GROUP, _("groups"))]

    def queryset(
        self, request: HttpRequest, queryset: QuerySet[RateLimitRule]
    ) -> QuerySet[RateLimitRule]:
        if self.value() is None:
            return queryset
        if self.value() == GROUP:
            return queryset.filter(audience__startswith=GROUP)
        return queryset.filter(audience=self.value())


class RuleAdmin(LimitsInCode, ActingAdmin):
    """The admin of rules, with their preview, modes and versions."""

    form = RuleForm
    list_display = ("name", "sentence", "mode", "order")
    list_editable = ("order",)
    list_filter = ("mode", AudienceFilter)
    search_fields = ("name", "description", "path", "route", "key", "group")
    actions = ("enforce", "shadow", "switch_off")
    save_as = True
    readonly_fields = ("dependents",)
    change_list_template = "admin/django_ratelimit_lua/ratelimitrule/change_list.html"
    change_form_template = "admin/django_ratelimit_lua/ratelimitrule/change_form.html"
    object_history_template = "admin/django_ratelimit_lua/history.html"

    class Media:
        """The scripts of the form."""

        js = ("django_ratelimit_lua/preview.js", "django_ratelimit_lua/rule.js")

    def own_views(self) -> Iterable[tuple[str, View, str]]:
        return (
            ("limits/", self.limits_view, "limits"),
            ("call-site/", self.call_site_view, "call_site"),
            ("preview/", self.preview_view, "preview"),
            ("<int:pk>/mode/<str:mode>/", self.mode_view, "mode"),
            ("undo/<int:pk>/", self.undo_view, "undo"),
        )

    @admin.action(
        description=gettext_lazy("Enforce: refuse requests over the limit"), permissions=["change"]
    )
    def enforce(
        self, request: HttpRequest, queryset: QuerySet[RateLimitRule]
    ) -> HttpResponse | None:
        """Switch rules to enforce, after a confirmation."""
        rules = list(queryset.exclude(mode="enforce"))
        if rules and request.POST.get(CONFIRMED) != versions_of(rules):
            return self.ask_to_enforce(request, rules)
        self.switch(request, queryset, "enforce")
        return None

    @admin.action(
        description=gettext_lazy("Shadow mode: count, do not refuse"), permissions=["change"]
    )
    def shadow(self, request: HttpRequest, queryset: QuerySet[RateLimitRule]) -> None:
        self.switch(request, queryset, "shadow")

    @admin.action(description=gettext_lazy("Switch off"), permissions=["change"])
    def switch_off(self, request: HttpRequest, queryset: QuerySet[RateLimitRule]) -> None:
        self.switch(request, queryset, "off")

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Save a rule. For a row of the list, save only the changed fields."""
        if isinstance(form, RowForm):
            obj.save(update_fields=form.changed_data)
            return
        if "_saveasnew" in request.POST and request.resolver_match is not None:
            copied = self.get_object(
                request, unquote(request.resolver_match.kwargs.get("object_id", ""))
            )
            if isinstance(copied, RateLimitRule):
                obj.options = absent_options(copied) | obj.options
        super().save_model(request, obj, form, change)
        for notice in form.notices:
            messages.warning(request, notice)
        for text in _notices(obj):
            messages.info(request, text)

    @admin.display(description=gettext_lazy("summary"))
    def sentence(self, rule: RateLimitRule) -> str:
        """Return the rule in one sentence."""
        return rule_words(rule)

    def get_form(self, request: HttpRequest, obj: Any = None, *args: Any, **kwargs: Any) -> Any:
        names = kwargs.get("fields") or flatten_fieldsets(self.get_fieldsets(request, obj))
        kwargs["fields"] = [name for name in names if name not in options()]
        return super().get_form(request, obj, *args, **kwargs)

    def get_fieldsets(self, request: HttpRequest, obj: object = None) -> Any:
        return sections()

    def get_search_fields(self, request: HttpRequest) -> tuple[str, ...]:
        """Return the search fields, including the places that optional apps add."""
        places = [f"options__{name}" for name, option in options().items() if option.is_place]
        return (*self.search_fields, *places)

    def get_changelist_form(self, request: HttpRequest, **kwargs: object) -> type[ModelForm[Model]]:
        return super().get_changelist_form(request, **{"form": RowForm, **kwargs})

    def get_list_display(self, request: HttpRequest) -> Any:
        name, sentence, *others = self.list_display
        return (name, sentence, *list_columns(), *others)

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Return the list, with the cells of the optional apps' columns."""
        changes = super().get_changelist_instance(request)
        rules = {rule.name: rule for rule in changes.result_list}
        for column in changes.list_display:
            if isinstance(column, ListColumn):
                column.read(request, rules)
        return changes

    @admin.display(description=gettext_lazy("used by"))
    def dependents(self, rule: RateLimitRule) -> str:
        """Return the number of overrides that name the rule."""
        if rule._state.adding:
            return "—"
        number = RateLimitOverride.objects.filter(rule=rule.name).count()
        return ngettext("%(number)d override", "%(number)d overrides", number) % {"number": number}

    def switch(self, request: HttpRequest, rules: Iterable[RateLimitRule], mode: str) -> None:
        """Switch rules to a mode one by one, so that each has an entry in Django's log."""
        named = RateLimitRule.objects.filter(pk__in=[rule.pk for rule in rules])
        changed = list(named.exclude(mode=mode))
        for rule in changed:
            rule.switch(mode)
            self.log_change(request, rule, [{"changed": {"fields": [str(_("mode"))]}}])
        if not changed:
            messages.info(request, _("Nothing was changed: the rules already have this mode."))
            return
        text = _("%(mode)s: applies to the next request.")
        messages.success(request, text % {"mode": MODES[mode]})

    def changelist_view(
        self, request: HttpRequest, extra_context: Context | None = None
    ) -> HttpResponse:
        context: Context = {
            "settings_rules": _settings_rules(),
        }
        try:
            context["published"] = publish()
            load_published()
            for problem in problems.found()[:MAX_PROBLEMS]:
                messages.warning(request, _("Not applied: %s") % problem)
        except OwnerError as error:
            messages.warning(request, str(error))
        except StoreError as error:
            messages.warning(
                request,
                _("Redis is unavailable. Changes are published when it is back: %s") % error,
            )
        return super().changelist_view(request, {**context, **(extra_context or {})})

    def ask_to_enforce(self, request: HttpRequest, rules: Sequence[RateLimitRule]) -> HttpResponse:
        """Ask for a confirmation, and show what these versions of the rules would have refused.

        The page sends the request again.
        """
        context = {
            "title": ngettext("Enforce this rule?", "Enforce these rules?", len(rules)),
            "rules": list(zip(rules, column_cells(request, rules), strict=True)),
            "sent": [
                (name, value)
                for name, values in request.POST.lists()
                if name not in (_TOKEN, CONFIRMED)
                for value in values
            ],
            "confirmed": CONFIRMED,
            "versions": versions_of(rules),
        }
        return page_response(self, request, "ratelimitrule/enforce.html", context)

    def ask_to_undo(
        self,
        request: HttpRequest,
        rule: RateLimitRule,
        warnings: Sequence[str],
        confirmed: str,
        revision: str,
    ) -> HttpResponse:
        """Show an undone rule and its warnings. The page sends the request again."""
        context = {
            "title": _("Undo this change?"),
            "rule": rule,
            "warnings": warnings,
            "confirmed": confirmed,
            "undo_revision": revision,
        }
        return page_response(self, request, "ratelimitrule/undo.html", context)

    def render_change_form(
        self, request: HttpRequest, context: Context, *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Render the form, with the data of the preview."""
        rule: RateLimitRule | None = kwargs.get("obj")
        context |= {
            "preview_form": PreviewForm(initial={"preview_unit": "m"}),
            "choices": choices(),
            "show_preview": IS_POPUP_VAR not in request.GET,
            **self._in_place_of(request, getattr(rule, "name", "")),
        }
        if rule is not None and request.method == "GET":
            try:
                rule.compiled()
            except RuleError as error:
                found = " ".join(each.words() for each in error.each[:MAX_PROBLEMS])
                messages.error(request, _("The stored rule is invalid: %s") % found)
        if rule is not None:
            context["notices"] = _notices(rule)
            context["cells"] = column_cells(request, [rule])[0]
        return super().render_change_form(request, context, *args, **kwargs)

    def mode_view(self, request: HttpRequest, pk: int, mode: str) -> HttpResponse:
        """Switch a rule to a mode. Enforcing it requires a confirmation of its current version."""
        rule = get_object_or_404(RateLimitRule, pk=pk)
        if not self.has_change_permission(request, rule) or mode not in MODES:
            raise PermissionDenied
        if mode == "enforce" and request.POST.get(CONFIRMED) != versions_of([rule]):
            return self.ask_to_enforce(request, [rule])
        if request.method != "POST":
            raise PermissionDenied
        self.switch(request, [rule], mode)
        return redirect(admin_url(request, "django_ratelimit_lua_ratelimitrule_changelist"))

    def _may_see_form(self, request: HttpRequest) -> bool:
        return self.has_view_or_change_permission(request) or self.has_add_permission(request)

    def call_site_view(self, request: HttpRequest) -> HttpResponse:
        """Return the call sites that a rule of this name replaces, as a part of a page."""
        if not self._may_see_form(request):
            raise PermissionDenied
        return TemplateResponse(
            request,
            "admin/django_ratelimit_lua/ratelimitrule/call_site.html",
            self._in_place_of(request, request.GET.get("name", "").strip()),
        )

    def _in_place_of(self, request: HttpRequest, name: str) -> Context:
        """Return the call sites of a name, or the closest match, for a template."""
        sites = call_sites_of(name)
        is_new = not RateLimitRule.objects.filter(name=name).exists()
        in_code = [site for site in sites if site.kind != SETTINGS]
        return {
            "name": name,
            "call_sites": sites,
            "has_key": bool(in_code),
            "has_several_keys": len({site.key for site in sites}) > 1,
            "may_add": in_code == [*sites] and is_new and self.has_add_permission(request),
            "meant": not sites and meant_by(name),
        }

    def preview_view(self, request: HttpRequest) -> HttpResponse:
        """Plot the effect of the rule in the form on a burst and a steady flow."""
        if request.method != "POST" or not self._may_see_form(request):
            raise PermissionDenied
        return TemplateResponse(
            request,
            "admin/django_ratelimit_lua/ratelimitrule/preview.html",
            previewed(request.POST),
        )

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: Context | None = None
    ) -> HttpResponse:
        rule = self.get_object(request, unquote(object_id))
        if rule is None:
            raise Http404
        changes = RateLimitChange.objects.using(primary()).filter(
            kind=RateLimitChange.Kind.RULE, object_id=rule.pk
        )
        context = {
            "versions": [
                (
                    change,
                    changed_words(change),
                    reading(change.after or {}),
                    may_undo(request) and undo_label(change, rule),
                )
                for change in changes
            ],
            "undo_revision": revision_of(rule),
            **(extra_context or {}),
        }
        return super().history_view(request, object_id, context)

    def undo_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Bring a rule back to what it was before a change, with the confirmations of its form."""
        change = get_object_or_404(
            RateLimitChange.objects.using(primary()), pk=pk, kind=RateLimitChange.Kind.RULE
        )
        if request.method != "POST" or not may_undo(request) or not change.before:
            raise PermissionDenied
        now = rule_of(change)
        if now is not None and now.spec == change.before:
            text = _("Nothing was changed: “%(rule)s” already is as it was before the change.")
            messages.info(request, text % {"rule": now})
            return redirect(admin_url(request, "django_ratelimit_lua_ratelimitrule_change", now.pk))
        try:
            if request.POST.get("revision", revision_of(now)) != revision_of(now):
                raise Conflict(now)
            rule = undone(change)
            warnings = undo_warnings(rule, now.mode if now else "")
            confirmed = confirmation_of([rule.reading(), *warnings])
            if warnings and request.POST.get("confirm") != confirmed:
                return self.ask_to_undo(request, rule, warnings, confirmed, revision_of(now))
            rule.save(expected=now and now.revision)
        except (Conflict, RuleError) as error:
            text = _("The rule was changed since this page was opened. Look at it, and undo again.")
            if isinstance(error, RuleError):
                text = error.words()
            messages.error(request, text)
            return redirect(admin_url(request, "django_ratelimit_lua_ratelimitrule_changelist"))
        message = _("Undone: revision %(revision)d and later.") % {"revision": change.revision}
        self.log_change(request, rule, message)
        text = _("“%(rule)s” is as it was before the change: %(reading)s.")
        messages.success(request, text % {"rule": rule, "reading": rule.reading()})
        return redirect(admin_url(request, "django_ratelimit_lua_ratelimitrule_change", rule.pk))


def _notices(row: RateLimitRule) -> list[str]:
    """Return the notices of optional apps about a rule."""
    try:
        rule = row.compiled()
    except RuleError:
        return []  # The row was broken by hand.
    return [text for option in options().values() if (text := option.notice(rule))]


def _settings_rules() -> list[tuple[str, str, int | None]]:
    """Return the settings' rules: names, sentences, and the admin's rules that replace them."""
    rules = settings_rules()
    keys = RateLimitRule.objects.keys_by_name(rule.name for rule in rules)
    return [(rule.name, reading(rule.given or {}), keys.get(rule.name)) for rule in rules]
