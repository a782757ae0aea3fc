"""Confirmations of changes that turn a rule off, or refuse every client."""

from __future__ import annotations

from contextlib import suppress

from django.utils.translation import gettext as _

from ..conf import conf
from ..conf.values import Network
from ..identity.address import parse_network
from ..limits import algorithms
from ..limits.rate import Rate
from ..models import RateLimitRule
from ..rules.rule import Rule

WIDE = {4: 8, 6: 16}
"""By version of IP: the prefix length up to which a network is a large part of the internet."""


def confirmations(row: RateLimitRule, mode: str = "") -> list[tuple[str, str]]:
    """Return the warnings to confirm before a rule is saved, each with its field.

    Args:
        row: The rule.
        mode: Its mode at present; empty if it is new.

    Raises:
        RuleError: The rule is not off, and invalid.
    """
    if row.mode == "off":
        if mode in ("", "off"):
            return []
        return [("mode", _("If the rule is off, it limits no client."))]
    field = _refusing_field(row.compiled())
    if not field:
        return []
    text = _("A limit of 0, or one below the cost, refuses every request that the rule applies to.")
    return [(field, text)]


def _refusing_field(rule: Rule) -> str:
    """Return the field because of which every request is refused; empty if some are allowed."""
    template = rule.template
    if template is None:
        return ""
    algorithm = algorithms.find(template.options.get("algorithm") or conf.ALGORITHM)
    rates = [rate for rate in template.rates if isinstance(rate, Rate)]
    capacity = min(algorithm.capacity(rate, template.options) for rate in rates)
    if not capacity:
        return "rate"
    if isinstance(template.cost, int) and capacity < template.cost:
        return "cost"
    return ""


def override_confirmations(text: str, peer: str | None = None) -> list[str]:
    """Return the warnings to confirm before a block that affects many clients is saved.

    Args:
        text: The network that it names; empty or invalid: none.
        peer: The proxy that the operator's own request came through, if it did.
    """
    try:
        network = parse_network(text)
    except ValueError:
        return []
    proxies: list[Network] = []
    if isinstance(conf.TRUSTED_PROXIES, tuple):
        proxies += conf.TRUSTED_PROXIES
    with suppress(ValueError):
        proxies.append(parse_network(peer or ""))
    warnings: list[str] = []
    if network.prefixlen <= WIDE[network.version]:
        problem = _(
            "“%(network)s” is a large part of the whole internet: the override would apply to "
            "all its clients."
        )
        warnings.append(problem % {"network": text})
    if any(network.version == proxy.version and network.overlaps(proxy) for proxy in proxies):
        problem = _(
            "“%(network)s” is a proxy of this site: the override would apply to all clients "
            "behind it."
        )
        warnings.append(problem % {"network": text})
    return warnings
