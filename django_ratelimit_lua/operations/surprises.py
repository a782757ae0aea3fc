"""What a rule would do that its author may not expect, and has to confirm."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from django.urls import NoReverseMatch, get_script_prefix, reverse
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..conf import conf
from ..exceptions import StoreError
from ..identity.forwarded import covers, parse_network
from ..identity.keys import compile_key
from ..limits import algorithms
from ..limits.rate import LimitError, Rate
from ..models import RateLimitRule, RateLimitTier
from ..models.override import within
from ..models.rate_fields import JOINERS
from ..rules.callsite import THROTTLE, CallSite, known_call_sites, limits_of, losses
from ..rules.describe import rate_words, whom
from ..rules.paths import path_pattern
from ..rules.places import unknown_places
from ..rules.rule import Rule, RuleError, lumps_strangers
from ..rules.ruleset import settings_rules
from ..stats.reading import shadow_numbers
from .breakers import in_code
from .breakers import meant_by as breaker_meant_by
from .call_sites import SETTINGS, call_sites_of
from .rules_yaml import BreakerChange, Built, Declared, RuleChange, build_rule
from .words import clients_words, number_words, share_words

WIDE = {4: 8, 6: 16}
"""By version of IP: the size from which on a network is so large that hardly anybody means it, and larger ones."""
NOTHING = _("A limit of 0 refuses every request that the rule applies to.")


def surprises(given: dict[str, Any], exempt: Sequence[str] | None = None) -> list[tuple[str, Any]]:
    """What a rule would do that its author may not expect: (field, what). `given`: the values of its fields, and its
    `rates`. `exempt`: the paths that rules exempt, if they are not to be looked up."""
    warnings: list[tuple[str, Any]] = []
    paths = _lines(given.get("path", ""))
    for path in paths:
        if path.strip("*") in ("", "/"):
            warnings.append(("path", _("“%(path)s” matches every request of the site.") % {"path": path}))
        elif path.startswith("*") and not path.startswith(("**", "*/")):
            problem = _("“%(path)s” matches nothing: a path begins with a slash, and a single * matches no slash.")
            warnings.append(("path", problem % {"path": path}))
        elif set(path) & set("?#"):
            problem = _("“%(path)s” matches nothing: a path ends where ? or # begins.")
            warnings.append(("path", problem % {"path": path}))
    if given.get("limit") == 0:
        warnings.append(("limit", NOTHING))
    if any(str(rate).startswith("0/") for rate in given.get("more_rates") or ()):
        warnings.append(("more_rates", NOTHING))
    if _is_never_paid(given):
        warnings.append(("cost", _("The cost is more than the limit allows at once: every request is refused.")))
    warnings += covered_admin(given, paths, exempt)
    if _is_one_for_all(given):
        problem = _(
            "All clients that are not logged in would share one count. Count by user_or_ip, or choose the audience "
            "“logged in”."
        )
        warnings.append(("key", problem))
    is_bare = not (paths or given.get("route") or given.get("group") or given.get("descriptor"))
    is_limit = not given.get("exempt")
    name, group = (given.get("name", ""), given.get("group", "")) if is_limit else ("", "")
    warnings += unknown_places(name, group, given.get("route", ""), is_bare=is_bare)
    return [*warnings, *lost_of_call_sites(given)]


def look_alikes(names: Collection[str]) -> dict[str, str]:
    """Of new names those that somebody may take for others, which count apart: each with what is said of it."""
    known = {*known_call_sites.names(), *(rule.name for rule in settings_rules()), *names}
    known.update(RateLimitRule.objects.values_list("name", flat=True))
    by_look: dict[str, list[str]] = {}
    for name in sorted(known):
        by_look.setdefault(_look(name), []).append(name)
    text = gettext("“%(name)s” looks like “%(other)s”, which is there already; they count apart.")
    found = {name: [other for other in by_look[_look(name)] if other != name] for name in names}
    return {name: text % {"name": name, "other": others[0]} for name, others in found.items() if others}


def _look(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold().translate(dict.fromkeys(map(ord, JOINERS)))


def enforcing(rule: RateLimitRule) -> list[tuple[str, Any]]:
    """What has to be confirmed before a rule is enforced that was not: what it would have refused as it is now."""
    if rule.exempt:
        return []
    words = judged(rule) or _("Redis is unavailable: what the rule would have refused is not known.")
    return [("mode", f"{_('Enforced, the rule refuses whoever is over its limit.')} {words}")]


def judged(rule: RateLimitRule) -> str:
    """What this version of a rule has seen in shadow mode, in words; empty where Redis cannot be asked."""
    try:
        numbers = shadow_numbers(rule.declared())
    except StoreError:
        return ""
    if not numbers.seen:
        return gettext("This version of the rule has seen no request in shadow mode yet.")
    return gettext(
        "Seen: %(seen)s requests, from %(clients)s. Would have refused: %(refused)s (%(share)s), from "
        "%(refused_clients)s."
    ) % {
        "seen": number_words(numbers.seen),
        "clients": clients_words(numbers.people),
        "refused": number_words(numbers.refused),
        "share": share_words(numbers.refused / numbers.seen),
        "refused_clients": clients_words(numbers.refused_people),
    }


def changed_surprises(changes: Sequence[RuleChange]) -> dict[str, list[str]]:
    """What changes of rules and breakers would do that their author may not expect and they do not do already, by the
    labels of the changes."""
    of_breakers = [change for change in changes if isinstance(change, BreakerChange) and change.before is None]
    changes = [change for change in changes if not isinstance(change, BreakerChange)]
    changed = {change.name for change in changes}
    after = {change.name: _built(change.after) for change in changes if change.after is not None}
    exempt = exempt_paths(without=changed)
    exempt += [path for built in after.values() if built and built[0].exempt for path in _lines(built[0].path)]
    exempt_before, found = exempt_paths(), {}
    alike = look_alikes([change.name for change in changes if change.before is None])
    for change in changes:
        if change.after is not None:
            before, built = None if change.before is None else _built(change.before), after[change.name]
            known = _all_surprises(before, exempt_before)
            new = [problem for problem in _all_surprises(built, exempt) if problem not in known]
            if built is not None:
                new += [str(problem) for _field, problem in begun_anew(built[0], None if before is None else before[0])]
            new += [alike[change.name]] if change.name in alike else []
            if new:
                found[change.label] = new
    strange = breaker_surprises([change.name for change in of_breakers])
    return found | {change.label: [strange[change.name]] for change in of_breakers if change.name in strange}


def breaker_surprises(names: Collection[str]) -> dict[str, str]:
    """Of names of breakers those that no code has, each with what is said of it."""
    known = in_code() if names else {}
    text = gettext(
        "No breaker in the code has this name, as far as it is imported here or was called lately: it would do nothing."
    )
    found = {}
    for name in names:
        if name not in known:
            meant = breaker_meant_by(name, known)
            hint = gettext("Did you mean “%(name)s”?") % {"name": meant} if meant else ""
            found[name] = f"{text} {hint}".strip()
    return found


def _built(declared: Declared) -> Built | None:
    try:
        return build_rule(declared)
    except RuleError:
        return None  # Somebody has broken the row by hand.


def _all_surprises(built: Built | None, exempt: Sequence[str]) -> list[str]:
    if built is None:
        return []
    rule, tiers = built
    given = {**rule.values(), "rates": _rates(rule)}
    found = [str(problem) for _field, problem in surprises(given, exempt)]
    if any(rate.startswith("0/") for tier in tiers for rate in _rates(tier)):
        found.append(str(NOTHING))
    return list(dict.fromkeys(found))


def _rates(row: RateLimitRule | RateLimitTier) -> list[str]:
    rate = row.rate
    return rate if isinstance(rate, list) else [] if rate is None else [rate]


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def covered_admin(
    given: dict[str, Any], paths: Sequence[str], exempt: Sequence[str] | None = None
) -> list[tuple[str, Any]]:
    """That a rule limits this admin, where whoever is over the limit could not change it any more."""
    if given.get("exempt") or given.get("mode") == "off":
        return []
    pages = admin_pages()
    if not pages:
        return []
    field, is_covered = "path", any(_meets(path, pages) for path in paths)
    if not paths and given.get("route"):
        field, is_covered = "route", str(given["route"]).partition(":")[0] == "admin"
    if not is_covered or any(_meets(path, pages) for path in (exempt_paths() if exempt is None else exempt)):
        return []
    problem = _(
        "The rule also limits this admin: whoever is over the limit cannot change the rule here. A rule that exempts "
        "%(path)s prevents that."
    )
    return [(field, problem % {"path": pages[0]})]


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
    """The paths that rules exempt, of the settings and of the admin; without rules of the admin of these names."""
    of_settings = [path for rule in settings_rules() if rule.template is None for path in rule.paths]
    rows = RateLimitRule.objects.filter(exempt=True).values_list("name", "path")
    return [*of_settings, *(path for name, lines in rows if name not in without for path in _lines(lines))]


def override_surprises(
    given: Mapping[str, Any], peer: str | None = None, own: str | None = None
) -> list[tuple[str, Any]]:
    """What an override would do that its author may not expect: (field, what). `given`: the values of its fields, and
    its `networks`; `peer`: the proxy that the author's own request came through, if it did; `own`: the address that the
    request came from."""
    warnings: list[tuple[str, Any]] = []
    if given.get("effect") == "limit" and given.get("limit") == 0:
        warnings.append(("limit", _("A limit of 0 refuses every request, as a block does.")))
    starts, ends = given.get("starts"), given.get("ends")
    is_over = ends is not None and ends == within(ends) and ends <= timezone.now()  # Else it is no date at all.
    if is_over and (starts is None or starts < ends):
        warnings.append(("ends", _("This is over already: the override would do nothing.")))
    for network in given.get("networks", ()):
        problems = []
        if is_wide(network):
            problems.append(_("“%(network)s” is a large part of the whole internet: everybody there would be meant."))
        if given.get("effect") == "exempt" and own is not None and covers(network, own):
            problems.append(_("“%(network)s” includes your own address: nothing would limit you any more, either."))
        if is_proxy(network, peer):
            problems.append(_("“%(network)s” is a proxy of this site: everybody who comes through it would be meant."))
        warnings += [("network", problem % {"network": network}) for problem in problems]
    return warnings


def is_wide(network: str) -> bool:
    """Whether a network is so large that hardly anybody means it.

    >>> is_wide("10.0.0.0/8"), is_wide("10.0.0.0/9"), is_wide("2001::/16"), is_wide("2001:db8::/32")
    (True, False, True, False)
    """
    try:
        meant = parse_network(network)
    except ValueError:
        return False  # What is none is refused anyway.
    return meant.prefixlen <= WIDE[meant.version]


def is_proxy(network: str, peer: str | None) -> bool:
    """Whether an address or network has a known proxy in it, or is a part of theirs."""
    try:
        meant = parse_network(network)
        trusted = conf.TRUSTED_PROXIES if isinstance(conf.TRUSTED_PROXIES, tuple) else ()
        known = [*trusted, *([parse_network(peer)] if peer else [])]
    except ValueError:
        return False  # What is none is refused anyway.
    return any(meant.version == proxy.version and meant.overlaps(proxy) for proxy in known)


def _is_one_for_all(given: dict[str, Any]) -> bool:
    try:
        key = compile_key(tuple(part.strip() for part in given.get("key", "").split("+")))
    except LimitError:
        return False  # There is none, or it is refused anyway.
    return not given.get("exempt") and lumps_strangers(key, [given.get("audience", "everyone")])


def _is_never_paid(given: dict[str, Any]) -> bool:
    """Whether one request costs more than the rule ever grants."""
    rates = [Rate.parse(rate) for rate in given.get("rates") or ()]
    if given.get("exempt") or not rates or not given.get("cost"):
        return False
    algorithm = algorithms.find(given.get("algorithm") or conf.ALGORITHM).name
    capacity: int = min(rate.limit for rate in rates)
    if algorithm == "token_bucket" and given.get("burst") is not None:
        capacity = given["burst"]
    elif algorithm == "leaky_bucket" and given.get("queue") is not None:
        capacity = given["queue"] + 1
    return 0 < capacity < int(given["cost"])


def begun_anew(row: RateLimitRule, before: RateLimitRule | None = None) -> list[tuple[str, Any]]:
    """That a rule in the place of a call site does not go on with the counts of the code, or with those of the same
    rule as it was `before`."""
    rule, sites = _limiting(row), replaced_call_sites(row.values())
    was = None
    if before is not None and before.name == row.name and replaced_call_sites(before.values()):
        was = _limiting(before)
    if rule is None or not sites:
        return []
    own_key = sites[0].key
    key = own_key if rule.key is None else rule.key.name
    counted = [(site.key, limit) for site in sites for limit in site.limits_at(row.name)]
    if was is not None:
        counted = [(own_key if was.key is None else was.key.name, limit) for limit in limits_of(was)]
    is_read = any(site.kind == THROTTLE or site.key for site in sites)  # Of a `RateLimiter`, calls say whom it counts.
    same = [limit for other, limit in counted if other == key or not is_read]
    if counted and not same:
        return [("key", _("Another key than before: all counts of this limit start again."))]
    limits = limits_of(rule)
    kept, periods = {limit.key_part for limit in limits}, {limit.rate.period_us for limit in limits}
    if any(limit.rate.period_us in periods and limit.key_part not in kept for limit in same):
        return [("algorithm", _("Another algorithm than before: all counts of this limit start again."))]
    return []


def _limiting(row: RateLimitRule) -> Rule | None:
    """What a row means, if it limits."""
    try:
        rule = row.compiled([])
    except RuleError:
        return None
    return None if rule.template is None or rule.mode == "off" else rule


def replaced_call_sites(given: Mapping[str, Any]) -> list[CallSite]:
    """The call sites whose place a rule of that name and group takes."""
    # Beside a call site nothing of it is lost; a rule of the settings is replaced by its name alone.
    name, group = given.get("name", ""), given.get("group", "")
    return [site for site in call_sites_of(name) if group in ("", name) or site.kind == SETTINGS]


def lost_of_call_sites(given: dict[str, Any]) -> list[tuple[str, Any]]:
    """What the call sites limit in whose place the rule stands, and the rule does not."""
    sites = replaced_call_sites(given)
    rates = [Rate.parse(rate) for rate in given.get("rates") or ()]
    key = "+".join(part.strip() for part in given.get("key", "").split("+"))
    is_off = given.get("exempt") or given.get("mode") == "off"
    warnings: list[tuple[str, Any]] = []
    for loss in losses(sites, key, [] if is_off else rates):
        words = {"rate": rate_words(str(loss.rate)), "whom": whom(loss.site.key.split("+")), "place": loss.site.place}
        if loss.looser is not None:
            field = "limit" if rates and loss.looser == rates[0] else "more_rates"
            problem = _("Looser than the code, which has %(rate)s per %(whom)s (%(place)s).")
        elif loss.is_uncounted and not is_off:
            field = "key"
            problem = _(
                "The code also has %(rate)s per %(whom)s (%(place)s). A rule counts by one key, and in the "
                "place of the code this one would drop that limit. Better give it a name of its own, and fill in "
                "“call site”: then the rule stands beside, and nothing is lost."
            )
        else:
            field = "more_rates"
            problem = _(
                "The code also has %(rate)s per %(whom)s (%(place)s). This rule takes its place, and would drop that "
                "limit. Add it, or fill in “call site” instead: then the rule stands beside."
            )
        warnings.append((field, problem % words))
    return warnings
