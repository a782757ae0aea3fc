"""Moments as lists show them: in the time zone of the site, and short."""

from __future__ import annotations

import datetime

from django.utils import formats, timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _


def moment_text(moment: datetime.datetime) -> str:
    """For programs, by ISO 8601; without a zone where the site has none."""
    return _local(moment).isoformat()


def moment_words(moment: datetime.datetime) -> str:
    """For people: "14:05" if it is today, else "23 Nov, 14:05", with the year if it is another."""
    local, today = _local(moment), _local(timezone.now()).date()
    if local.date() == today:
        return formats.date_format(local, "H:i")
    # Translators: formats of Django's date filter
    return formats.date_format(local, _("j M, H:i") if local.year == today.year else _("j M Y, H:i"))


def moment_element(moment: datetime.datetime) -> SafeString:
    """The same for a page, with the exact moment for programs, and for who points at it."""
    exact = _local(moment).isoformat(sep=" ", timespec="seconds")
    return format_html('<time datetime="{}" title="{}">{}</time>', exact, exact, moment_words(moment))


def _local(moment: datetime.datetime) -> datetime.datetime:
    return timezone.localtime(moment) if timezone.is_aware(moment) else moment
