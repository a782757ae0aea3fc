"""Confirmations of changes that would refuse or admit all clients, and notices."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from django.urls import NoReverseMatch, get_script_prefix, reverse
from django.utils.translation import gettext as _

from ..conf import conf
from ..extension import documents, extensions
from ..identity.forwarded import parse_network
from ..limits import algorithms
from ..limits.rate import Rate
from ..models import RateLimitRule
from ..rules.callsite import LIMITER, CallSite, limits_of, losses
from ..rules.describe import key_label, rate_words
from ..rules.paths import path_pattern
from ..rules.places import place_problems
from ..rules.rule import Rule, RuleError
from ..rules.ruleset import settings_rules
from .call_sites import SETTINGS, call_sites_of
from .rules_yaml import RULE, Declared, RuleChange, build_rule

WIDE = {4: 8, 6: 16}
"""By version of IP: the prefix length up to which a network is a large part of the internet."""


def confirmations(row: RateLimitRule, exempt: Sequence[str] | None = None) -> list[tuple[str, str]]:
    """What has to be confirmed before a rule is saved, each with the field that it is about.

    `exempt`: the paths that rules exempt, if they are not to be read.
    """
    rule = row.compiled([])
    found = []
    if rule.template is None and any(not path.strip("/*") for path in rule.paths):
        found.append(("path", _("Every request of the site would be exempt from all rules.")))
    if rule.mode != "off" and (field := _refuses_all(rule)):
        found.append(
            (
                field,
                _(
                    "A limit of 0, or one below the cost, refuses every request that the rule "
                    "applies to."
                ),
            )
        )
    pages = admin_pages()
    if pages and _covers_admin(rule, pages, exempt_paths() if exempt is None else exempt):
        text = _(
            "The rule also limits this admin: an operator who is over the limit cannot change the "
            "rule here. A rule "
            "that exempts %(path)s prevents that."
        )
        found.append(("route" if not rule.paths else "path", text % {"path": pages[0]}))
    return [*found, *_lost_of_call_sites(row, rule)]


def _refuses_all(rule: Rule) -> str:
    """Return the field because of which no request is ever allowed: a limit of 0, or a cost above
    the limit.
    """
    template = rule.template
    if template is None:
        return ""
    algorithm = algorithms.find(template.options.get("algorithm") or conf.ALGORITHM)
    rates = [rate for rate in template.rates if isinstance(rate, Rate)]
    capacity = min(algorithm.capacity(rate, template.options) for rate in rates)
    if not capacity:
        return "limit"
    return "cost" if isinstance(template.cost, int) and capacity < template.cost else ""


def _covers_admin(rule: Rule, pages: Sequence[str], exempt: Sequence[str]) -> bool:
    if rule.template is None or rule.mode == "off" or any(_meets(path, pages) for path in exempt):
        return False
    if rule.paths:
        return any(_meets(path, pages) for path in rule.paths)
    return (rule.route or "").partition(":")[0] == "admin"


def _meets(path: str, pages: Sequence[str]) -> bool:
    """Whether a path of a rule is about any of these pages, or what is below the first."""
    if "*" not in path and path.startswith(pages[0]):
        return True
    return any(path_pattern(path).matches(page) for page in pages)


def admin_pages() -> list[str]:
    """Pages of the admin as rules see their paths, the start first; none if it is not there."""
    script = get_script_prefix().rstrip("/")
    try:
        names = ("index", "login", "django_ratelimit_lua_ratelimitrule_changelist")
        return [reverse(f"admin:{name}").removeprefix(script) for name in names]
    except NoReverseMatch:
        return []


def exempt_paths(without: Collection[str] = ()) -> list[str]:
    """The paths that rules exempt, of the settings and of the admin.

    Without rules of the admin of these names.
    """
    of_settings = [
        path for rule in settings_rules() if rule.template is None for path in rule.paths
    ]
    rows = (
        RateLimitRule.objects.filter(exempt=True)
        .exclude(name__in=without)
        .values_list("path", flat=True)
    )
    return [
        *of_settings,
        *(line.strip() for path in rows for line in path.splitlines() if line.strip()),
    ]


def _lost_of_call_sites(row: RateLimitRule, rule: Rule) -> list[tuple[str, str]]:
    """The limits of the call sites that a rule replaces and does not keep."""
    rates = [] if rule.template is None or rule.mode == "off" else rule.template.rates
    text = _(
        "The code has %(rate)s per %(client)s (%(place)s). This rule replaces that limit, and "
        "does not keep it. Add "
        "it, or fill in “call site” instead: then this rule applies in addition."
    )
    lost = losses(
        replaced_call_sites(row.name, row.group), "" if rule.key is None else rule.key.name, rates
    )
    return [
        (
            "limit",
            text
            % {
                "rate": rate_words(str(rate)),
                "client": key_label(site.key.split("+")),
                "place": site.place,
            },
        )
        for site, rate in lost
    ]


def replaced_call_sites(name: str, group: str) -> list[CallSite]:
    """The call sites that a rule of that name and group replaces."""
    # Beside a call site nothing of it is lost; a rule of the settings is replaced by its name
    # alone.
    return [site for site in call_sites_of(name) if group in ("", name) or site.kind == SETTINGS]


def notices(row: RateLimitRule, before: RateLimitRule | None) -> list[str]:
    """What an operator should know about a rule that is saved: counts that start again (`before`:
    the rule as it was), places that are not there, and clients that share one count.
    """
    try:
        rule, sites = row.compiled([]), replaced_call_sites(row.name, row.group)
        was = None if before is None or before.name != row.name else before.compiled([])
    except RuleError:
        return []  # The row was broken by hand.
    found = place_problems(rule)
    if rule.template is None or rule.mode == "off":
        return found
    if was is not None and was.template is not None:
        counted = _counts(was, limits_of(was), sites)
    else:
        counted = {
            count for site in sites for count in _counts(None, site.limits_at(row.name), [site])
        }
    own = _counts(rule, limits_of(rule), sites)
    if {period for _key, period, _part in counted - own} & {
        period for _key, period, _part in own - counted
    }:
        found.append(
            _(
                "The key or the algorithm is another than before: the counts of this limit start "
                "again."
            )
        )
    if rule.lumps_strangers:
        text = _(
            "All clients that are not logged in share one count. Count by user_or_ip, or limit "
            "the audience."
        )
        found.append(text)
    return found


def _counts(
    rule: Rule | None, limits: Sequence[Any], sites: Sequence[CallSite]
) -> set[tuple[str, int, bytes]]:
    """The counts of limits: by which key, for which period, and under which name."""
    key = sites[0].key if sites else ""
    if rule is not None and rule.key is not None:
        key = rule.key.name
    if any(site.kind == LIMITER for site in sites):  # Each call has its own key.
        key = ""
    return {(key, limit.rate.period_us, limit.key_part) for limit in limits}


def enforcing(rule: RateLimitRule) -> list[tuple[str, Any]]:
    """What has to be confirmed before a rule is enforced that was not: what it would have refused
    as it is now.
    """
    if rule.exempt:
        return []
    warning = _("Enforced, the rule refuses whoever is over its limit.")
    return [("mode", f"{warning} {rehearsal(rule)}".rstrip())]


def rehearsal(rule: RateLimitRule) -> str:
    """The requests that a rule would have refused in shadow mode, in words.

    Empty if no annex has counted them.
    """
    return " ".join(filter(None, (extension.rehearsal(rule) for extension in extensions)))


def changed_confirmations(changes: Sequence[RuleChange]) -> dict[str, list[str]]:
    """What has to be confirmed of changes of rules, by their labels.

    What a rule does already is not in it.
    """
    changed = {change.name for change in changes if change.word == RULE}
    after = {
        change.name: _row(change.after)
        for change in changes
        if change.after and change.word == RULE
    }
    exempt_before, exempt = exempt_paths(), exempt_paths(without=changed)
    exempt += [
        path for row in after.values() if row and row.exempt for path in row.compiled([]).paths
    ]
    found: dict[str, list[str]] = {}
    for change in changes:
        row, before = after.get(change.name), _row(change.before)
        if change.word != RULE or row is None:
            continue
        known = (
            []
            if before is None
            else [text for _field, text in confirmations(before, exempt_before)]
        )
        new = [text for _field, text in confirmations(row, exempt) if text not in known]
        found |= {change.label: new} if new else {}
    return found


def changed_notices(changes: Sequence[RuleChange]) -> dict[str, list[str]]:
    """The notices about changes, by their labels."""
    found: dict[str, list[str]] = {}
    for change in changes:
        row = _row(change.after) if change.word == RULE else None
        texts = [] if row is None else notices(row, _row(change.before))
        if change.word != RULE and change.before is None:
            texts = documents()[change.word].notices(change.name)
        found |= {change.label: texts} if texts else {}
    return found


def _row(declared: Declared | None) -> RateLimitRule | None:
    try:
        return None if declared is None else build_rule(declared)[0]
    except RuleError:
        return None  # The row was broken by hand.


def override_confirmations(
    given: Mapping[str, Any], peer: str | None = None
) -> list[tuple[str, Any]]:
    """What has to be confirmed before an override is saved: it would be about everybody.

    `given`: the values of its fields, and its `networks`; `peer`: the proxy that the operator's own
    request came through, if it did.
    """
    warnings: list[tuple[str, Any]] = []
    if given.get("effect") == "limit" and given.get("limit") == 0:
        warnings.append(("limit", _("A limit of 0 refuses every request, as a block does.")))
    for network in given.get("networks", ()):
        problems = []
        if is_wide(network):
            problems.append(
                _(
                    "“%(network)s” is a large part of the whole internet: everybody there would "
                    "be meant."
                )
            )
        if is_proxy(network, peer):
            problems.append(
                _(
                    "“%(network)s” is a proxy of this site: everybody who comes through it would "
                    "be meant."
                )
            )
        warnings += [("network", problem % {"network": network}) for problem in problems]
    return warnings


def is_wide(network: str) -> bool:
    """Whether a network is a large part of the internet.

    >>> is_wide("10.0.0.0/8"), is_wide("10.0.0.0/9"), is_wide("2001::/16"), is_wide("2001:db8::/32")
    (True, False, True, False)
    """
    try:
        meant = parse_network(network)
    except ValueError:
        return False  # An invalid rule is refused anyway.
    return meant.prefixlen <= WIDE[meant.version]


def is_proxy(network: str, peer: str | None) -> bool:
    """Whether an address or network has a known proxy in it, or is a part of theirs."""
    try:
        meant = parse_network(network)
        trusted = conf.TRUSTED_PROXIES if isinstance(conf.TRUSTED_PROXIES, tuple) else ()
        known = [*trusted, *([parse_network(peer)] if peer else [])]
    except ValueError:
        return False  # An invalid rule is refused anyway.
    return any(meant.version == proxy.version and meant.overlaps(proxy) for proxy in known)
