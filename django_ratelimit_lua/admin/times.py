"""Moments as lists show them: in the time zone of the site, and short."""

from __future__ import annotations

import datetime

from django.utils.html import format_html
from django.utils.safestring import SafeString

from ..operations.formatting import local_moment, moment_words


def moment_element(moment: datetime.datetime) -> SafeString:
    """A moment for a page, with the exact moment for programs and as a tooltip."""
    exact = local_moment(moment).isoformat(sep=" ", timespec="seconds")
    return format_html(
        '<time datetime="{}" title="{}">{}</time>', exact, exact, moment_words(moment)
    )
