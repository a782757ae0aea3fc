"""The refusals of one client by hour, for its page in the core's admin."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext as _

from ...extension import ClientRecord
from ...identity.names import Name, name_words
from ...models import RateLimitRule
from ...operations.formatting import between_words, moment_element
from .core_pages import limit_url
from .keys import HOUR, TOP_HOURS, key_of
from .reading import ask, known_names, merged
from .report import moment_of
from .space_saving import Estimate

MAX_NAMES = 500
"""Maximum number of limits to read lists of: those that counted something last."""
MAX_BYTES = 32_000_000
"""After this much has been read, earlier hours are left out."""
MAX_ROWS = 50


class HourOfClient(NamedTuple):
    """An hour of a client under one limit, which begins at `moment`, in seconds since 1970.

    `refused`, `used`: its refusals, or those that shadow mode would have made, and its units; None:
    it is not among the top clients.
    """

    digest: str
    name: str
    moment: int
    refused: Estimate | None
    used: Estimate | None

    @property
    def words(self) -> Name:
        """Return the label of the client; empty if it is not known."""
        labels = [one.name for one in (self.refused, self.used) if one is not None]
        return next(filter(None, labels), [])


def client_records(request: HttpRequest, digest: str, name: str) -> dict[str, ClientRecord]:
    """Return the hours in which these clients were among the top clients of a limit.

    See `Extension.client`.
    """
    found: dict[str, list[HourOfClient]] = {}
    for hour in hours_of_clients(digest, name):
        hours = found.setdefault(hour.digest, [])
        if len(hours) < MAX_ROWS:
            hours.append(hour)
    names = {hour.name for hours in found.values() for hour in hours}
    shadow = RateLimitRule.objects.filter(name__in=names, mode="shadow")
    rehearsing = set(shadow.values_list("name", flat=True))
    headings = [_("limit"), _("hour"), _("refused"), _("units used")]
    return {
        digest: ClientRecord(
            next(filter(None, (hour.words for hour in hours)), []),
            _("The last 24 hours"),
            headings,
            [_row(request, hour, is_shadow=hour.name in rehearsing) for hour in hours],
        )
        for digest, hours in found.items()
    }


def _row(request: HttpRequest, hour: HourOfClient, *, is_shadow: bool) -> list[Any]:
    url = limit_url(request, hour.name)
    label: Any = name_words(hour.name)
    if url:
        label = format_html('<a href="{}">{}</a>', url, label)
    if is_shadow:
        label = format_html("{} ({})", label, _("shadow mode"))
    moment = moment_element(moment_of(hour.moment))
    return [label, moment, _times_words(hour.refused), _times_words(hour.used)]


def _times_words(client: Estimate | None) -> str:
    if client is None:
        return "—"
    return between_words(*client.bounds)


def hours_of_clients(prefix: str, name: str = "") -> Iterator[HourOfClient]:
    """Yield the hours of clients whose digests have a prefix, latest first.

    Args:
        prefix: Hexadecimal digits.
        name: The limit; empty: all.

    Raises:
        StoreError: Redis is unavailable.
    """
    now = int(time.time()) // HOUR
    names = [name]
    if not name:
        known = sorted(known_names().items(), key=lambda pair: -pair[1])
        names = [name for name, at in known if at // HOUR > now - TOP_HOURS][:MAX_NAMES]
    needle = f'["{prefix}'.encode()
    size = 0
    for hour in range(now, now - TOP_HOURS, -1):
        replies = ask([(b"HGETALL", key_of(name, b"top:%d" % hour)) for name in names])
        for name, reply in zip(names, replies, strict=True):
            lists = reply[1::2]
            size += sum(map(len, lists))
            if not any(needle in written for written in lists):
                continue
            refused = _with_prefix(prefix, lists, "refused")
            used = _with_prefix(prefix, lists, "used")
            for digest in refused | used:
                yield HourOfClient(digest, name, hour * HOUR, refused.get(digest), used.get(digest))
        if size > MAX_BYTES:
            return


def _with_prefix(prefix: str, lists: Sequence[bytes], what: str) -> dict[str, Estimate]:
    clients = merged(lists, what)
    return {client.digest: client for client in clients if client.digest.startswith(prefix)}
