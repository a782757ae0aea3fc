"""Numbers and moments in the active language."""

from __future__ import annotations

import datetime
import re

from django.utils import formats, timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext, ngettext

from ..limits.rate import SECOND


def number_words(number: float) -> str:
    """Return a number in groups of digits.

    >>> from django.utils.translation import override
    >>> with override("de"):
    ...     number_words(1234.56)
    '1.234,6'
    """
    rounded = round(number, 1)  # A whole number stays whole.
    return formats.number_format(rounded, use_l10n=True, force_grouping=True)


def count_words(number: int, noun: str) -> str:
    """Return a number of things in English, as commands print it.

    >>> count_words(1, "line"), count_words(1234, "line")
    ('1 line', '1,234 lines')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def clients_words(number: int) -> str:
    """Return an approximate number of clients, in words.

    >>> clients_words(1), clients_words(2)
    ('about 1 client', 'about 2 clients')
    """
    return ngettext("about %(number)s client", "about %(number)s clients", number) % {
        "number": number_words(number)
    }


def share_words(share: float) -> str:
    """Return a share in percent, in which a small share is not shown as 0.

    >>> share_words(0.5), share_words(0.00001), share_words(0)
    ('50%', '< 0.1%', '0%')
    """
    percent = share * 100
    if 0 < percent < 0.1:
        return gettext("< %(share)s%%") % {"share": formats.number_format(0.1)}
    digits = int(0 < percent < 9.95)
    # Rounded first, as Django cuts digits off.
    return gettext("%(share)s%%") % {"share": formats.number_format(round(percent, digits), digits)}


def between_words(minimum: int, maximum: int) -> str:
    """Return a number with its error from its bounds: "38 ± 2".

    >>> between_words(38, 38), between_words(36, 40)
    ('38', '38 ± 2')
    """
    error = -(-(maximum - minimum) // 2)
    if not error:
        return number_words(maximum)
    return f"{number_words(maximum - error)} ± {number_words(error)}"


def milliseconds_words(seconds: float) -> str:
    """Return the time of a decision, as the upper bound of its bucket."""
    return gettext("%(number)s ms") % {"number": formats.number_format(f"{seconds * 1000:g}")}


def readable(text: str) -> str:
    """Return a name for a page, with a question mark for each lone surrogate."""
    return text.encode("utf-8", "replace").decode()


def breakable(text: str) -> SafeString:
    """Return a text for a page that allows line breaks only after the parts of names."""
    parts = re.split(r"(?<=[.:/+_])", readable(text))
    return format_html_join(mark_safe("<wbr>"), "{}", ((part,) for part in parts))


def moment_of(microseconds: float) -> datetime.datetime:
    """Return the datetime of a number of microseconds since 1970."""
    return datetime.datetime.fromtimestamp(microseconds / SECOND, datetime.UTC)


def moment_words(moment: datetime.datetime) -> str:
    """Return "14:05" for today, otherwise "23 Nov, 14:05", with the year if it is not this year."""
    local = local_moment(moment)
    today = local_moment(timezone.now()).date()
    if local.date() == today:
        return formats.date_format(local, "H:i")
    # Translators: formats of Django's date filter
    if local.year == today.year:
        return formats.date_format(local, gettext("j M, H:i"))
    return formats.date_format(local, gettext("j M Y, H:i"))


def local_moment(moment: datetime.datetime) -> datetime.datetime:
    """Return a moment in the time zone of the site, if it has one."""
    if timezone.is_aware(moment):
        return timezone.localtime(moment)
    return moment


def moment_element(moment: datetime.datetime) -> SafeString:
    """Return a moment for a page, with the exact moment for programs and as a tooltip."""
    exact = local_moment(moment).isoformat(sep=" ", timespec="seconds")
    return format_html(
        '<time datetime="{}" title="{}">{}</time>', exact, exact, moment_words(moment)
    )
