"""The charges of a line: by the same index of paths, rules and keys that decide live requests.

A log does not contain all values that a rule may use. Rules that need more are left out, and the
report names them with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from django.utils.translation import gettext as _

from ...conf import conf
from ...conf.callables import name_of
from ...identity.forwarded import parse_address
from ...identity.keys import EXACT, registered_keys
from ...identity.routes import resolved
from ...limits.call import Charge
from ...limits.rate import Rate
from ...rules.exempt import is_exempt
from ...rules.rule import Rule
from ...rules.ruleset import Ruleset
from ...web.overrides import REFUSED
from ...web.plan import Place
from .formats import LogLine
from .requests import LoggedRequest, client_of

REMEMBERED = 50_000
"""Paths, and identities by rule, that are found out once; then all are forgotten, and found out
again.
"""
MAX_REMEMBERED_LENGTH = 512
"""Characters of such a path or identity; what is longer is found out each time, and not kept."""
_SEEN_IN_LOGS = {"user-agent": "agent", "referer": "referer", "host": "host"}
_BY_CLIENT = ("ip", "user", "user_or_ip")
_UNKNOWN = ("session", "post", "json", "data", "cookie")


class LineCharge(NamedTuple):
    """The charges of one rule for a line: those of its rates, and their identity in words."""

    rule: Rule
    charges: Sequence[Charge]
    client: str


class LinePlanner:
    """Plans the charges of lines by rules.

    `knows`: the values in their log, see `LogFormat`; `trusted`: the trusted proxies, as in
    `RATELIMIT_TRUSTED_PROXIES`.

    - `unseen`: by rule, why it is left out;
    - `notes`: further parts of rules that are left out;
    - `failed`: by rule, to how many lines it could not be applied, and the first error.
    """

    def __init__(self, ruleset: Ruleset, knows: frozenset[str], trusted: Any) -> None:
        self.unseen: dict[str, str] = {}
        self.notes: list[str] = []
        self.failed: dict[str, tuple[int, str]] = {}
        self._trusted, self._knows = trusted, knows
        self._has_names = False
        looked_at = []
        for rule in ruleset.rules:
            if rule.mode == "off":
                continue
            reason = why_unseen(rule, knows)
            if reason:
                self.unseen[rule.name] = reason
            else:
                looked_at.append(rule)
                self.notes += left_out(rule)
        if ruleset.kinds:
            self.notes.append(
                _("overrides are not looked at: exemptions, blocks, and limits of single users")
            )
        if callable(conf.IP_META_KEY):
            self.notes.append(
                _("RATELIMIT_IP_META_KEY is a function, and may not find the address in a log")
            )
        self.ruleset = Ruleset(looked_at)
        self._rules: dict[tuple[str, str], Sequence[Rule]] = {}
        self._charges: dict[tuple[str, Any], LineCharge | None] = {}
        self._reads = {
            rule.name: reads for rule in looked_at if (reads := _reads(rule, knows)) is not None
        }

    def plan(self, line: LogLine) -> list[LineCharge]:
        """The charges of a line, rule by rule."""
        target = line.target
        if "?" in target:
            target = target[: target.index("?")]
        place = (line.method, target)
        rules = self._rules.get(place)
        if rules is None:
            rules = self._matching(line)
            if len(self._rules) >= REMEMBERED:
                self._rules.clear()
            if len(target) <= MAX_REMEMBERED_LENGTH:
                self._rules[place] = rules
        found = []
        request = None
        for rule in rules:
            reads = self._reads.get(rule.name)
            if reads is not None:
                who = (rule.name, reads(line))
                charge = self._charges.get(who, _NOT_YET)
                if charge is _NOT_YET:
                    if len(self._charges) >= REMEMBERED:
                        self._charges.clear()
                    charge = self._charged(rule, line, self._request(line))
                    if sum(len(read or "") for read in who[1]) <= MAX_REMEMBERED_LENGTH:
                        self._charges[who] = charge
            else:
                request = request or self._request(line)
                charge = self._charged(rule, line, request)
            if charge is not None:
                found.append(charge)
        return found

    def notes_on(self, named: int) -> list[str]:
        """Further notes on the numbers, after all lines were planned.

        `named`: how many name a user.
        """
        notes = list(self.notes)
        if self._has_names:
            notes.append(
                _(
                    "addresses: the log has names in their place; each stands for an address of "
                    "its own"
                )
            )
        if "forwarded" in self._knows and self._trusted is None:
            notes.append(
                _(
                    "X-Forwarded-For: no proxy is trusted (--trusted-proxies, "
                    "RATELIMIT_TRUSTED_PROXIES)"
                )
            )
        if not named and any(rule.needs_user for rule in self.ruleset.rules):
            notes.append(_("users: no line names one, so everybody counts as not logged in"))
        return notes

    def _request(self, line: LogLine) -> LoggedRequest:
        self._has_names = self._has_names or parse_address(line.address) is None
        return LoggedRequest(line, client_of(line, self._trusted))

    def _matching(self, line: LogLine) -> Sequence[Rule]:
        request = self._request(line)
        if is_exempt(request):
            return ()
        rules = self.ruleset.matching(request)
        if any(rule.template is None for rule in rules):
            return ()
        return [rule for rule in rules if rule.matches_method(request)]

    def _charged(self, rule: Rule, line: LogLine, request: LoggedRequest) -> LineCharge | None:
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
        except (
            REFUSED
        ) as error:  # As Django refuses such a request: for example, its query is too long.
            count, first = self.failed.get(rule.name, (0, f"{type(error).__name__}: {error}"))
            self.failed[rule.name] = (count + 1, first)
            return None
        place = Place([rule])
        rates = [rate for rate in template.rates if isinstance(rate, Rate)]
        cost = template.cost
        place.add(rule, rule.name, template, rates, cost if isinstance(cost, int) else 1, identity)
        return LineCharge(
            rule, [planned.charge for planned in place.charges], words_of(identity, line, request)
        )


_NOT_YET: Any = object()


def _reads(rule: Rule, knows: frozenset[str]) -> Callable[[LogLine], tuple[str | None, ...]] | None:
    """A function that reads the few values of a line on which the identity depends.

    None if they are not few.
    """
    fields = ["user", "address", "forwarded"]
    for part in rule.key.name.split("+") if rule.key is not None else ("",):
        field = _SEEN_IN_LOGS.get(part.removeprefix(EXACT).removeprefix("header:").lower())
        if field is not None and "headers" not in knows:
            fields.append(field)
        elif part not in _BY_CLIENT:
            return None
    return attrgetter(*fields)


def words_of(identity: Any, line: LogLine, request: LoggedRequest) -> str:
    """An identity in words: an address as in the log, if it is a name there."""
    if identity is None:
        return _("everybody together")
    if isinstance(identity, tuple) and identity and isinstance(identity[0], tuple):
        return " + ".join(words_of(part, line, request) for part in identity)
    kind, value = (identity[0], identity[-1]) if isinstance(identity, tuple) else ("", identity)
    if kind == "ip" and request.META["REMOTE_ADDR"].startswith("fd") and ":" not in line.address:
        return line.address
    if value is None:
        return _("no %(kind)s") % {"kind": kind}
    return str(value)


def why_unseen(rule: Rule, knows: frozenset[str]) -> str:
    """Why a rule cannot be replayed from a log with these values; empty: it can."""
    template = rule.template
    if rule.group is not None:
        return _(
            "it applies at call sites of %(name)s, which are inside views; a log does not run them"
        ) % {"name": rule.group}
    if template is None:
        return ""
    if any(isinstance(rate, Rate) and rate.is_slots for rate in template.rates):
        return _("it limits how many run at once; how long requests took, a log does not tell")
    if template.key is not None:
        for part in template.key.name.split("+"):
            reason = _why_unknown(part, knows)
            if reason:
                return reason
    functions: list[Any] = [rate for rate in template.rates if callable(rate)]
    functions += [template.cost] if callable(template.cost) else []
    names = [name_of(function) for function in functions] + list(
        template.key.functions if template.key else ()
    )
    if names:
        return _("it goes by %(names)s, which may ask more of a request than a log knows") % {
            "names": ", ".join(names)
        }
    groups = [name for name in rule.audience if name.startswith("group:") or name == "staff"]
    if groups:
        return _("it is for %(names)s; a log does not know who that is") % {
            "names": ", ".join(groups)
        }
    return ""


def _why_unknown(part: str, knows: frozenset[str]) -> str:
    """Why a part of a key cannot be read from a log; empty: it can."""
    kind, _colon, name = part.removeprefix(EXACT).partition(":")
    registered = registered_keys().get(part)
    if kind in _UNKNOWN or (registered is not None and not registered.known_to_proxies):
        return _("it counts by %(part)s, which no log has") % {"part": part}
    if kind != "header" or "headers" in knows:
        return ""
    field = _SEEN_IN_LOGS.get(name.lower())
    if field in knows:
        return ""
    return _("it counts by %(part)s, which this log does not have") % {"part": part}


def left_out(rule: Rule) -> list[str]:
    """The parts of a rule that are left out, although the rule is replayed."""
    template = rule.template
    if template is None:
        return []
    notes = []
    if template.tiers:
        groups = ", ".join(group for group, _template in template.tiers)
        text = _(
            "%(rule)s: its tiers (%(groups)s) are not looked at; a log does not know who is in a "
            "group"
        )
        notes.append(text % {"rule": rule.name, "groups": groups})
    for option in ("lease", "split"):
        if template.options.get(option):
            text = _(
                "%(rule)s: its %(option)s is not looked at; every line is decided by the whole "
                "count"
            )
            notes.append(text % {"rule": rule.name, "option": option})
    return notes
