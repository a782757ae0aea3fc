"""Durations in words: as a sentence for a refused client, or as numbers for operators."""

from __future__ import annotations

import math

from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext


def in_time(seconds: float) -> str:
    """Return the time from now in words, rounded up.

    It is exact up to 90 seconds, then rounded up to minutes, hours or days.

    >>> in_time(1), in_time(90), in_time(950), in_time(7200), in_time(200_000)
    ('in 1 second', 'in 90 seconds', 'in about 16 minutes', 'in about 2 hours', 'in about 3 days')
    """
    seconds = math.ceil(seconds)
    if seconds <= 90:
        count = seconds
        words = ngettext("in %(count)d second", "in %(count)d seconds", count)
    elif seconds <= 90 * 60:
        count = -(-seconds // 60)
        words = ngettext("in about %(count)d minute", "in about %(count)d minutes", count)
    elif seconds <= 36 * 3600:
        count = -(-seconds // 3600)
        words = ngettext("in about %(count)d hour", "in about %(count)d hours", count)
    else:
        count = -(-seconds // 86_400)
        words = ngettext("in about %(count)d day", "in about %(count)d days", count)
    return words % {"count": count}


def duration_words(seconds: float) -> str:
    """Return a duration in words.

    >>> duration_words(0.26), duration_words(5), duration_words(59.2), duration_words(7300)
    ('0.3 s', '5 s', '60 s', '2 h 1 min')
    """
    if seconds < 10:
        tenths = round(seconds * 10)
        digits = 1 if tenths % 10 else 0  # "5 s", not "5.0 s".
        return _("%(seconds)s s") % {"seconds": number_format(tenths / 10, digits)}
    whole = -int(-seconds // 1)
    minutes, rest = divmod(whole, 60)
    hours, minutes_left = divmod(minutes, 60)
    days, hours_left = divmod(hours, 24)
    if days:
        return _("%(days)d d %(hours)d h") % {"days": days, "hours": hours_left}
    if hours:
        return _("%(hours)d h %(minutes)d min") % {"hours": hours, "minutes": minutes_left}
    if minutes > 1:
        return _("%(minutes)d min %(seconds)d s") % {"minutes": minutes, "seconds": rest}
    return _("%(seconds)s s") % {"seconds": whole}
