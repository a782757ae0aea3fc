"""What a rule would do that its author may not expect, and has to confirm."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext_lazy as _

from ..identity.keys import compile_key
from ..limits.rate import LimitError, Rate
from ..operations.call_sites import call_sites_of, look_for_call_sites, meant_by, route_names
from ..rules.callsite import known_call_sites, losses
from ..rules.describe import rate_words, whom
from ..rules.rule import lumps_strangers


def surprises(given: dict[str, Any]) -> list[tuple[str, Any]]:
    """What a rule would do that its author may not expect: (field, what). `given`: the values of its fields, and its
    `rates`."""
    look_for_call_sites()
    warnings: list[tuple[str, Any]] = []
    paths = [line.strip() for line in given.get("path", "").splitlines() if line.strip()]
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
        warnings.append(("limit", _("A limit of 0 refuses every request that the rule applies to.")))
    if _is_one_for_all(given):
        problem = _(
            "All clients that are not logged in would share one count. Count by user_or_ip, or choose the audience "
            "“logged in”."
        )
        warnings.append(("key", problem))
    if given.get("route") and given["route"] not in route_names():
        warnings.append(("route", _("No URL pattern has this name: the rule would match nothing.")))
    if (
        given.get("name")
        and not given.get("exempt")
        and not (paths or given.get("route") or given.get("group"))
        and given["name"] not in known_call_sites
    ):
        problem = _("The rule has no path and no route, and no limit in the code has its name: it would do nothing.")
        meant = meant_by(given["name"])
        hint = _("Did you mean “%(name)s”?") % {"name": meant} if meant else ""
        warnings.append(("name", f"{problem} {hint}".strip()))
    return [*warnings, *lost_of_call_sites(given)]


def _is_one_for_all(given: dict[str, Any]) -> bool:
    try:
        key = compile_key(tuple(part.strip() for part in given.get("key", "").split("+")))
    except LimitError:
        return False  # There is none, or it is refused anyway.
    return not given.get("exempt") and lumps_strangers(key, [given.get("audience", "everyone")])


def lost_of_call_sites(given: dict[str, Any]) -> list[tuple[str, Any]]:
    """What the call sites limit in whose place the rule stands, and the rule does not."""
    name, group = given.get("name", ""), given.get("group", "")
    if group not in ("", name):
        return []  # It stands beside them.
    sites = call_sites_of(name)
    rates = [Rate.parse(rate) for rate in given.get("rates") or ()]
    key = "+".join(part.strip() for part in given.get("key", "").split("+"))
    is_off = given.get("exempt") or given.get("mode") == "off"
    warnings: list[tuple[str, Any]] = []
    for loss in losses(sites, key, [] if is_off else rates):
        words = {"rate": rate_words(str(loss.rate)), "whom": whom(loss.site.key.split("+")), "place": loss.site.place}
        if loss.looser is not None:
            field = "limit" if rates and loss.looser == rates[0] else "more_rates"
            problem = _("Looser than the code, which has %(rate)s per %(whom)s (%(place)s).")
        else:
            field = "key" if loss.is_uncounted and not is_off else "more_rates"
            problem = _(
                "The code also has %(rate)s per %(whom)s (%(place)s). This rule takes its place, and would drop that "
                "limit. Add it, or fill in “call site” instead: then the rule stands beside."
            )
        warnings.append((field, problem % words))
    return warnings
