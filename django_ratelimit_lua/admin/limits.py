"""The list of limits in the code, with links to rules for them, and copies of rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..exceptions import StoreError
from ..extension import Column, extensions
from ..identity.names import name_words
from ..limits.algorithms import OF_SLOTS
from ..limits.rate import Rate
from ..models import RateLimitRule
from ..operations.admin_urls import admin_url
from ..operations.call_sites import LimitInCode, call_sites_of, limits_in_code, taken_over
from ..rules import RuleError
from .forms import form_values
from .pages import page_response
from .revisions import Values


def limit_url(request: HttpRequest, name: str) -> str:
    """Return the URL of the page of a limit."""
    page = admin_url(request, "django_ratelimit_lua_ratelimitrule_changelist")
    return f"{page}?{urlencode({'name': name}, errors='replace')}"


def limit_label(name: str) -> str:
    """Return the name of a limit in words."""
    return name_words(name)


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


def _of_code(query: Mapping[str, str]) -> Values:
    """Return the values of a new rule for a call site.

    The parameter is `instead`, if the rule replaces the call site, or `beside`, if it is added;
    `which` is the number of the limit, if there are several.
    """
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
    rates: dict[int, Rate] = {}
    for other in (site, *sites):
        for rate in other.rates:
            if other.key == site.key and isinstance(rate, Rate):
                rates.setdefault(rate.period_us, rate)
    if rates:
        # A rule has one kind of limit. The form names the others, which are dropped.
        is_slots = next(iter(rates.values())).is_slots
        rates = {period: rate for period, rate in rates.items() if rate.is_slots == is_slots}
        if is_slots:
            values["algorithm"] = OF_SLOTS
    if beside:
        values |= {"name": _("%(name)s, slower") % {"name": name}, "group": name, "key": site.key}
        rates = dict([*rates.items()][:1])
    elif len({other.key for other in sites}) > 1:
        values["key"] = site.key
    return {**values, "rate": ", ".join(map(str, rates.values()))}


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
        """Return the initial values in a link, including all values of a rule that it names.

        The parameter `settings` names a rule of the settings; for those of call sites, see
        `_of_code`.
        """
        name = request.GET.get("settings")
        values = _of_code(request.GET)
        if name:
            try:
                values = form_values(taken_over(name))
            except RuleError as error:
                values = {"name": name}
                problem = _("This rule of the settings cannot be taken over: %(problem)s")
                messages.warning(request, problem % {"problem": error.words()})
        return {**super().get_changeform_initial_data(request), **values}
