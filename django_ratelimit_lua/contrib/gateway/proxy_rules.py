"""The rules that apply to requests of proxies, and the reasons why the others do not."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from django.utils.translation import gettext as _

from ...limits.rate import Rate
from ...rules.paths import PathIndex
from ...rules.rule import Rule
from ...rules.ruleset import Ruleset
from .conf import settings


def _unknown(rule: Rule, *, is_user_known: bool) -> list[str]:
    """Return the values that the rule needs and a proxy cannot know, in words.

    If there are any, the rule does not apply. `is_user_known`: whether a header of the proxy
    contains the user.
    """
    rates = () if rule.template is None else rule.template.rates
    keys = [str(key.label) for key in rule.keys if not key.known_to_proxies]
    needs = {
        _("the route"): rule.route is not None or rule.needs_route,
        _("the logged-in user"): rule.needs_user and not is_user_known,
        _("the session"): rule.needs_session,
        _("fields of the body"): any(key.needs_body for key in rule.keys),
        # Slots are held until the request is over.
        _("the end of the request"): any(
            isinstance(rate, Rate) and rate.is_slots for rate in rates
        ),
        ", ".join(keys): bool(keys),
    }
    return [words for words, is_needed in needs.items() if is_needed]


@lru_cache(maxsize=4)
def _index(ruleset: Ruleset, is_user_known: bool) -> PathIndex:
    return PathIndex(
        [rule for rule in ruleset.at_paths if not _unknown(rule, is_user_known=is_user_known)]
    )


def rules_at(ruleset: Ruleset, path: str, *, is_user_known: bool) -> Sequence[Rule]:
    """Return the rules for a path that apply to requests of proxies, in their order."""
    return _index(ruleset, is_user_known).matching(path)


def lacking(rule: Rule) -> str:
    """Return the values that a proxy lacks to apply a rule, in words.

    It is empty if nothing is missing, or if no proxy uses the gateway.
    """
    if settings.GATEWAY_DIALECT is None or not rule.is_for_requests or rule.mode == "off":
        return ""
    is_user_known = settings.GATEWAY_USER_HEADER is not None
    return ", ".join(_unknown(rule, is_user_known=is_user_known))
