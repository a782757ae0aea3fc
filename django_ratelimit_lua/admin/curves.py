"""A refusal curve on a page: the plot, the answer for a chosen limit in words, and the numbers."""

from __future__ import annotations

from django.utils.translation import gettext as _

from ..limits.rate import Rate
from ..operations.curve import Between, Curve, CurvePoint, plot_curve, scale
from ..operations.formatting import number_words
from ..operations.plot import Mark
from ..rules.describe import period_words

MAX_DIGITS = 13
"""Of a limit that is asked for."""


def curve_context(curve: Curve, given: str, place: int = 0, title: str = "") -> dict[str, object]:
    """Return the context of the template `curve.html`.

    Args:
        curve: The refusal curve.
        given: The requested limit, as it was entered. If it is invalid, the limit in force is used.
        place: The position of the curve on its page.
        title: The name of the plot.
    """
    chosen = curve.top if curve.today is None else curve.today
    if given.isascii() and given.isdecimal() and len(given) <= MAX_DIGITS:
        chosen = int(given)
    points = curve.points(chosen)
    last = points[-1]
    per = period_words(Rate(1, curve.period_us))
    drawn = plot_curve(points, curve.requests, curve.people, per, today=curve.today, title=title)
    drawn.marks = [*drawn.marks, Mark(scale(chosen, last.limit), kind="chosen")]
    if curve.is_burst:
        drawn.axis = _("burst")
    members = []
    for point in points:
        is_exact = curve.is_exact_at(point.limit)
        members.append(
            {
                **point._asdict(),
                "x": drawn.x(scale(point.limit, last.limit)),
                "words": _answer(point, curve, per, number_words(point.limit)),
                "requests_words": _amount(point.requests, is_exact=is_exact),
                "people_words": _amount(point.people, is_exact=is_exact),
            }
        )
    return {
        "place": place,
        "curve": curve,
        "per": per,
        "svg": drawn.svg(),
        "chosen": chosen,
        "answer": _answer(curve.at(chosen), curve, per, number_words(chosen)),
        "beyond": _answer(last, curve, per, "{}"),
        "points": members,
        "json_id": f"ratelimit-curve-{place}",
    }


def _answer(point: CurvePoint, curve: Curve, per: str, limit: str) -> str:
    """Return the refusals that a limit would have made, in a sentence."""
    intro = _("%(limit)s per %(per)s would have refused")
    if curve.is_burst:
        intro = _("A burst of %(limit)s, at the same rate, would have refused")
    rest = _("%(requests)s of %(all_requests)s requests, and %(people)s of %(all_people)s clients.")
    all_people = number_words(curve.people)
    if curve.is_sampled:
        all_people = _("about %(number)s") % {"number": all_people}
    is_exact = curve.is_exact_at(point.limit)
    values = {
        "limit": limit,
        "per": per,
        "requests": _amount(point.requests, is_exact=is_exact),
        "all_requests": number_words(curve.requests),
        "people": _amount(point.people, is_exact=is_exact),
        "all_people": all_people,
    }
    return f"{intro} {rest}" % values


def _amount(number: Between, *, is_exact: bool) -> str:
    """Return a number as it is known: exactly, within bounds, or at most."""
    least, most = map(number_words, number)
    if not number.most or (is_exact and least == most):
        return most
    if is_exact:
        return _("%(least)s to %(most)s") % {"least": least, "most": most}
    return _("at most %(number)s") % {"number": most}
