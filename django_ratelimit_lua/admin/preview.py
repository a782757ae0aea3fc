"""The preview of a rule's form: the effect of the rule, as lines of an SVG and in words."""

from __future__ import annotations

from django.http import QueryDict
from django.utils.translation import gettext as _

from ..exceptions import StoreError
from ..limits.rate import Rate
from ..operations.confirmations import replaced_call_sites
from ..operations.plot import Plot, labels, ticks
from ..operations.simulate import Simulation, simulate
from ..rules import RuleError, compile
from ..rules.options import options
from .forms import PreviewForm
from .revisions import Values

IGNORED = {"tiers", "on_store_error", "lease", "split"}
"""Options that a preview ignores."""


def previewed(posted: QueryDict) -> dict[str, object]:
    """Return the context of the preview's template, from a form that may be incomplete."""
    if not posted.get("rate") and not posted.get("exempt"):
        return {"hint": _("Enter a limit to see what it would do.")}
    form = PreviewForm({**posted.dict(), "name": posted.get("name") or "preview"})
    form.is_valid()
    given = form.cleaned_data
    used = {"rate", *options()} - IGNORED
    spec = {name: value for name, value in form.instance.spec.items() if name in used}
    problems = [
        f"{form.fields[name].label}: {errors[0]}"
        for name, errors in form.errors.items()
        if name in used or name.startswith("preview_")
    ]
    if spec.get("exempt") and not problems:
        problems = [_("The rule exempts requests: every request is allowed, and none is counted.")]
    if problems:
        return {"problems": problems}
    try:
        template = compile({**spec, "name": "preview", "key": "ip"}, plain=True).template
        assert template is not None
        for site in replaced_call_sites(given.get("name", ""), given.get("group", ""))[:1]:
            template = template.in_place_of(site.limits)
        limits = template.limits("preview")
        if any(limit.holds for limit in limits):
            hint = _(
                "There is no preview of a concurrency limit: it depends on the duration of "
                "requests."
            )
            return {"hint": hint}
        first = limits[0].rate
        burst = given["preview_burst"]
        if burst is None:
            burst = min(2 * first.limit, 1000)
        flow: Rate | None = first
        if given["preview_flow"] == 0:
            flow = None
        elif given["preview_flow"]:
            unit = given["preview_unit"] or "m"
            flow = Rate.parse(f"{given['preview_flow']}/{unit}")
        simulation = simulate(limits, burst, flow, spec.get("cost", 1))
    except RuleError as error:
        return {"problems": [each.words() for each in error.each]}
    except StoreError as error:
        return {"problems": [_("Redis is unavailable: %s") % error]}
    left_out = notes(given)
    if simulation.seconds < max(limit.rate.period for limit in limits):
        left_out.append(_("The preview is shorter than the longest period."))
    return {"plot": plot(simulation).svg(), "words": words(simulation), "notes": left_out}


def notes(given: Values) -> list[str]:
    """Return the parts of the rule in the form that the preview ignores."""
    left_out = []
    if given.get("mode") == "shadow":
        text = _(
            "The rule is in shadow mode: it does not refuse. The preview shows what it would "
            "refuse."
        )
        left_out.append(text)
    elif given.get("mode") == "off":
        left_out.append(_("The rule is off. The preview shows what it would do."))
    if given.get("lease"):
        left_out.append(
            _("The preview ignores the lease: a process may refuse while others hold units.")
        )
    if given.get("split"):
        left_out.append(
            _("The preview ignores the split: each process has only a share of the limit.")
        )
    return left_out


def plot(simulation: Simulation) -> Plot:
    """Draw the cumulative numbers of sent and of allowed requests."""
    scale = ticks(simulation.burst + simulation.flow_sent)
    seconds = simulation.seconds

    def line(events: list[tuple[float, int]]) -> list[tuple[float, float]]:
        points = [(0.0, 0.0)]
        count = 0
        for at, number in sorted(events):
            if at <= seconds:
                count += number
                points.append((at / seconds, count / scale[-1]))
        return points

    units = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
    unit, length = next((pair for pair in units if seconds >= 2 * pair[1]), ("ms", 0.001))
    across = [(part / 6, f"{seconds * part / 6 / length:.3g} {unit}") for part in range(7)]
    drawn = Plot(_("Preview"), left=52, right=26, across=across, up=labels(scale))
    drawn.line("sent", line([(hit.at, hit.count) for hit in simulation.sent]))
    drawn.line(
        "passed", line([(hit.at + hit.wait, hit.granted) for hit in simulation.sent if hit.granted])
    )
    return drawn


def words(simulation: Simulation) -> str:
    """Describe the result of a simulation."""
    parts = []
    if simulation.burst:
        numbers = {"sent": simulation.burst, "granted": simulation.burst_granted}
        parts.append(_("Requests at once: %(granted)d of %(sent)d allowed.") % numbers)
    if simulation.flow_sent:
        numbers = {"sent": simulation.flow_sent, "granted": simulation.flow_granted}
        parts.append(_("Steady requests: %(granted)d of %(sent)d allowed.") % numbers)
    longest = max((hit.wait for hit in simulation.sent if hit.granted), default=0.0)
    if longest:
        parts.append(_("The longest wait is %(seconds).3g s.") % {"seconds": longest})
    return " ".join(parts) or _("No requests.")
