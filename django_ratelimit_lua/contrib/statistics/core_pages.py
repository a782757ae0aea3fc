"""The statistics on pages of the core."""

from __future__ import annotations

import time
from collections.abc import Mapping

from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ...admin.limits import limit_url
from ...admin.pages import may_see_rules
from ...extension import ClientRecord
from ...models import RateLimitRule
from ...operations.formatting import (
    between_words,
    breakable,
    clients_words,
    number_words,
    share_words,
)
from ...operations.known_limits import place_words
from .keys import HOUR, TOP_HOURS
from .reading import client_lists, known_names, merged, shadow_numbers
from .report import GROUPS, RESULT_NAMES, courses, result_words

NOT_ALLOWED = ("refused", "blocked", "would_be_refused", "failed")
MAX_NAMES = 500
"""Maximum number of limits to read lists of clients of: those that counted something last."""


def limit_link(request: HttpRequest, name: str) -> SafeString:
    """Return a link to the page of a limit, with the name of the limit."""
    # Blocks without a rule, and names beyond the maximum, are no limits.
    if name in GROUPS:
        return format_html("{}", GROUPS[name])
    return format_html(
        '<a href="{}">{}</a>', limit_url(request, name), breakable(place_words(name))
    )


def last_day_cells(
    request: HttpRequest, rules: Mapping[str, RateLimitRule | None]
) -> dict[str, SafeString]:
    """Return the cells of the column "last day", for each name that was counted.

    A cell contains a chart that links to the page of the name, and the requests that were not
    allowed.
    """
    return {
        name: format_html(
            '<div class="ratelimit-seen"><a href="{}">{}</a> {}</div>',
            limit_url(request, name),
            course.spark or _("Statistics"),
            result_words(course.numbers, NOT_ALLOWED),
        )
        for name, course in courses(list(rules), "day").items()
        if course.numbers
    }


def rehearsal(spec: Mapping[str, object]) -> str:
    """Return the requests that this version of a rule has seen in shadow mode, in words.

    Raises:
        StoreError: Redis is unavailable.
    """
    numbers = shadow_numbers(spec)
    if not numbers.seen:
        return _("This version of the rule has seen no request in shadow mode yet.")
    return _(
        "This version of the rule has seen %(seen)s requests, from %(clients)s. Would have "
        "refused: %(refused)s (%(share)s), from %(refused_clients)s."
    ) % {
        "seen": number_words(numbers.seen),
        "clients": clients_words(numbers.people),
        "refused": number_words(numbers.refused),
        "share": share_words(numbers.refused / numbers.seen),
        "refused_clients": clients_words(numbers.refused_people),
    }


def client_records(request: HttpRequest, digest: str, name: str) -> dict[str, ClientRecord]:
    """Return the limits under which clients were among the top clients of the last 24 hours.

    See `Extension.client`.
    """
    now = int(time.time()) // HOUR
    names = [name]
    if not name:
        known = sorted(known_names().items(), key=lambda pair: -pair[1])
        names = [name for name, at in known if at // HOUR > now - TOP_HOURS][:MAX_NAMES]
    hours = range(now - TOP_HOURS + 1, now + 1)
    records: dict[str, ClientRecord] = {}
    headings = [_("limit"), _("refused"), _("units used")]
    for each in names:
        lists = client_lists(each, hours)
        if not any(f'["{digest}'.encode() in written for written in lists):
            continue
        link = str(GROUPS.get(each) or place_words(each))
        if may_see_rules(request):
            link = limit_link(request, each)
        counts = [
            {client.digest: client for client in merged(lists, what)}
            for what in ("refused", "used")
        ]
        for found in sorted({*counts[0], *counts[1]}):
            if found.startswith(digest):
                clients = [clients.get(found) for clients in counts]
                label = next(client.name for client in clients if client)
                empty = ClientRecord(label, _("The last 24 hours"), headings, [])
                cells = [between_words(*client.bounds) if client else "—" for client in clients]
                if clients[0] and courses([each], "day")[each].refusals == "would_be_refused":
                    cells[0] = f"{RESULT_NAMES['would_be_refused']}: {cells[0]}"
                records.setdefault(found, empty).rows.append([link, *cells])
    return records
