"""All limits in the code, each with a link to a rule for it; and rules that begin as a copy."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse
from django.urls import path, reverse
from django.utils.translation import gettext as _

from ..exceptions import StoreError
from ..extension import Column, extensions
from ..limits.algorithms import OF_SLOTS
from ..limits.rate import LimitError, Rate
from ..models import RateLimitRule
from ..models.rate_fields import problem_text
from ..operations.call_sites import call_sites_of, limits_in_code, rule_words, taken_over
from ..operations.formatting import breakable
from ..rules.rule import RuleError
from .pages import page_response


class ListColumn:
    """A column of an annex, as `list_display` takes it."""

    def __init__(self, column: Column) -> None:
        self.__name__ = column.name
        self.short_description = column.heading
        self._column = column
        self._cells: Mapping[str, Any] = {}

    def read(self, request: HttpRequest, rules: Mapping[str, RateLimitRule | None]) -> None:
        """Read the cells of these limits. If Redis is unavailable, they are empty."""
        with suppress(StoreError):
            self._cells = self._column.cells(request, rules)

    def cell(self, name: str) -> Any:
        return self._cells.get(name, "—")

    def __call__(self, rule: RateLimitRule) -> Any:
        return self.cell(rule.name)


def list_columns() -> list[ListColumn]:
    """The columns that annexes add to the lists of rules and limits."""
    return [ListColumn(column) for extension in extensions for column in extension.columns]


def copied(request: HttpRequest) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The initial values of a new rule and its tiers, from a link: a `copy` of a rule, a rule of
    the `settings`, `instead` of a call site, or `beside` it: of several limits there, number
    `which`.
    """
    asked = request.GET
    row: RateLimitRule | None = None
    tiers: list[Any] = []
    key = asked.get("copy", "")
    if key.isascii() and key.isdecimal() and len(key) < 19:
        row = RateLimitRule.objects.filter(pk=int(key)).first()
        tiers = [] if row is None else list(row.tiers.all())
    elif asked.get("settings"):
        try:
            row, tiers = taken_over(asked["settings"])
        except RuleError:
            return {"name": asked["settings"]}, []
    elif asked.get("instead") or asked.get("beside"):
        return _of_code(
            asked.get("instead", ""), asked.get("beside", ""), asked.get("which", "")
        ), []
    if row is None:
        return {}, []
    values = {name: value for name, value in row.values().items() if name != "id"}
    if key:
        values["name"] = _("%(name)s, copy") % {"name": row.name}
    return values, [{"group": tier.group, **tier.numbers()} for tier in tiers]


def filled_in(request: HttpRequest, more_rates: Any) -> dict[str, Any]:
    """The values that a link from the refusal curve sets in the form of a rule: its `limit` or
    `burst`, or, as `further_limit`, the limit of the period `further` among its further limits.
    """
    asked = request.GET
    values: dict[str, Any] = {}
    for name in ("limit", "burst"):
        field: Any = RateLimitRule._meta.get_field(name)
        with suppress(ValidationError):
            values |= {name: field.clean(asked[name], None)} if asked.get(name) else {}
    if asked.get("further") and asked.get("further_limit"):
        rates = list(more_rates) if isinstance(more_rates, list) else []
        with suppress(LimitError):
            wanted = Rate.parse(f"{asked['further_limit']}/{asked['further']}")
            others = [Rate.parse(rate) for rate in rates]
            if all(rate.period_us != wanted.period_us for rate in others):
                others.append(wanted)
            values["more_rates"] = [
                str(wanted if rate.period_us == wanted.period_us else rate) for rate in others
            ]
    return values


def _of_code(instead: str, beside: str, which: str) -> dict[str, Any]:
    name = instead or beside
    values: dict[str, Any] = {"name": name}
    sites = call_sites_of(name)
    if not sites:
        return values
    chosen = int(which) if which.isascii() and which.isdecimal() and len(which) < 9 else 0
    site = sites[min(chosen, len(sites) - 1)]
    by_period: dict[int, Rate] = {}
    for rate in (rate for other in (site, *sites) if other.key == site.key for rate in other.rates):
        if isinstance(rate, Rate):
            same = by_period.setdefault(rate.period_us, rate)
            by_period[rate.period_us] = min(rate, same, key=lambda rate: rate.limit)
    # A rule has one kind of limit. The form names the others, which are dropped.
    alike = [
        rate
        for rate in by_period.values()
        if rate.is_slots == next(iter(by_period.values())).is_slots
    ]
    rates = [str(rate) for rate in alike]
    if beside:
        values = {"name": _("%(name)s, slower") % {"name": name}, "group": name, "key": site.key}
        rates = rates[:1]
    elif len({other.key for other in sites}) > 1:
        values["key"] = site.key
    if rates:
        row = RateLimitRule()
        row.rate = rates
        values |= {name: value for name, value in row.numbers().items() if name != "burst"}
        if alike[0].is_slots:
            values["algorithm"] = OF_SLOTS
    return values


def _shown(rule: RateLimitRule) -> dict[str, Any]:
    return {"pk": rule.pk, "name": breakable(rule.name), "reading": breakable(rule_words(rule))}


class LimitsInCode(admin.ModelAdmin):  # type: ignore[type-arg]
    """The part of the admin of rules that knows what the code limits."""

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.limits_view)
        return [path("limits/", view, name="django_ratelimit_lua_limits"), *super().get_urls()]

    def limits_view(self, request: HttpRequest) -> HttpResponse:
        """All limits in the code and the settings, with the rules that retune them."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        limits = limits_in_code()
        columns = list_columns()
        for column in columns:
            column.read(request, {limit.name: None for limit in limits})
        context = {
            "title": _("What is there to limit"),
            "limits": [
                {
                    "limit": limit,
                    "name": breakable(limit.name),
                    "cells": [
                        (column.short_description, column.cell(limit.name)) for column in columns
                    ],
                    "sites": [breakable(site.words()) for site in limit.sites],
                    "rule": None if limit.rule is None else _shown(limit.rule),
                    "beside": [_shown(rule) for rule in limit.beside],
                }
                for limit in limits
            ],
            "columns": [(column.__name__, column.short_description) for column in columns],
            "may_add": self.has_add_permission(request),
            "add_url": reverse(
                "admin:django_ratelimit_lua_ratelimitrule_add", current_app=self.admin_site.name
            ),
        }
        return page_response(self, request, "ratelimitrule/limits.html", context)

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """The initial values of a link: all values of a rule that it names."""
        if request.GET.get("settings"):
            try:
                taken_over(request.GET["settings"])
            except RuleError as error:
                problem = _("This rule of the settings cannot be one of the admin: %(problem)s")
                messages.warning(request, problem % {"problem": problem_text(error.problem)})
        filled = super().get_changeform_initial_data(request)
        values = copied(request)[0]
        return {**filled, **values, **filled_in(request, values.get("more_rates"))}

    def get_formset_kwargs(
        self, request: HttpRequest, obj: Any, inline: Any, prefix: str
    ) -> dict[str, Any]:
        kwargs: dict[str, Any] = super().get_formset_kwargs(request, obj, inline, prefix)
        if getattr(obj, "pk", None) is None:
            kwargs["initial"] = copied(request)[1]
        return kwargs
