"""What a rule does, beside its form and on its page: who gets how much, and a plot."""

from __future__ import annotations

from django.http import HttpRequest, QueryDict
from django.utils.translation import gettext as _

from ..exceptions import StoreError
from ..models import RateLimitRule
from ..operations.allowances import allowances
from ..operations.call_sites import LimitInCode, limits_named
from ..operations.plot import draw, words
from ..operations.simulate import simulate
from ..rules import compile
from ..rules.options import option_table
from ..rules.template import LimitTemplate
from ..views.call_sites import known_call_sites, place_problems
from .forms import RuleForm
from .identities import override_words
from .pages import Context

IGNORED = {"tiers", "on_store_error", "lease", "split"}
"""Options that a plot ignores."""


def preview_of_form(request: HttpRequest, posted: QueryDict) -> Context:
    """Return the context of `preview.html` for a form that may be incomplete."""
    if not posted.get("rate") and not posted.get("exempt"):
        return {"hint": _("Enter a limit to see what it would do.")}
    given = posted.copy()
    given["name"] = posted.get("name") or "preview"
    given.pop("_redraw", None)
    pk = request.GET.get("rule", "")
    stored = None
    if pk.isdecimal() and len(pk) < 19:
        stored = RateLimitRule.objects.filter(pk=int(pk)).first()
    form = RuleForm(given, instance=stored)
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
        "allowances": allowances(row, lambda override: override_words(request, override)),
    }
    if rule.template is None:
        return {**context, "hint": _("No rule applies to these requests, and none is counted.")}
    limits = _template(row).limits("preview")
    if any(limit.holds for limit in limits):
        return context
    try:
        simulation = simulate(limits, row.options.get("cost", 1))
    except StoreError:  # The page reports it, see `audited`.
        return {**context, "hint": _("Redis does not answer.")}
    return {**context, "plot": draw(simulation), "words": words(simulation.hits)}


def _template(row: RateLimitRule) -> LimitTemplate:
    """Return the limits of a rule, without options that a plot ignores."""
    used = {"rate", *option_table()} - IGNORED
    spec = {name: value for name, value in row.spec.items() if name in used}
    template = compile({**spec, "name": "preview", "key": "ip"}, plain=True).template
    assert template is not None
    sites = known_call_sites.get(row.name)
    if sites and replaced_limits(row):
        template = template.in_place_of(sites[0].limits)
    return template


def replaced_limits(row: RateLimitRule) -> list[LimitInCode]:
    """Return the limits in the code and the settings that a rule replaces."""
    is_bare = not (row.path or row.route or row.group)
    limits = limits_named(row.name)
    return [limit for limit in limits if limit.is_rule or is_bare or row.group == row.name]
