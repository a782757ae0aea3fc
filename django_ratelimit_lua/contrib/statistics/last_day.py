"""The last day of rules and limits in lists: a small drawing that leads to their page, and what was not let go."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from .report import last_days

VIEW = "django_ratelimit_lua.view_ratelimitrule"
_NOT_LET_GO = ("refused", "blocked", "would_be_refused", "failed")


def cells(request: HttpRequest, names: Sequence[str]) -> dict[str, SafeString]:
    """For each name that was counted what a list shows of its last day. Raises `StoreError`."""
    may_see = request.user.has_perm(VIEW)
    url = reverse("admin:django_ratelimit_lua_statistics_one") if may_see else ""
    found = {}
    for name, day in last_days(names).items():
        if day.requests:
            drawn = day.spark
            if may_see:
                query = urlencode({"name": name}, errors="replace")
                drawn = format_html('<a href="{}?{}">{}</a>', url, query, drawn)
            words = day.words(_NOT_LET_GO)
            found[name] = format_html('<div class="ratelimit-seen">{} {}</div>', drawn, words)
    return found
