"""The admin of rules: one list of all limits, a form with a plot, and all earlier versions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import quote

from django.contrib import admin, messages
from django.contrib.admin.utils import flatten_fieldsets, unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.template.response import TemplateResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..exceptions import StoreError
from ..models import RateLimitChange, RateLimitRule
from ..models.audit import Conflict
from ..models.rule import rules_database
from ..operations.confirmations import confirmations
from ..operations.formatting import breakable
from ..operations.known_limits import LimitInCode, limits_in_code, place_words
from ..publishing.publisher import OwnerError, publish
from ..rules import RuleError
from ..rules.options import option_table
from ..rules.provider import refresh_ruleset
from ..rules.status import problems
from ..views.call_sites import describe_rule
from .forms import (
    RuleForm,
    absent_options,
    code_names,
    confirmation_digest,
    default_algorithm,
    option_conditions,
)
from .history import describe_change, may_undo, restored_rule, revision_of, rule_of, undo_label
from .limits import LimitPages, ListColumn, limit_url, list_columns
from .pages import ActingAdmin, Context, View, admin_url, page_response
from .preview import preview, preview_of_form

MAX_PROBLEMS = 5
"""Maximum number of problems of published rules on the list of rules."""
CONFIRM = "confirm"
MODES = {
    "enforce": gettext_lazy("Enforce"),
    "shadow": gettext_lazy("Shadow mode"),
    "off": gettext_lazy("Turn off"),
}


def sections() -> list[tuple[Any, dict[str, Any]]]:
    """Return the sections of the form. Options are in the last one, but for tiers and places."""
    table = option_table()
    places = [name for name, option in table.items() if option.is_place]
    advanced = [name for name in table if name not in ("tiers", *places)]
    return [
        (None, {"fields": ["name", "mode"]}),
        (_("Limit"), {"fields": ["rate", "key"]}),
        (_("Where it applies"), {"fields": ["path", "group", "method", "audience", *places]}),
        (_("Tiers and message"), {"fields": ["tiers", "message"]}),
        (_("Advanced"), {"classes": ("collapse",), "fields": ["description", "order", *advanced]}),
        (_("Confirm"), {"fields": [CONFIRM]}),
    ]


def _switch_action(mode: str, description: Any) -> Any:
    """Return the action that switches rules to a mode, which is its name."""

    @admin.action(description=description, permissions=["change"])
    def switch(page: RuleAdmin, request: HttpRequest, rows: QuerySet[RateLimitRule]) -> Any:
        return page.switch(request, rows, mode)

    switch.__name__ = mode
    return switch


class OtherLimit(NamedTuple):
    """A limit in the code or in the settings, as the list of rules shows it.

    - `cells`: the heading and the cell of each column of an optional app.
    """

    limit: LimitInCode
    label: str
    url: str
    cells: Sequence[tuple[object, object]]


class LimitList(ChangeList):
    """The list of rules. Its last page also has the limits in the code and in the settings."""

    others: Sequence[OtherLimit] = ()
    may_add = False

    def read_others(self, request: HttpRequest) -> None:
        """Set `others`, and read the cells of optional apps for them and for the rules."""
        limits = self._matching_limits()
        rows: dict[str, RateLimitRule | None] = {limit.name: None for limit in limits}
        rows |= {rule.name: rule for rule in self.result_list}
        columns = [column for column in self.list_display if isinstance(column, ListColumn)]
        for column in columns:
            column.cells = column.read_cells(request, rows)
        self.others = [_describe_other(request, limit, columns) for limit in limits]

    def _matching_limits(self) -> list[LimitInCode]:
        """Return the limits in the code whose name and description contain all searched words.

        They are on the last page, and only without a filter.
        """
        is_last = self.show_all or self.page_num >= self.paginator.num_pages
        if not is_last or self.has_active_filters:
            return []
        words = self.query.lower().split()
        limits = []
        for limit in limits_in_code():
            text = f"{limit.name} {limit.words}".lower()
            if all(word in text for word in words):
                limits.append(limit)
        return limits


def _describe_other(
    request: HttpRequest, limit: LimitInCode, columns: Iterable[ListColumn]
) -> OtherLimit:
    """Return the row of a limit in the code, with its cells in these columns."""
    cells = [(column.short_description, column.cells[limit.name]) for column in columns]
    return OtherLimit(limit, place_words(limit.name), limit_url(request, limit.name), cells)


class RuleAdmin(LimitPages, ActingAdmin):
    """The admin of rules, with their preview, modes and versions."""

    form = RuleForm
    list_display = ("limit", "sentence", "mode", "edit")
    list_display_links = None
    list_filter = ("mode",)
    search_fields = ("name", "description", "path", "route", "key", "group", "audience")
    actions = (
        _switch_action("enforce", gettext_lazy("Enforce: refuse requests over the limit")),
        _switch_action("shadow", gettext_lazy("Shadow mode: count, do not refuse")),
        _switch_action("off", gettext_lazy("Turn off")),
    )
    save_as = True
    change_list_template = "admin/django_ratelimit_lua/ratelimitrule/change_list.html"
    change_form_template = "admin/django_ratelimit_lua/ratelimitrule/change_form.html"
    object_history_template = "admin/django_ratelimit_lua/history.html"

    class Media:
        """The scripts of the form."""

        js = ("django_ratelimit_lua/preview.js", "django_ratelimit_lua/rule.js")

    def added_views(self) -> Iterable[tuple[str, View, str]]:
        return (
            ("limit/", self.limit_view, "limit"),
            ("preview/", self.preview_view, "preview"),
            ("undo/<int:pk>/", self.undo_view, "undo"),
        )

    @admin.display(description=gettext_lazy("limit"), ordering="name")
    def limit(self, rule: RateLimitRule) -> SafeString:
        """Return the name of the rule, with a link to its page."""
        return format_html(
            '<a href="limit/?name={}">{}</a>',
            quote(rule.name, safe="", errors="replace"),
            breakable(rule.name),
        )

    @admin.display(description=gettext_lazy("summary"))
    def sentence(self, rule: RateLimitRule) -> SafeString:
        """Return the rule in one sentence."""
        return breakable(rule.describe())

    @admin.display(description=gettext_lazy("actions"))
    def edit(self, rule: RateLimitRule) -> SafeString:
        """Return a link to the form of the rule."""
        return format_html('<a href="{}/change/">{}</a>', rule.pk, _("Edit"))

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Save a rule. A copy keeps the options of optional apps that are not installed."""
        if "_saveasnew" in request.POST and request.resolver_match is not None:
            key = unquote(request.resolver_match.kwargs.get("object_id", ""))
            original = self.get_object(request, key)
            if isinstance(original, RateLimitRule):
                obj.options = absent_options(original) | obj.options
        super().save_model(request, obj, form, change)

    def get_form(self, request: HttpRequest, obj: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Return the class of the form. It adds the fields of options itself."""
        names = kwargs.get("fields") or flatten_fieldsets(self.get_fieldsets(request, obj))
        kwargs["fields"] = [name for name in names if name not in option_table()]
        return super().get_form(request, obj, *args, **kwargs)

    def get_fieldsets(self, request: HttpRequest, obj: object = None) -> Any:
        return sections()

    def get_search_fields(self, request: HttpRequest) -> tuple[str, ...]:
        """Return the search fields, including the places that optional apps add."""
        places = [f"options__{name}" for name, option in option_table().items() if option.is_place]
        return (*self.search_fields, *places)

    def get_list_display(self, request: HttpRequest) -> Any:
        """Return the columns, with those of optional apps, and “Edit” for users who may edit."""
        *first, last = self.list_display
        if not self.has_change_permission(request):
            return (*first, *list_columns())
        return (*first, *list_columns(), last)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return LimitList

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Return the list, with the limits in the code and the cells of all columns."""
        limit_list = super().get_changelist_instance(request)
        assert isinstance(limit_list, LimitList)
        limit_list.read_others(request)
        limit_list.may_add = self.has_add_permission(request)
        return limit_list

    def switch(
        self, request: HttpRequest, queryset: QuerySet[RateLimitRule], mode: str
    ) -> HttpResponse | None:
        """Switch rules to a mode one by one, so that each has an entry in Django's log.

        To turn them off, or to refuse every client, has to be confirmed: then the page that asks
        for it is returned. None: the rules are switched.
        """
        rules = list(queryset.exclude(mode=mode))
        warnings = []
        for rule in rules:
            old_mode = rule.mode
            rule.mode = mode
            with suppress(RuleError):  # An invalid rule can be turned off as well.
                warnings += [f"{rule}: {text}" for _field, text in confirmations(rule, old_mode)]
        if warnings and not _is_confirmed(request, warnings):
            return self.ask_to_confirm(request, warnings)
        for rule in rules:
            rule.set_mode(mode)
            self.log_change(request, rule, [{"changed": {"fields": [str(_("mode"))]}}])
        text = _("%(mode)s: applies to the next request.")
        if not rules:
            text = _("Nothing was changed: the rules already have this mode.")
        messages.success(request, text % {"mode": MODES[mode]})
        return None

    def ask_to_confirm(self, request: HttpRequest, texts: Sequence[str]) -> HttpResponse:
        """Ask to confirm these texts. The page sends the request again."""
        context = {
            "title": _("Are you sure?"),
            "texts": texts,
            "confirmed": confirmation_digest(texts),
            "sent": [
                (name, value)
                for name, values in request.POST.lists()
                if name not in ("csrfmiddlewaretoken", CONFIRM)
                for value in values
            ],
        }
        return page_response(self, request, "ratelimitrule/confirm.html", context)

    def changelist_view(
        self, request: HttpRequest, extra_context: Context | None = None
    ) -> HttpResponse:
        """Show the list, with the problems of the published rules."""
        try:
            publish()
            refresh_ruleset()
            for problem in problems.collect()[:MAX_PROBLEMS]:
                messages.warning(request, _("Not applied: %s") % problem)
        except OwnerError as error:
            messages.warning(request, str(error))
        except StoreError:  # The page reports it, see `audited`.
            pass
        return super().changelist_view(request, extra_context)

    def render_change_form(
        self, request: HttpRequest, context: Context, *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Render the form, with the preview of the rule as it is entered."""
        rule: RateLimitRule | None = kwargs.get("obj")
        form: RuleForm = context["adminform"].form
        context["names"] = code_names()
        context["conditions"] = {"options": option_conditions(), "algorithm": default_algorithm()}
        context["show_save_and_add_another"] = False
        if form.is_bound:
            context["preview"] = preview_of_form(request, request.POST)
        elif rule is not None:
            try:
                context["preview"] = preview(request, rule)
            except RuleError as error:
                texts = " ".join(problem.localized() for problem in error.each[:MAX_PROBLEMS])
                messages.error(request, _("The stored rule is invalid: %s") % texts)
        if rule is not None:
            context["limit_url"] = limit_url(request, rule.name)
        if form.is_editable:
            form.mark_hidden_fields()
        return super().render_change_form(request, context, *args, **kwargs)

    def preview_view(self, request: HttpRequest) -> HttpResponse:
        """Return the preview of the rule in a form, as a part of a page."""
        may_see = self.has_view_or_change_permission(request) or self.has_add_permission(request)
        if request.method != "POST" or not may_see:
            raise PermissionDenied
        return TemplateResponse(
            request,
            "admin/django_ratelimit_lua/ratelimitrule/preview.html",
            {"preview": preview_of_form(request, request.POST)},
        )

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: Context | None = None
    ) -> HttpResponse:
        """Show all versions of a rule, each with a button to undo its change."""
        rule = self.get_object(request, unquote(object_id))
        if rule is None:
            raise Http404
        changes = RateLimitChange.objects.using(rules_database()).filter(
            kind=RateLimitChange.Kind.RULE, object_id=rule.pk
        )
        context = {
            "versions": [
                (
                    change,
                    describe_change(change),
                    describe_rule(change.after or {}),
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
            RateLimitChange.objects.using(rules_database()), pk=pk, kind=RateLimitChange.Kind.RULE
        )
        if request.method != "POST" or not may_undo(request) or not change.before:
            raise PermissionDenied
        current = rule_of(change)
        mode = current.mode if current else ""
        try:
            if request.POST.get("revision", revision_of(current)) != revision_of(current):
                raise Conflict(current)
            rule = restored_rule(change)
            warnings = [text for _field, text in confirmations(rule, mode)]
            texts = [f"{rule}: {rule.describe()}", *warnings]
            if warnings and not _is_confirmed(request, texts):
                return self.ask_to_confirm(request, texts)
            rule.save(expected=current and current.revision)
        except Conflict:
            text = _("The rule was changed since this page was opened. Look at it, and undo again.")
            return _refuse_undo(request, text)
        except RuleError as error:
            return _refuse_undo(request, error.localized())
        message = _("Undone: revision %(revision)d and later.") % {"revision": change.revision}
        self.log_change(request, rule, message)
        text = _("“%(rule)s” is as it was before the change: %(reading)s.")
        messages.success(request, text % {"rule": rule, "reading": rule.describe()})
        return redirect(admin_url(request, "django_ratelimit_lua_ratelimitrule_change", rule.pk))


def _is_confirmed(request: HttpRequest, texts: Sequence[str]) -> bool:
    """Return whether a request confirms exactly these texts."""
    return request.POST.get(CONFIRM) == confirmation_digest(texts)


def _refuse_undo(request: HttpRequest, text: str) -> HttpResponse:
    """Return to the list of rules, with an error."""
    messages.error(request, text)
    return redirect(admin_url(request, "django_ratelimit_lua_ratelimitrule_changelist"))
