"""Numbers of the statistics in words, and the last day of rules and limits in lists: a small drawing that leads to
their page, and what was not let go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..operations.plot import sparkline
from ..operations.seen import last_days
from ..operations.words import number_words

VIEW = "django_ratelimit_lua.view_ratelimitrule"
RESULT_NAMES = {
    "refused": gettext_lazy("refused"),
    "blocked": gettext_lazy("blocked"),
    "would_be_refused": gettext_lazy("would be refused"),
    "allowed": gettext_lazy("allowed"),
    "exempt": gettext_lazy("exempt"),
    "policy": gettext_lazy("decided by the policy for outages"),
    "failed": gettext_lazy("not applied"),
}
_NOT_LET_GO = ("refused", "blocked", "would_be_refused", "failed")


def counts_words(numbers: Mapping[str, int], results: Sequence[str] = tuple(RESULT_NAMES)) -> str:
    """How many there were of these results; empty: none."""
    return ", ".join(f"{number_words(numbers[word])} {RESULT_NAMES[word]}" for word in results if numbers[word])


def day_words(row: Mapping[str, Any]) -> str:
    """What happened, for those who do not see the drawing."""
    return _("Last day: %(counts)s") % {"counts": counts_words(row) or _("no requests")}


def between_words(least: int, most: int) -> str:
    """A number with its error: "38 ± 2".

    >>> between_words(38, 38), between_words(36, 40)
    ('38', '38 ± 2')
    """
    error = -(-(most - least) // 2)
    return f"{number_words(most - error)} ± {number_words(error)}" if error else number_words(most)


def cells(request: HttpRequest, names: Sequence[str]) -> dict[str, SafeString]:
    """For each name that was counted what a list shows of its last day. Raises `StoreError`."""
    may_see = request.user.has_perm(VIEW)
    url = reverse("admin:django_ratelimit_lua_statistics_one") if may_see else ""
    found = {}
    for name, row in last_days(names).items():
        if row["requests"]:
            drawn = sparkline(row["hours"], day_words(row))
            if may_see:
                query = urlencode({"name": name}, errors="replace")
                drawn = format_html('<a href="{}?{}">{}</a>', url, query, drawn)
            words = counts_words(row, _NOT_LET_GO)
            found[name] = format_html('<div class="ratelimit-seen">{} {}</div>', drawn, words)
    return found
