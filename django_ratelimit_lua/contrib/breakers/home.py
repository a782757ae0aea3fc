"""The breakers on the page of the core's app: those that are not closed, or forced."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlencode

from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _

from ...extension import HomeSection
from .operations import breakers

PERMISSIONS = ("view_ratelimitbreaker", "change_ratelimitbreaker", "force_breaker")


def sections(request: HttpRequest) -> Iterator[HomeSection]:
    """Yield a section if there is such a breaker and the user may see breakers."""
    if not any(request.user.has_perm(f"ratelimit_breakers.{name}") for name in PERMISSIONS):
        return
    page = reverse("admin:ratelimit_breakers_breaker")
    rows = [
        (f"{page}?{urlencode({'name': one.name})}", one.name, one.forced_words or one.words)
        for one in breakers()
        if one.forced or one.state not in ("closed", None)
    ]
    if rows:
        items = format_html_join("", '<li><a href="{}">{}</a>: {}</li>', rows)
        body = format_html('<ul class="ratelimit-last">{}</ul>', items)
        yield HomeSection(_("Breakers that are not closed"), body, is_problem=True)
