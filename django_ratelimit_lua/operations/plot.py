"""The plot of a simulation: the sent and the allowed requests as two lines of an SVG.

Shapes are paths with a class, so that a page needs no inline style.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..web.durations import duration_words
from .formatting import number_words
from .simulate import Hit, Simulation

WIDTH = 540
HEIGHT = 200
"""The size of the area of the lines; the labels are around it."""


def draw(simulation: Simulation) -> SafeString:
    """Return the cumulative numbers of requests of a simulation as an SVG."""
    seconds = simulation.seconds
    most = sum(hit.sent for hit in simulation.hits) or 1
    context = {
        "words": words(simulation.hits),
        "sent": _steps([(hit.at / seconds, hit.sent / most) for hit in simulation.hits]),
        "allowed": _steps([(hit.turn / seconds, hit.allowed / most) for hit in simulation.hits]),
        "most": number_words(most),
        "half": duration_words(seconds / 2),
        "end": duration_words(seconds),
    }
    return render_to_string("admin/django_ratelimit_lua/plot.html", context)


def _steps(points: Iterable[tuple[float, float]]) -> str:
    """Return a line that rises at each point, from shares of the width and of the height."""
    line = f"M0 {HEIGHT}"
    height = 0.0
    for across, rise in sorted(points):
        height += rise
        if rise and across <= 1:
            line += f"H{across * WIDTH:.1f}V{HEIGHT - height * HEIGHT:.1f}"
    return f"{line}H{WIDTH}"


def words(hits: Sequence[Hit]) -> str:
    """Return the numbers of a simulation in a sentence.

    >>> words([Hit(0, 10, 0, 5), Hit(60, 5, 60, 5)])
    'Of 10 requests at once, 5 are allowed. Of the next 5, one by one, 5 are allowed.'
    """
    burst = [hit for hit in hits if not hit.at]
    stream = [hit for hit in hits if hit.at]
    texts = [
        _("Of %(sent)s requests at once, %(allowed)s are allowed.") % _totals(burst),
        _("Of the next %(sent)s, one by one, %(allowed)s are allowed.") % _totals(stream),
    ]
    longest = max((hit.turn - hit.at for hit in hits if hit.allowed), default=0)
    if longest:
        texts.append(_("The longest wait is %(time)s.") % {"time": duration_words(longest)})
    return " ".join(texts)


def _totals(hits: Sequence[Hit]) -> dict[str, str]:
    sent = sum(hit.sent for hit in hits)
    allowed = sum(hit.allowed for hit in hits)
    return {"sent": number_words(sent), "allowed": number_words(allowed)}
