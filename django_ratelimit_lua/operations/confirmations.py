"""Confirmations of changes that would refuse or admit all clients, and notices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress

from django.urls import NoReverseMatch, get_script_prefix, reverse
from django.utils.translation import gettext as _

from ..conf import Network, conf
from ..identity.forwarded import parse_network
from ..limits import algorithms
from ..limits.limit import Limit
from ..limits.rate import Rate
from ..models import RateLimitRule
from ..rules import RuleError
from ..rules.callsite import LIMITER, CallSite, limits_of, losses
from ..rules.describe import key_label, rate_words
from ..rules.paths import path_pattern
from ..rules.places import place_problems
from ..rules.rule import Rule, Spec
from ..rules.ruleset import settings_rules
from ..rules.template import as_list
from .call_sites import SETTINGS, call_sites_of
from .rules_yaml import RuleChange

WIDE = {4: 8, 6: 16}
"""By version of IP: the prefix length up to which a network is a large part of the internet."""


def confirmations(row: RateLimitRule, exempt: Sequence[str] | None = None) -> list[tuple[str, str]]:
    """Return the warnings to confirm before a rule is saved, each with its field.

    Args:
        row: The rule.
        exempt: The paths that rules exempt. By default, `exempt_paths` reads them.
    """
    rule = row.compiled()
    found = []
    if rule.template is None and any(not path.strip("/*") for path in rule.paths):
        found.append(("path", _("Every request of the site would be exempt from all rules.")))
    field = _refuses_all(rule)
    if field:
        text = _(
            "A limit of 0, or one below the cost, refuses every request that the rule applies to."
        )
        found.append((field, text))
    if exempt is None:
        exempt = exempt_paths()
    pages = admin_pages()
    field = _covers_admin(rule, pages, exempt)
    if field:
        text = _(
            "The rule also limits this admin: an operator who is over the limit cannot change the "
            "rule here. A rule "
            "that exempts %(path)s prevents that."
        )
        found.append((field, text % {"path": pages[0]}))
    return [*found, *_lost_of_call_sites(row, rule)]


def _refuses_all(rule: Rule) -> str:
    """Return the field because of which every request is refused; empty if some are allowed."""
    template = rule.template
    if template is None or rule.mode == "off":
        return ""
    algorithm = algorithms.find(template.options.get("algorithm") or conf.ALGORITHM)
    rates = [rate for rate in template.rates if isinstance(rate, Rate)]
    capacity = min(algorithm.capacity(rate, template.options) for rate in rates)
    if not capacity:
        return "rate"
    if isinstance(template.cost, int) and capacity < template.cost:
        return "cost"
    return ""


def _covers_admin(rule: Rule, pages: Sequence[str], exempt: Sequence[str]) -> str:
    """Return the field because of which a rule limits pages of the admin; empty if it does not."""
    if rule.template is None or rule.mode == "off" or not pages or _match(exempt, pages):
        return ""
    if _match(rule.paths, pages):
        return "path"
    if not rule.paths and (rule.route or "").startswith("admin:"):
        return "route"
    return ""


def _match(paths: Sequence[str], pages: Sequence[str]) -> bool:
    return any(path_pattern(path).matches(page) for path in paths for page in pages)


def admin_pages() -> list[str]:
    """Return paths of admin pages, without the script prefix, the index first.

    There are none if the admin is not installed.
    """
    script = get_script_prefix().rstrip("/")
    try:
        names = ("index", "login", "django_ratelimit_lua_ratelimitrule_changelist")
        return [reverse(f"admin:{name}").removeprefix(script) for name in names]
    except NoReverseMatch:
        return []


def exempt_paths(without: Collection[str] = ()) -> list[str]:
    """Return the paths that rules exempt, ignoring the admin's rules of these names."""
    paths = [path for rule in settings_rules() if rule.template is None for path in rule.paths]
    rows = RateLimitRule.objects.filter(options__exempt=True).exclude(name__in=without)
    for path in rows.values_list("path", flat=True):
        paths += filter(None, map(str.strip, path.splitlines()))
    return paths


def _lost_of_call_sites(row: RateLimitRule, rule: Rule) -> list[tuple[str, str]]:
    """Return warnings about the call sites' limits that a rule replaces and does not keep."""
    rates: Sequence[object] = ()
    if rule.template is not None and rule.mode != "off":
        rates = rule.template.rates
    text = _(
        "The code has %(rate)s per %(client)s (%(place)s). This rule replaces that limit, and "
        "does not keep it. Add "
        "it, or fill in “call site” instead: then this rule applies in addition."
    )
    found = []
    for site, rate in losses(replaced_call_sites(row.name, row.group), _key_name(rule), rates):
        client = key_label(site.key.split("+"))
        values = {"rate": rate_words(str(rate)), "client": client, "place": site.place}
        found.append(("rate", text % values))
    return found


