"""Numbers and moments in the active language."""

from __future__ import annotations

import datetime
import re

from django.utils import formats, timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext

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
