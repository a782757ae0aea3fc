"""The list of limits in the code, with links to rules for them, and copies of rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from django.contrib import admin, messages
from django.contrib.admin.options import InlineModelAdmin
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..exceptions import StoreError
from ..extension import Column, extensions
from ..limits.algorithms import OF_SLOTS
from ..limits.rate import Rate
from ..models import RateLimitRule
from ..models.rate_fields import problem_text
from ..operations.admin_urls import admin_url
from ..operations.call_sites import LimitInCode, call_sites_of, limits_in_code, taken_over
from ..rules.rule import RuleError
from .pages import page_response
from .versioned import Values


class ListColumn:
    """A column of an optional app, in the form that `list_display` takes."""

    def __init__(self, column: Column) -> None:
        self.__name__ = column.name
        self.short_description = column.heading
        self.column = column
        self._cells: Mapping[str, object] = {}
        self._missing = "—"

    def read(self, request: HttpRequest, rules: Mapping[str, RateLimitRule | None]) -> None:
        """Read the cells of these limits. If Redis is unavailable, each is unknown."""
        try:
            self._cells = self.column.cells(request, rules)
        except StoreError:
            self._missing = _("unknown: Redis is unavailable")

    def has(self, limit: RateLimitRule | LimitInCode) -> bool:
        """Return whether a limit has a cell."""
        return limit.name in self._cells

    def __call__(self, limit: RateLimitRule | LimitInCode) -> object:
        return self._cells.get(limit.name, self._missing)


def list_columns() -> list[ListColumn]:
    """Return the columns that optional apps add to the lists of rules and limits."""
    return [ListColumn(column) for extension in extensions for column in extension.columns]


def column_cells(request: HttpRequest, rules: Sequence[RateLimitRule]) -> list[SafeString]:
    """Return for each rule the cells of these columns that have one, as parts of a page."""
    columns = list_columns()
    for column in columns:
        column.read(request, {rule.name: rule for rule in rules})
    return [
        format_html_join(" ", "{}", ((column(rule),) for column in columns if column.has(rule)))
        for rule in rules
    ]


def copied(request: HttpRequest) -> tuple[Values, list[Values]]:
    """Return the initial values of a new rule and its tiers, from the parameters of a link.

    The parameter is one of these: `copy` (a rule of the admin), `settings` (a rule of the
    settings), `instead` (a call site that the rule replaces), or `beside` (a call site to which the
    rule is added; `which` is the number of the limit, if there are several).
    """
    query = request.GET
    if query.get("copy", "").isdecimal():
        row = RateLimitRule.objects.filter(pk=query["copy"]).first()
        if row is None:
            return {}, []
        tiers = list(row.tiers.all())
        row.name = _("%(name)s, copy") % {"name": row.name}
    elif query.get("settings"):
        try:
            row, tiers = taken_over(query["settings"])
        except RuleError:
            return {"name": query["settings"]}, []
    else:
        return _of_code(query), []
    values = row.values()
    values.pop("id", None)
    return values, [{"group": tier.group, **tier.numbers()} for tier in tiers]


def _of_code(query: Mapping[str, str]) -> Values:
    beside = query.get("beside", "")
    name = query.get("instead") or beside
    if not name:
        return {}
    values: Values = {"name": name}
    sites = call_sites_of(name)
    if not sites:
        return values
    numbered = {str(number): site for number, site in enumerate(sites)}
    site = numbered.get(query.get("which", ""), sites[0])
    by_period: dict[int, Rate] = {}
    for other in (site, *sites):
        for rate in other.rates:
            if other.key == site.key and isinstance(rate, Rate):
                by_period.setdefault(rate.period_us, rate)
    rates = list(by_period.values())
    if beside:
        values = {"name": _("%(name)s, slower") % {"name": name}, "group": name, "key": site.key}
        rates = rates[:1]
    elif len({other.key for other in sites}) > 1:
        values["key"] = site.key
    if rates:
        is_slots = rates[0].is_slots
        row = RateLimitRule()
        # A rule has one kind of limit. The form names the others, which are dropped.
        row.rate = [str(rate) for rate in rates if rate.is_slots == is_slots]
        values |= row.numbers()
        del values["burst"]
        if is_slots:
            values["algorithm"] = OF_SLOTS
    return values


class LimitsInCode(admin.ModelAdmin):  # type: ignore[type-arg]
    """The part of the admin of rules that shows the limits in the code."""

    def limits_view(self, request: HttpRequest) -> HttpResponse:
        """List all limits in the code and the settings, with the rules that change them."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        limits = limits_in_code()
        columns = list_columns()
        for column in columns:
            column.read(request, {limit.name: None for limit in limits})
        context = {
            "title": _("All limits"),
            "limits": [
                (limit, [(column.short_description, column(limit)) for column in columns])
                for limit in limits
            ],
            "columns": [column.column for column in columns],
            "may_add": self.has_add_permission(request),
            "add_url": admin_url(request, "django_ratelimit_lua_ratelimitrule_add"),
        }
        return page_response(self, request, "ratelimitrule/limits.html", context)

    def get_changeform_initial_data(self, request: HttpRequest) -> Values:
        """Return the initial values in a link, including all values of a rule that it names."""
        if request.GET.get("settings"):
            try:
                taken_over(request.GET["settings"])
            except RuleError as error:
                problem = _("This rule of the settings cannot be taken over: %(problem)s")
                messages.warning(request, problem % {"problem": problem_text(error.problem)})
        return {**super().get_changeform_initial_data(request), **copied(request)[0]}

    def get_formset_kwargs(
        self, request: HttpRequest, obj: object, inline: InlineModelAdmin[Model, Model], prefix: str
    ) -> Values:
        kwargs = super().get_formset_kwargs(request, obj, inline, prefix)
        if getattr(obj, "pk", None) is None:
            kwargs["initial"] = copied(request)[1]
        return kwargs
