"""The page of a limit, and new rules for limits in the code and in the settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from ..engine import DecidedCharge
from ..engine.decide import peeking
from ..engine.run import run
from ..exceptions import StoreError
from ..extension import Column, extensions
from ..identity import Identity, digest
from ..identity.keys import ALL_CALLERS, field_identity, split_field
from ..limits.algorithms import OF_SLOTS
from ..limits.call import Charge
from ..limits.decision import LimitState
from ..limits.limit import Limit
from ..limits.rate import Rate
from ..models import RateLimitOverride, RateLimitRule
from ..operations.known_limits import limits_named, place_words
from ..rules import RuleError, compile
from ..rules.rule import is_storable
from ..rules.ruleset import settings_rules
from ..views.call_sites import SETTINGS, CallSite, constant_limits, replaced_call_sites
from .forms import Values, form_values
from .identities import may_see_overrides, override_words
from .pages import Context, admin_url, extension_sections, page_query, page_response
from .preview import MAX_OVERRIDES, preview


def limit_url(request: HttpRequest, name: str) -> str:
    """Return the URL of the page of a limit."""
    page = admin_url(request, "django_ratelimit_lua_limit")
    return f"{page}?{page_query(request, name=name)}"


class ListColumn:
    """A column of an optional app, in the form that `list_display` takes.

    - `cells`: by the name of each listed limit; empty until the list has read them.
    """

    def __init__(self, column: Column) -> None:
        self.__name__ = column.name
        self.short_description = column.heading
        self.column = column
        self.cells: Mapping[str, object] = {}

    def read_cells(
        self, request: HttpRequest, rules: Mapping[str, RateLimitRule | None]
    ) -> Mapping[str, object]:
        """Return the cell of each of these limits. If Redis is unavailable, each is unknown."""
        try:
            cells = self.column.cells(request, rules)
        except StoreError:
            return dict.fromkeys(rules, _("unknown"))
        return {name: cells.get(name, "—") for name in rules}

    def __call__(self, rule: RateLimitRule) -> object:
        return self.cells[rule.name]


def list_columns() -> list[ListColumn]:
    """Return the columns that optional apps add to the list of limits."""
    return [ListColumn(column) for extension in extensions for column in extension.columns]


class KeyedLimits(NamedTuple):
    """The limits at constant rates that count by one key.

    - `key`: its name; empty if each call names its client, or there are no limits.
    """

    key: str
    limits: Sequence[Limit]

    def shared_states(self) -> Sequence[LimitState]:
        """Return the states of the count that several clients share, if there is one.

        With the key `all`, all clients share it. If the key is a field, requests without the field
        share it, and only limits that these have used are returned.
        """
        if self.key == ALL_CALLERS:
            return self._peek_states(None)
        is_field = split_field(self.key) is not None
        if not is_field:
            return ()
        states = self._peek_states(field_identity(self.key, None))
        return [state for state in states if state.used]

    def _peek_states(self, identity: Identity) -> Sequence[LimitState]:
        """Return the state of each limit for an identity (None: that of `all`), and count nothing.

        Empty if Redis is unavailable.
        """
        client = digest(identity)
        charges = [
            DecidedCharge(Charge(limit.without_bans(), client), name="") for limit in self.limits
        ]
        try:
            return run(peeking(charges)).limits
        except StoreError:  # The page reports it, see `audited`.
            return ()


def _keyed_limits(name: str, row: RateLimitRule | None) -> KeyedLimits:
    """Return the limits of a rule, except those of its tiers; without a rule, those in the code.

    Of those in the code, only those with the key of the first are returned. A rule without a key
    counts by that key.

    Raises:
        RuleError: The rule is invalid.
    """
    sites = replaced_call_sites(name)
    code_key = sites[0].key if sites else ""
    if row is None:
        in_code = [limit for site in sites if site.key == code_key for limit in site.limits]
        return KeyedLimits(code_key, in_code)
    rule = row.compiled()
    key = code_key if rule.key is None else rule.key.name
    return KeyedLimits(key, [limit for limit in constant_limits(rule) if not limit.variant])


def _values_for_call_site(query: Mapping[str, str]) -> Values:
    """Return the values of a new rule for a call site.

    The parameter is `instead`, if the rule replaces the call site, or `beside`, if it is added;
    `which` is the number of the limit, if there are several.
    """
    beside = query.get("beside", "")
    name = query.get("instead") or beside
    sites = replaced_call_sites(name)
    if not sites:
        return {"name": name} if name else {}
    numbered = {str(number): site for number, site in enumerate(sites)}
    site = numbered.get(query.get("which", ""), sites[0])
    rates = _constant_rates(site, sites)
    values: Values = {"name": name}
    if rates and rates[0].is_slots:
        values["algorithm"] = OF_SLOTS
    if beside:
        values |= {"name": _("%(name)s, slower") % {"name": name}, "group": name, "key": site.key}
        values["method"] = ", ".join(sorted(site.methods or ()))
        rates = rates[:1]
    elif len({other.key for other in sites}) > 1:
        values["key"] = site.key
    return {**values, "rate": ", ".join(map(str, rates))}


def _constant_rates(site: CallSite, sites: Sequence[CallSite]) -> list[Rate]:
    """Return the constant rates of a call site, and then of the others with its key."""
    rates: dict[int, Rate] = {}
    for other in (site, *sites):
        for rate in other.rates:
            if other.key == site.key and isinstance(rate, Rate):
                rates.setdefault(rate.period_us, rate)
    first = next(iter(rates.values()), None)
    # A rule counts either requests or slots.
    return [rate for rate in rates.values() if first and rate.is_slots == first.is_slots]


def _values_for_settings_rule(name: str) -> Values:
    """Return the values of a new rule that replaces a rule of the settings.

    Raises:
        RuleError: There is no such rule, or the admin cannot store it.
    """
    rule = next((rule for rule in settings_rules() if rule.name == name), None)
    if rule is None:
        raise RuleError("name", f"there is no rule {name!r}", where=SETTINGS)
    spec = {field: _to_json(value) for field, value in rule.spec.items()}
    rates = rule.template and rule.template.rates
    if rates and all(isinstance(rate, Rate) for rate in rates):
        spec["rate"] = [str(rate) for rate in rates]
    compile(spec, plain=True, where=SETTINGS)
    return form_values(RateLimitRule.from_spec(spec))


def _to_json(value: object) -> object:
    """Return a value of a setting in the form that JSON has."""
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, tuple):
        return list(value)
    return value


class LimitPages(admin.ModelAdmin):  # type: ignore[type-arg]
    """The part of the admin of rules that shows one limit."""

    def limit_view(self, request: HttpRequest) -> HttpResponse:
        """Show the limit with the name in the query; status 404 for an unknown name."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        name = request.GET.get("name", "")
        context: Context = {
            "title": place_words(name),
            "name": name,
            "limits": limits_named(name),
            "may_add": self.has_add_permission(request),
            "sections": extension_sections(request, name),
            **_stored_context(request, name),
        }
        response = page_response(self, request, "ratelimitrule/limit.html", context)
        if not (context["rule"] or context["limits"] or context["sections"]):
            response.status_code = 404
        return response

    def get_changeform_initial_data(self, request: HttpRequest) -> Values:
        """Return the initial values in a link, including all values of a rule that it names.

        The parameter `settings` names a rule of the settings; for those of call sites, see
        `_values_for_call_site`.
        """
        name = request.GET.get("settings")
        if not name:
            values = _values_for_call_site(request.GET)
        else:
            try:
                values = _values_for_settings_rule(name)
            except RuleError as error:
                values = {"name": name}
                problem = _("This rule of the settings cannot be taken over: %(problem)s")
                messages.warning(request, problem % {"problem": error.localized()})
        return {**super().get_changeform_initial_data(request), **values}


def _stored_context(request: HttpRequest, name: str) -> Context:
    """Return the rule with a name, its preview, the shared counts and the overrides.

    If the rule is invalid, report that to the user.
    """
    row = None
    context: Context = {}
    if is_storable(name):  # No row has another name.
        row = RateLimitRule.objects.filter(name=name).first()
        context["overrides"] = _override_rows(request, name)
    try:
        limits = _keyed_limits(name, row)
        context |= {"key": limits.key, "states": limits.shared_states()}
        if row is not None:
            context["preview"] = preview(request, row)
    except RuleError as error:
        messages.error(request, _("The stored rule is invalid: %s") % error.localized())
    return {**context, "rule": row}


def _override_rows(request: HttpRequest, name: str) -> list[tuple[int, str, str]]:
    """Return up to `MAX_OVERRIDES` overrides that name a limit: id, client and effect of each.

    The list is empty if the user may not see them.
    """
    if not may_see_overrides(request):
        return []
    rows = RateLimitOverride.objects.lasting().filter(rule=name).select_related("user")
    return [
        (row.pk, override_words(request, row), str(row.get_effect_display()))
        for row in rows[:MAX_OVERRIDES]
    ]
