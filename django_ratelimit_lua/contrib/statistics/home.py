"""The statistics on the page of the core's app: refusals by limit and by client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.translation import gettext as _

from ...extension import HomeSection
from .admin import clients_context, period_links, site_clients
from .report import OVERVIEW_PERIODS, overview, why_uncounted

MAX_ROWS = 5
"""Limits that are listed."""


def sections(request: HttpRequest) -> Iterator[HomeSection]:
    """Yield the requests and refusals of a period, and why counts cannot be written.

    Raises:
        StoreError: Redis is unavailable.
    """
    problem = why_uncounted()
    if problem is not None:
        yield HomeSection(_("Some statistics cannot be written"), problem, is_problem=True)
    page = overview(size=MAX_ROWS, period=request.GET.get("period", "day"))
    page = replace(page, identities=site_clients(request, page.period))
    context = {
        **vars(page),
        **clients_context(request, page),
        "rows": [row for row in page.rows if row.refusals],
        "periods": period_links(request, OVERVIEW_PERIODS),
    }
    body = render_to_string("admin/ratelimit_statistics/home.html", context, request)
    yield HomeSection(_("Requests"), body)
