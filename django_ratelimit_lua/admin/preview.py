"""What a rule does, beside its form and on its page: who gets how much, and a plot."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from django.http import HttpRequest, QueryDict
from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..engine.decide import build_call
from ..exceptions import StoreError
from ..identity import digest
from ..limits.call import MAX_COST, Charge
from ..limits.limit import TIER, Limit
from ..limits.rate import SECOND
from ..models import RateLimitOverride, RateLimitRule
from ..operations.formatting import number_words
from ..operations.known_limits import LimitInCode, limits_named
from ..rules import compile
from ..rules.describe import rate_words
from ..rules.options import option_table
from ..rules.template import LimitTemplate
from ..store import get_store
from ..views.call_sites import constant_limits, known_call_sites, place_problems
from ..web.refusal import duration_words
from .forms import RuleForm
from .identities import override_words
from .pages import Context

IGNORED = {"tiers", "on_store_error", "lease", "split"}
"""Options that a plot ignores."""
MAX_CALLS = 60
"""Maximum number of decisions about the stream; those about the burst are half as many."""
MAX_BURST = 1000
START_US = 1_767_225_600 * SECOND
"""2026-01-01 00:00 UTC: every simulation begins here, as windows of the calendar do."""
WIDTH = 540
HEIGHT = 200
"""The size of the area of the lines. The labels are around it."""
MAX_OVERRIDES = 50
"""Maximum number of overrides that the preview and the page of a limit list."""


def preview_of_form(request: HttpRequest, posted: QueryDict) -> Context:
    """Return the context of `preview.html` for a form that may be incomplete.

    If the URL names a rule, the form edits that one. Nothing is saved.
    """
    if not posted.get("rate") and not posted.get("exempt"):
        return {"hint": _("Enter a limit to see what it would do.")}
    values = posted.copy()
    values["name"] = posted.get("name") or "preview"
    values.pop("_redraw", None)
    pk = request.GET.get("rule", "")
    stored = None
    if pk.isdecimal() and len(pk) < 19:
        stored = RateLimitRule.objects.filter(pk=int(pk)).first()
    form = RuleForm(values, instance=stored)
    form.is_asking = False
    if form.is_valid():
        return preview(request, form.instance)
    labels = {name: f"{field.label}: " for name, field in form.fields.items()}
    errors = [f"{labels.get(name, '')}{texts[0]}" for name, texts in form.errors.items()]
    return {"problems": errors}


def preview(request: HttpRequest, row: RateLimitRule) -> Context:
    """Return the context of `preview.html` for a valid rule, which may be unsaved.

    Raises:
        RuleError: The rule is invalid.
    """
    rule = row.compiled()
    context: Context = {
        "problems": place_problems(rule),
        "replaced": replaced_limits(row),
        "allowances": allowances(request, row),
    }
    if rule.template is None:
        return {**context, "hint": _("No rule applies to these requests, and none is counted.")}
    limits = _plotted_template(row).limits("preview")
    if any(limit.holds for limit in limits):
        return context
    try:
        hits = simulate(limits, row.options.get("cost", 1))
    except StoreError:  # The page reports it, see `audited`.
        return {**context, "hint": _("Redis does not answer.")}
    plot = draw_plot(hits, 2 * limits[0].rate.period)
    return {**context, "plot": plot, "words": describe_hits(hits)}


def _plotted_template(row: RateLimitRule) -> LimitTemplate:
    """Return the limits of a rule, without options that a plot ignores.

    If the rule replaces call sites, they have the options that the rule does not set.
    """
    plotted = {"rate", *option_table()} - IGNORED
    spec = {name: value for name, value in row.spec.items() if name in plotted}
    template = compile({**spec, "name": "preview", "key": "ip"}, plain=True).template
    assert template is not None
    sites = known_call_sites.get(row.name)
    if sites and replaced_limits(row):
        template = template.replacing(sites[0].limits)
    return template


def replaced_limits(row: RateLimitRule) -> list[LimitInCode]:
    """Return the limits in the code and the settings that a rule replaces.

    A rule with a path, a route or another group is added to limits in the code.
    """
    is_bare = not (row.path or row.route or row.group)
    limits = limits_named(row.name)
    return [limit for limit in limits if limit.is_rule or is_bare or row.group == row.name]


class Allowance(NamedTuple):
    """The clients that a limit applies to, and what they get, in words."""

    clients: str
    words: str


def allowances(request: HttpRequest, row: RateLimitRule) -> list[Allowance]:
    """Return what everyone gets under a rule, then each tier, then each override with a rate.

    Args:
        request: The request, whose user may not be allowed to see all clients.
        row: The rule, which may be unsaved.

    Raises:
        RuleError: The rule is invalid.
    """
    limits = _limits_by_tier(row)
    if not limits:
        return []
    listed = [
        Allowance(tier or _("everyone"), limit_words(of_tier)) for tier, of_tier in limits.items()
    ]
    first = limits[""][0]
    for override in _rate_overrides(row):
        listed.append(Allowance(override_words(request, override), _words_under(override, first)))
    return listed


def _limits_by_tier(row: RateLimitRule) -> Mapping[str, Sequence[Limit]]:
    """Return the limits of a rule at constant rates, by the name of the tier; empty: no tier."""
    limits = defaultdict(list)
    for limit in constant_limits(row.compiled()):
        limits[limit.variant.removeprefix(f"{TIER}:")].append(limit)
    return limits


def _words_under(override: RateLimitOverride, limit: Limit) -> str:
    """Return the rate of a limit under an override with a rate, in words."""
    changed = override.override().apply_to(limit)
    if changed is limit:
        return _("skipped: does not fit this limit")
    return limit_words([changed])


def _rate_overrides(row: RateLimitRule) -> Iterable[RateLimitOverride]:
    """Return up to `MAX_OVERRIDES` overrides with a rate that name a rule, by old or new name."""
    stored = RateLimitRule.objects.filter(pk=row.pk).values_list("name", flat=True)
    names = {row.name, *stored}
    overrides = RateLimitOverride.objects.lasting().filter(effect="limit", rule__in=names)
    return overrides.select_related("user")[:MAX_OVERRIDES]


def limit_words(limits: Iterable[Limit]) -> str:
    """Return the rates of limits that apply together, and how many requests they allow at once.

    >>> limit_words([Limit("api", "60/m", algorithm="token_bucket", burst=20), Limit("day", "9/d")])
    '60 per minute, up to 20 at once and 9 per day'
    """
    return _(" and ").join(dict.fromkeys(map(_describe_limit, limits)))


def _describe_limit(limit: Limit) -> str:
    """Return the rate of a limit, with its burst or its queue."""
    rate = rate_words(str(limit.rate))
    if not limit.kind.is_bucket:
        return rate
    if limit.kind.waits_anyway:
        words = _("%(rate)s, one at a time, and up to %(number)s wait")
        number = limit.capacity - 1
    else:
        words = _("%(rate)s, up to %(number)s at once")
        number = limit.capacity
    return words % {"rate": rate, "number": number_words(number)}


class Hit(NamedTuple):
    """Requests that are sent at the same moment.

    - `at`: when they are sent, in seconds;
    - `sent`: their number;
    - `turn`: when the allowed ones have their turn;
    - `allowed`: how many are allowed.
    """

    at: float
    sent: int
    turn: float
    allowed: int


def simulate(limits: Sequence[Limit], cost: int = 1) -> list[Hit]:
    """Send twice the first limit at once, then twice its rate, for two of its periods.

    The script in Redis decides the limits together, on a simulated clock. Their counts are deleted
    afterwards.

    Raises:
        StoreError: Redis is unavailable.
    """
    name = uuid.uuid4().hex
    copies = [limit.renamed(f"preview:{name}:{number}") for number, limit in enumerate(limits)]
    hits = [_send_requests(copies, at, number, cost) for at, number in _plan_requests(limits[0])]
    get_store().reset(build_call([Charge(limit, digest("preview")) for limit in copies], "peek"))
    return hits


def _plan_requests(limit: Limit) -> list[tuple[float, int]]:
    """Return when to send requests, in seconds, and how many: the burst, then the stream."""
    burst = min(2 * limit.capacity, MAX_BURST)
    step = -(-burst // (MAX_CALLS // 2)) or 1
    planned = [(0.0, min(step, burst - sent)) for sent in range(0, burst, step)]
    rate = limit.rate
    stream = 4 * rate.limit
    step = -(-stream // MAX_CALLS) or 1
    pause = rate.period / 2 / (rate.limit or 1)
    return planned + [(sent * pause, step) for sent in range(step, stream + 1, step)]


def _send_requests(limits: Sequence[Limit], at: float, number: int, cost: int) -> Hit:
    """Decide requests of this cost that are sent at one moment, as one hit."""
    # No limit holds as many units as a call can take.
    units = min(number * cost, MAX_COST)
    charges = [Charge(limit, digest("preview"), units) for limit in limits]
    now = START_US + round(at * SECOND)
    decision = get_store().decide(build_call(charges, partial=number > 1, now=now))
    allowed = decision.granted // cost if cost else number * decision.allowed
    return Hit(at, number, at + decision.wait, allowed)


def draw_plot(hits: Sequence[Hit], seconds: float) -> SafeString:
    """Return the cumulative numbers of requests in a time as an SVG."""
    total = sum(hit.sent for hit in hits) or 1
    context = {
        "words": describe_hits(hits),
        "sent": _path_of_steps([(hit.at / seconds, hit.sent / total) for hit in hits]),
        "allowed": _path_of_steps([(hit.turn / seconds, hit.allowed / total) for hit in hits]),
        "most": number_words(total),
        "half": duration_words(seconds / 2),
        "end": duration_words(seconds),
    }
    return render_to_string("admin/django_ratelimit_lua/plot.html", context)


def _path_of_steps(points: Iterable[tuple[float, float]]) -> str:
    """Return the path of a line that rises at each point.

    The points are shares of the width, and by how much of the height it rises there.
    """
    line = f"M0 {HEIGHT}"
    height = 0.0
    for across, rise in sorted(points):
        height += rise
        if rise and across <= 1:
            line += f"H{across * WIDTH:.1f}V{HEIGHT - height * HEIGHT:.1f}"
    return f"{line}H{WIDTH}"


def describe_hits(hits: Sequence[Hit]) -> str:
    """Return the numbers of a simulation in a sentence.

    >>> describe_hits([Hit(0, 10, 0, 5), Hit(60, 5, 60, 5)])
    'Of 10 requests at once, 5 are allowed. Of the next 5, one by one, 5 are allowed.'
    """
    burst = [hit for hit in hits if not hit.at]
    stream = [hit for hit in hits if hit.at]
    texts = [
        _("Of %(sent)s requests at once, %(allowed)s are allowed.") % _count_requests(burst),
        _("Of the next %(sent)s, one by one, %(allowed)s are allowed.") % _count_requests(stream),
    ]
    longest = max((hit.turn - hit.at for hit in hits if hit.allowed), default=0)
    if longest:
        texts.append(_("The longest wait is %(time)s.") % {"time": duration_words(longest)})
    return " ".join(texts)


def _count_requests(hits: Sequence[Hit]) -> dict[str, str]:
    sent = sum(hit.sent for hit in hits)
    allowed = sum(hit.allowed for hit in hits)
    return {"sent": number_words(sent), "allowed": number_words(allowed)}