def replaced_call_sites(name: str, group: str) -> list[CallSite]:
    """Return the call sites that a rule of that name and group replaces."""
    # In addition to a call site, it replaces nothing. A rule of the settings is replaced by its
    # name alone.
    return [site for site in call_sites_of(name) if group in ("", name) or site.kind == SETTINGS]


def notices(row: RateLimitRule, before: RateLimitRule | None) -> list[str]:
    """Return the notices about a saved rule.

    They report that its counts start again, that the code does not have its route or call site, or
    that clients share one count.

    Args:
        row: The rule.
        before: The rule as it was, if it existed.
    """
    sites = replaced_call_sites(row.name, row.group)
    try:
        rule = row.compiled()
        was = None
        if before is not None and before.name == row.name:
            was = before.compiled()
    except RuleError:
        return []  # The row was broken by hand.
    found = place_problems(rule)
    if rule.template is None or rule.mode == "off":
        return found
    counted = _counts(limits_of(rule), _key_name(rule, sites))
    limits = [limit for site in sites for limit in site.limits]
    key = next((site.key for site in sites), "")
    if was is not None:
        limits = limits_of(was)
        key = _key_name(was, sites)
    before_counted = _counts(limits, key)
    if any(counted[period] != before_counted[period] for period in counted.keys() & before_counted):
        found.append(
            _("The key or the algorithm has changed: the counts of this limit start again.")
        )
    if rule.lumps_strangers:
        text = _(
            "All clients that are not logged in share one count. Count by user_or_ip, or limit "
            "the audience."
        )
        found.append(text)
    return found


def _key_name(rule: Rule, sites: Sequence[CallSite] = ()) -> str:
    """Return the key of a rule that replaces these call sites; empty if each call chooses a key."""
    if any(site.kind == LIMITER for site in sites):
        return ""
    if rule.key is not None:
        return rule.key.name
    return next((site.key for site in sites), "")


def _counts(limits: Sequence[Limit], key: str) -> dict[int, tuple[str, bytes]]:
    """Return the counts of limits by period: the key, and the name of the count.

    The counts of tiers are left out.
    """
    own = [limit for limit in limits if not limit.variant]
    return {limit.rate.period_us: (key, limit.key_part) for limit in own}


def enforcing(rule: RateLimitRule) -> list[tuple[str, str]]:
    """Return the warning to confirm before a rule in another mode is enforced.

    It contains what the rule would have refused so far.
    """
    if rule.options.get("exempt"):
        return []
    return [("mode", _("If the rule is enforced, it refuses every client over its limit."))]


def changed_confirmations(changes: Sequence[RuleChange]) -> dict[str, list[str]]:
    """Return the warnings to confirm for changes of rules, by the names of the rules.

    Effects that a rule has already are left out.
    """
    exempt_before = exempt_paths()
    exempt = exempt_paths(without=[change.name for change in changes])
    for change in changes:
        if change.after and change.after.get("exempt"):
            exempt += as_list(change.after.get("path", ()))
    found = {}
    for change in changes:
        known = _texts(change.before, exempt_before)
        new = [text for text in _texts(change.after, exempt) if text not in known]
        if new:
            found[change.name] = new
    return found


def _texts(spec: Spec | None, exempt: Sequence[str]) -> list[str]:
    if spec is None:
        return []
    try:
        found = confirmations(RateLimitRule.from_spec(spec), exempt)
    except RuleError:  # The row was broken by hand.
        return []
    return [text for _field, text in found]


def changed_notices(changes: Sequence[RuleChange]) -> dict[str, list[str]]:
    """Return the notices about changes, by the names of the rules."""
    found = {}
    for change in changes:
        if change.after is None:
            continue
        before = None
        if change.before is not None:
            before = RateLimitRule.from_spec(change.before)
        texts = notices(RateLimitRule.from_spec(change.after), before)
        if texts:
            found[change.name] = texts
    return found


def override_confirmations(networks: Iterable[str], peer: str | None = None) -> list[str]:
    """Return the warnings to confirm before an override that affects many clients is saved.

    Args:
        networks: The networks that it names.
        peer: The proxy that the operator's own request came through, if it did.
    """
    proxies: list[Network] = []
    if isinstance(conf.TRUSTED_PROXIES, tuple):
        proxies += conf.TRUSTED_PROXIES
    with suppress(ValueError):
        proxies.append(parse_network(peer or ""))
    warnings: list[str] = []
    for text in networks:
        try:
            network = parse_network(text)
        except ValueError:
            continue  # It is refused anyway.
        if network.prefixlen <= WIDE[network.version]:
            problem = _(
                "“%(network)s” is a large part of the whole internet: the override would apply to "
                "all its clients."
            )
            warnings.append(problem % {"network": text})
        if any(network.version == each.version and network.overlaps(each) for each in proxies):
            problem = _(
                "“%(network)s” is a proxy of this site: the override would apply to all clients "
                "behind it."
            )
            warnings.append(problem % {"network": text})
    return warnings
