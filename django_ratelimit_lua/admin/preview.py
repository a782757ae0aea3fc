"""The preview of a rule's form: what the rule that is being written would do."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _

from ..exceptions import StoreError
from ..limits.options import OPTIONS
from ..limits.rate import Rate
from ..models import RateLimitRule
from ..operations.simulate import simulate
from ..rules.rule import RuleError, compile_rule
from .forms import PreviewForm, RuleForm
from .plot import plot

NUMBERS = (
    *("limit", "period", "unit", "cost", "exempt"),
    *(option for option in OPTIONS if option not in ("mode", "on_store_error", "lease", "split")),
)
"""The fields of a rule that a preview goes by."""


def previewed(posted: Any) -> dict[str, Any]:
    """What the preview's template needs, from a form that need not be complete."""
    sent = PreviewForm(posted)
    if not sent.is_valid():
        return {"problems": [f"{sent.fields[name].label}: {errors[0]}" for name, errors in sent.errors.items()]}
    form = RuleForm({**posted.dict(), "name": posted.get("name") or "preview", "confirm": "on"})
    form.is_valid()
    given = form.cleaned_data
    rule = RateLimitRule()
    for name in NUMBERS:
        setattr(rule, name, given.get(name, getattr(rule, name)))
    rule.name, rule.key = "preview", "ip"
    problems = [f"{form.fields[name].label}: {errors[0]}" for name, errors in form.errors.items() if name in NUMBERS]
    if rule.exempt and not problems:
        return {"problems": [_("The rule exempts requests: every request is allowed, and none is counted.")]}
    if problems or rule.limit is None or not rule.period:
        return {"problems": problems or [_("Enter a limit to see a preview.")]}
    try:
        template = compile_rule({**rule.declared(), "id": 0}, plain=True).template
        assert template is not None
        assert isinstance(template.rates[0], Rate)
        limit = template.limit("preview", template.rates[0])
        burst = sent.cleaned_data["preview_burst"]
        burst = min(2 * limit.rate.limit, 1000) if burst is None else burst
        flow = sent.cleaned_data["preview_flow"]
        unit = sent.cleaned_data["preview_unit"] or "m"
        steady = limit.rate if flow is None else Rate.parse(f"{flow}/{unit}") if flow else None
        cost = 1 if rule.cost is None else rule.cost
        return {"plot": plot(simulate(limit, burst, steady, cost))}
    except RuleError as error:
        return {"problems": [error.problem]}
    except StoreError as error:
        return {"problems": [_("Redis is unavailable: %s") % error]}
