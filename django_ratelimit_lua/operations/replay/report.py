"""What a replay found, as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from django.utils.translation import gettext as _

from ...limits.rate import SECOND, Rate
from ...rules.describe import period_words
from ...rules.describe import reading as sentence_of
from ..curve_plot import Refused, curve_page, curve_svg
from .curve import CurvePoint, RefusalCurve
from .deciding import Replayed
from .reading import EarlyEnd
from .tallies import Tally

MOST_REFUSED = 10
LONGEST_SHOWN = 78
"""Characters of a user agent or a name on a terminal."""


def as_json(replayed: Replayed) -> dict[str, Any]:
    """The whole report in plain values: times in ISO 8601 and UTC, shares from 0 to 1, periods in seconds."""
    reading, planner = replayed.reading, replayed.planner
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
        "notes": [*map(_ended, reading.ended), *planner.notes_on(replayed.named)],
        "failed": {name: {"lines": count, "first": text} for name, (count, text) in planner.failed.items()},
    }


def _ended(end: EarlyEnd) -> str:
    if end.most:
        text = _("%(log)s: unpacked, it is larger than %(mebibytes)d MiB; what follows line %(lines)d is not looked at")
        return text % {**end._asdict(), "mebibytes": end.most >> 20}
    if end.damage:
        text = _("%(log)s: the file is damaged after line %(lines)d (%(damage)s); what follows is not looked at")
    else:
        text = _("%(log)s: the file is cut after line %(lines)d, as one is that is still being written")
    return text % end._asdict()


def _rule(tally: Tally) -> dict[str, Any]:
    rule, busiest, curve = tally.rule, tally.busiest, tally.curve()
    return {
        "name": rule.name,
        "reading": sentence_of(rule.given or {}),
        "mode": rule.mode,
        "lines": tally.lines,
        "allowed": tally.lines - tally.refused,
        "refused": tally.refused,
        "share": tally.refused / tally.lines if tally.lines else 0.0,
        "held": tally.held,
        "identities": len(tally.identities),
        "refused_identities": tally.refused_identities,
        "refused_then": tally.refused_then,
        "refused_both": tally.refused_both,
        "seconds_refused": round(tally.seconds_refused, 6),
        "busiest_minute": {"from": _iso(busiest.minute), "lines": busiest.lines} if busiest.lines else None,
        "most_refused": [one._asdict() for one in tally.most_refused(MOST_REFUSED)],
        "curve": None if curve is None else curve_as_json(curve),
        "why_no_curve": tally.why_no_curve,
    }


def curve_as_json(curve: RefusalCurve) -> dict[str, Any]:
    """A refusal curve in plain values."""
    return {
        "period": curve.period,
        "per": period_of(curve),
        "today": curve.today,
        "is_bound": curve.is_bound,
        "requests": curve.requests,
        "identities": curve.identities,
        "suggestions": [{"share": share, **point._asdict()} for share, point in curve.suggestions()],
        "points": [point._asdict() for point in curve.points()],
    }


def period_of(curve: RefusalCurve) -> str:
    """The period of its limits, as it stands behind "per"."""
    return period_words(Rate(1, round(curve.period * SECOND)))


def drawing(curve: RefusalCurve, title: str = "", *, stands_alone: bool = True) -> str:
    """A refusal curve as SVG."""
    requests, identities = max(curve.requests, 1), max(curve.identities, 1)
    points = [
        Refused(point.limit, point.requests / requests, point.identities / identities) for point in curve.points()
    ]
    return curve_svg(points, period_of(curve), today=curve.today, title=title, stands_alone=stands_alone)


def page(replayed: Replayed) -> str:
    """The refusal curves of all rules that have one, as a page."""
    curves = [(tally.rule, curve) for tally in replayed.tallies.values() if (curve := tally.curve()) is not None]
    titles = [f"{rule.name}: {sentence_of(rule.given or {})}" for rule, _curve in curves]
    svgs = [drawing(curve, title) for title, (_rule, curve) in zip(titles, curves, strict=True)]
    return curve_page(
        "What each limit refuses",
        svgs,
        [_table(title, curve) for title, (_, curve) in zip(titles, curves, strict=True)],
    )


def _table(title: str, curve: RefusalCurve) -> str:
    rows = "".join(
        f"<tr><th scope=row>{point.limit:,}</th><td>{point.requests:,}</td><td>{point.identities:,}</td></tr>"
        for point in curve.points()
    )
    head = "<tr><th scope=col>limit</th><th scope=col>requests refused</th><th scope=col>identities refused</th></tr>"
    return (
        f"<details><summary>{escape(title)}, per {period_of(curve)}: {curve.requests:,} requests of "
        f"{curve.identities:,} identities, as a table</summary><table>{head}{rows}</table></details>"
    )


def _iso(moment: int | None) -> str | None:
    if moment is None:
        return None
    return datetime.fromtimestamp(moment // SECOND, UTC).isoformat().replace("+00:00", "Z")


def as_text(replayed: Replayed) -> str:
    """The same for a terminal."""
    return "\n".join(_text(as_json(replayed)))


def _text(found: dict[str, Any]) -> Iterator[str]:
    if not found["lines"]:
        yield "no lines"
        yield from (f"note: {note}" for note in found["notes"])
        return
    logs = ", ".join(f"{log['name']} ({log['format']})" for log in found["logs"])
    yield f"{found['lines']:,} lines of {logs}" + (", which go on: the replay was ended" if found["is_cut"] else "")
    if found["from"]:
        yield f"from {_clock(found['from'])} to {_clock(found['until'])} UTC"
    yield from _about_lines(found)
    yield ""
    yield f"{found['met']:,} lines met rules: {found['allowed']:,} allowed, {found['refused']:,} refused"
    then, both = found["refused_then"], found["refused_both"]
    yield f"the log itself has {then:,} answers 429" + (f", of which {both:,} are refused here, too" if then else "")
    for rule in found["rules"]:
        yield ""
        yield from _about_rule(rule)
    if found["not_looked_at"] or found["notes"] or found["failed"]:
        yield ""
    for name, reason in found["not_looked_at"].items():
        yield f"not looked at: {name}: {reason}"
    for note in found["notes"]:
        yield f"note: {note}"
    for name, failed in found["failed"].items():
        yield f"{name} could not be applied to {failed['lines']:,} lines: {failed['first']}"


def _about_lines(found: dict[str, Any]) -> Iterator[str]:
    if found["broken"]:
        yield f"{found['broken']:,} lines are broken and left out:"
        for line in found["broken_first"]:
            yield f"  {line['log']}, line {line['number']}: {line['text']!r}"
    if found["without_request"]:
        yield f"{found['without_request']:,} lines have no request that a site could see"
    if found["late"]:
        yield f"{found['late']:,} lines are more out of order than can be sorted; they take the time of those before"
    if found["spread"]:
        yield (
            f"{found['spread']:,} lines share a second with others and are spread evenly within it "
            "(--ties together leaves them at its beginning)"
        )


def _about_rule(rule: dict[str, Any]) -> Iterator[str]:
    would = "would be refused" if rule["mode"] == "shadow" else "refused"
    yield f"{rule['name']}: {rule['reading']}"
    if not rule["lines"]:
        yield "  met no line"
        return
    yield from _columns(
        [
            ("lines", f"{rule['lines']:,}"),
            ("allowed", f"{rule['allowed']:,}"),
            (would, f"{rule['refused']:,}  ({rule['share']:.2%})"),
            *([("held for a moment", f"{rule['held']:,}")] if rule["held"] else []),
            ("identities", f"{rule['identities']:,}, of which {rule['refused_identities']:,} {would}"),
            (
                "busiest minute",
                f"{_clock(rule['busiest_minute']['from'])} UTC, {rule['busiest_minute']['lines']:,} lines",
            ),
            ("429 in the log", f"{rule['refused_then']:,}, of which {rule['refused_both']:,} {would}"),
            *(
                [("time they took", f"{rule['seconds_refused']:,.1f} s, of those refused")]
                if rule["seconds_refused"]
                else []
            ),
        ]
    )
    if rule["most_refused"]:
        yield "  refused most:"
        for one in rule["most_refused"]:
            yield f"  {one['refused']:>9,}  {_short(one['whom'])}"
            for agent, count in one["agents"].items():
                yield f"             {count:,} × {_short(agent or 'no user agent')}"
    if rule["why_no_curve"]:
        yield f"  no refusal curve: {rule['why_no_curve']}"
    if rule["curve"]:
        yield from _about_curve(rule["curve"])


def _about_curve(curve: dict[str, Any]) -> Iterator[str]:
    yield f"  how many of its {curve['identities']:,} identities a limit never refuses, and what it refuses:"
    yield f"  {'identities':>12}  {'limit':>9}  {'requests':>20}  {'identities':>18}"
    for one in curve["suggestions"]:
        yield _curve_line(
            f"{one['share'] * 100:g} %", CurvePoint(one["limit"], one["requests"], one["identities"]), curve
        )
    yield f"  (per {curve['per']}" + (
        "; at most so many identities are refused, by a token bucket with that burst)" if curve["is_bound"] else ")"
    )


def _curve_line(name: str, point: CurvePoint, curve: dict[str, Any]) -> str:
    requests = f"{point.requests:,} ({point.requests / max(curve['requests'], 1):.2%})"
    return f"  {name:>12}  {point.limit:>9,}  {requests:>20}  {point.identities:>18,}"


def _columns(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        yield f"  {name:<{width}}  {value}"


def _clock(iso: str) -> str:
    return iso.replace("T", " ").removesuffix("Z")


def _short(text: str) -> str:
    """One line of text, without what a terminal would take for commands."""
    plain = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
    return plain if len(plain) <= LONGEST_SHOWN else plain[: LONGEST_SHOWN - 1] + "…"
