"""The charges of a line, by the same index of paths, rules and keys as live requests.

A log does not contain all values that a rule may use. Rules that need others are left out, and the
report lists them with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from django.utils.translation import gettext as _

from ...conf import conf
from ...conf.callables import name_of
from ...identity.forwarded import parse_address
from ...identity.keys import registered_keys, split_prefix
from ...identity.routes import resolved
from ...limits.call import Charge
from ...limits.rate import Rate
from ...rules.exempt import is_exempt
from ...rules.rule import Rule
from ...rules.ruleset import Ruleset
from ...web.overrides import REFUSED
from ...web.plan import Place
from .formats import LogLine
from .requests import LoggedRequest, Trusted, client_of

_SEEN_IN_LOGS = {"user-agent": "agent", "referer": "referer", "host": "host"}
_UNKNOWN = ("session", "post", "json", "data", "cookie")


class LineCharge(NamedTuple):
    """The charges of one rule for a line, one for each rate, and their identity in words."""

    rule: Rule
    charges: Sequence[Charge]
    client: str


class LinePlanner:
    """Plans the charges of lines by rules.

    Args:
        ruleset: The rules.
        knows: The values that the log contains, see `LogFormat`.
        trusted: The trusted proxies, as in `RATELIMIT_TRUSTED_PROXIES`.

    Attributes:
        unseen: The reasons why rules are left out, by rule.
        notes: Notes on parts of rules that are left out.
        failed: The number of lines to which a rule could not be applied, and the first error, by
            rule.
    """

    def __init__(self, ruleset: Ruleset, knows: frozenset[str], trusted: Trusted) -> None:
        self.unseen: dict[str, str] = {}
        self.notes: list[str] = []
        self.failed: dict[str, tuple[int, str]] = {}
        self._trusted = trusted
        self._knows = knows
        self._has_names = False
        looked_at = []
        for rule in ruleset.rules:
            if rule.mode == "off":
                continue
            if reason := why_unseen(rule, knows):
                self.unseen[rule.name] = reason
            else:
                looked_at.append(rule)
                self.notes += left_out(rule)
        if ruleset.overrides.fields:
            self.notes.append(
                _("overrides are ignored: exemptions, blocks, and limits of single users")
            )
        if callable(conf.IP_META_KEY):
            self.notes.append(
                _("RATELIMIT_IP_META_KEY is a function, and may not find the address in a log")
            )
        self.ruleset = Ruleset(looked_at)

    def plan(self, line: LogLine) -> list[LineCharge]:
        """Return the charges of a line, rule by rule."""
        request = LoggedRequest(line, client_of(line, self._trusted))
        self._has_names = self._has_names or parse_address(line.address) is None
        if is_exempt(request):
            return []
        rules = self.ruleset.matching(request)
        if any(rule.template is None for rule in rules):
            return []
        charges = [
            self._charge(rule, line, request) for rule in rules if rule.matches_method(request)
        ]
        return [charge for charge in charges if charge is not None]

    def notes_on(self, named: int) -> list[str]:
        """Return all notes on the numbers, after all lines were planned.

        Args:
            named: The number of lines that name a user.
        """
        notes = list(self.notes)
        if self._has_names:
            notes.append(_("addresses: the log contains host names; each counts as one address"))
        if "forwarded" in self._knows and self._trusted is None:
            notes.append(
                _(
                    "X-Forwarded-For: no proxy is trusted (--trusted-proxies, "
                    "RATELIMIT_TRUSTED_PROXIES)"
                )
            )
        if not named and any(rule.needs_user for rule in self.ruleset.rules):
            notes.append(_("users: no line contains a user, so all clients count as not logged in"))
        return notes

    def _charge(self, rule: Rule, line: LogLine, request: LoggedRequest) -> LineCharge | None:
        template = rule.template
        assert template is not None
        assert template.key is not None
        standing = "authenticated" if line.user else "anonymous"
        if "everyone" not in rule.audience and standing not in rule.audience:
            return None
        if rule.needs_route:
            resolved(request)
        try:
            identity = template.key.read(rule.name, request, request.user)
        except REFUSED as error:  # Django refuses such a request: its query may be too long.
            count, first = self.failed.get(rule.name, (0, f"{type(error).__name__}: {error}"))
            self.failed[rule.name] = (count + 1, first)
            return None
        place = Place([rule])
        rates = [rate for rate in template.rates if isinstance(rate, Rate)]
        cost = 1
        if isinstance(template.cost, int):
            cost = template.cost
        place.add(rule, rule.name, template, rates, cost, identity)
        charges = [planned.charge for planned in place.charges]
        return LineCharge(rule, charges, words_of(identity, line, request))


def words_of(identity: object, line: LogLine, request: LoggedRequest) -> str:
    """Return an identity in words.

    If the log has a host name or another text in place of an address, that text is returned.
    """
    if identity is None:
        return _("all clients together")
    if isinstance(identity, tuple) and identity and isinstance(identity[0], tuple):
        return " + ".join(words_of(part, line, request) for part in identity)
    kind = ""
    if isinstance(identity, tuple):
        kind = identity[0]
        identity = identity[-1]
    if kind == "ip" and request.META["REMOTE_ADDR"].startswith("fd") and ":" not in line.address:
        return line.address
    if identity is None:
        return _("no %(kind)s") % {"kind": kind}
    return str(identity)


def why_unseen(rule: Rule, knows: frozenset[str]) -> str:
    """Return why a rule cannot be replayed from a log with these values; empty if it can."""
    template = rule.template
    if rule.group is not None:
        return _(
            "it applies at call sites of %(name)s inside views; a replay does not run views"
        ) % {"name": rule.group}
    if template is None:
        return ""
    if any(isinstance(rate, Rate) and rate.is_slots for rate in template.rates):
        return _("it limits concurrency; a log does not contain the duration of requests")
    names = [name_of(value) for value in (*template.rates, template.cost) if callable(value)]
    if template.key is not None:
        for part in template.key.name.split("+"):
            if reason := _why_unknown(part, knows):
                return reason
        names += template.key.functions
    if names:
        text = _("it uses %(names)s, which may need more of a request than a log contains")
        return text % {"names": ", ".join(names)}
    groups = [name for name in rule.audience if name.startswith("group:") or name == "staff"]
    if groups:
        text = _("it is for %(names)s; a log does not contain them")
        return text % {"names": ", ".join(groups)}
    return ""


def _why_unknown(part: str, knows: frozenset[str]) -> str:
    """Return why a part of a key cannot be read from a log; empty if it can."""
    _prefix, field = split_prefix(part)
    kind, _colon, name = field.partition(":")
    registered = registered_keys().get(part)
    if kind in _UNKNOWN or (registered is not None and not registered.known_to_proxies):
        return _("it counts by %(part)s, which no log contains") % {"part": part}
    if kind == "header" and knows.isdisjoint({"headers", _SEEN_IN_LOGS.get(name.lower())}):
        return _("it counts by %(part)s, which this log does not contain") % {"part": part}
    return ""


def left_out(rule: Rule) -> list[str]:
    """Return notes on the parts of a replayed rule that are ignored."""
    template = rule.template
    if template is None:
        return []
    notes = []
    if template.tiers:
        groups = ", ".join(group for group, _template in template.tiers)
        text = _("%(rule)s: its tiers (%(groups)s) are ignored; a log does not contain groups")
        notes.append(text % {"rule": rule.name, "groups": groups})
    text = _("%(rule)s: its %(option)s is ignored; every line uses the shared count")
    for option in ("lease", "split"):
        if template.options.get(option):
            notes.append(text % {"rule": rule.name, "option": option})
    return notes
