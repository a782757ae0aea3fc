"""The report of a replay as plain values: the JSON, from which templates render the text."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from ...limits.rate import SECOND, Rate
from ...operations.curve import Curve, CurvePoint, plot_curve
from ...operations.plot import Plot, read_style, render
from ...rules.describe import period_words
from ...rules.describe import reading as sentence_of
from .deciding import Replayed
from .tallies import Tally

MAX_OFFENDERS = 10
PERCENT = (99, 99.9, 99.99)
"""Of identities, for which `--suggest` names the limit that never refuses them."""


def as_json(replayed: Replayed) -> dict[str, Any]:
    """Return the report: times in ISO 8601 and UTC, shares from 0 to 1, periods in seconds."""
    reading = replayed.reading
    planner = replayed.planner
    return {
        "logs": [{"name": name, "format": form} for name, form in replayed.formats.items()],
        "from": _iso(replayed.first),
        "until": _iso(replayed.last),
        "lines": replayed.taken + reading.broken,
        "is_cut": replayed.is_cut,
        "broken": reading.broken,
        "broken_first": [line._asdict() for line in reading.shown],
        "without_request": reading.empty,
        "late": reading.late,
        "spread": reading.spread,
        "met": replayed.met,
        "allowed": replayed.met - replayed.refused,
        "refused": replayed.refused,
        "refused_then": replayed.refused_then,
        "refused_both": replayed.refused_both,
        "rules": [_rule(tally) for tally in replayed.tallies.values()],
        "not_looked_at": dict(planner.unseen),
        "notes": [*reading.ended, *planner.notes_on(replayed.named)],
        "failed": {
            name: {"lines": count, "first": text} for name, (count, text) in planner.failed.items()
        },
    }


def _rule(tally: Tally) -> dict[str, object]:
    busiest = None
    if tally.lines:
        busiest = {"from": _iso(tally.busiest.minute), "lines": tally.busiest.lines}
    return {
        "name": tally.rule.name,
        "reading": sentence_of(tally.rule.given or {}),
        "mode": tally.rule.mode,
        "lines": tally.lines,
        "allowed": tally.lines - tally.refused,
        "refused": tally.refused,
        "share": tally.refused / max(tally.lines, 1),
        "held": tally.held,
        "identities": len(tally.identities),
        "refused_identities": tally.refused_identities,
        "refused_then": tally.refused_then,
        "refused_both": tally.refused_both,
        "busiest_minute": busiest,
        "most_refused": [asdict(one) for one in tally.most_refused(MAX_OFFENDERS)],
        "curve": _curve(tally.curve()),
        "why_no_curve": tally.why_no_curve,
    }


def _curve(curve: Curve | None) -> dict[str, object] | None:
    if curve is None:
        return None
    return {
        "period": curve.period_us / SECOND,
        "per": _per(curve),
        "today": curve.today,
        "is_bound": not curve.is_exact,
        "requests": curve.requests,
        "identities": curve.people,
        "suggestions": [
            {"percent": percent, **_point(curve.enough_for(percent))} for percent in PERCENT
        ],
        "points": [_point(point) for point in curve.points()],
    }


def _point(point: CurvePoint) -> dict[str, int]:
    return {"limit": point.limit, "requests": point.requests.most, "identities": point.people.most}


def _per(curve: Curve) -> str:
    return period_words(Rate(1, curve.period_us))


def _iso(moment: int | None) -> str | None:
    if moment is None:
        return None
    return datetime.fromtimestamp(moment // SECOND, UTC).isoformat().replace("+00:00", "Z")


def plots(replayed: Replayed) -> dict[str, Plot]:
    """Return the refusal curves, by the names of the rules that have one."""
    drawn = {}
    for name, tally in replayed.tallies.items():
        curve = tally.curve()
        if curve is not None:
            title = f"{name}: {sentence_of(tally.rule.given or {})}"
            drawn[name] = plot_curve(
                curve.points(),
                curve.requests,
                curve.people,
                _per(curve),
                today=curve.today,
                title=title,
            )
    return drawn


def page(replayed: Replayed) -> str:
    """Return the refusal curves of all rules, as a page with tables of their numbers."""
    tallies = replayed.tallies
    curves = [(plot, _curve(tallies[name].curve())) for name, plot in plots(replayed).items()]
    return render("ratelimit_replay/report.html", {"curves": curves, "style": read_style()})


def as_text(replayed: Replayed) -> str:
    """Return the report for a terminal."""
    found = _printable(as_json(replayed))
    for rule in found["rules"]:
        rule["percent"] = f"{rule['share']:.2%}"
    return render("ratelimit_replay/report.txt", {"found": found}).strip()


def _printable(value: object) -> Any:
    """Return a value without control characters, which a terminal would interpret."""
    if isinstance(value, str):
        return "".join(letter if letter.isprintable() else "\ufffd" for letter in value)
    if isinstance(value, dict):
        return {_printable(key): _printable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return value
