"""The answer in the place of a view whose breaker is open: 503, as far as it is known with the time of the next try."""

from __future__ import annotations

import json
import math
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from ..exceptions import CircuitOpen
from .durations import in_time
from .refusal import language_of
from .responses import PROBLEM, asked_for, our_page, projects_page, rendered

REDUCED_CAPACITY = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
REDUCED_CAPACITY_TITLE = "Request cannot be satisfied due to temporary server capacity constraints"
"""Of draft-ietf-httpapi-ratelimit-headers-10, section 5.2, for programs: not translated."""
PAGE = "503.html"


def retry_seconds(error: CircuitOpen) -> int | None:
    """Whole seconds until the next try, rounded up, and at least 1; None: not known."""
    return None if error.retry_after is None else max(1, math.ceil(error.retry_after))


def when(error: CircuitOpen) -> str:
    """When to try again, in the language in force."""
    seconds = retry_seconds(error)
    begin = _("This is not available at the moment.")
    return begin if seconds is None else f"{begin} {_('Try again %(in_time)s.') % {'in_time': in_time(seconds)}}"


def members(error: CircuitOpen) -> dict[str, object]:
    """What a body says to programs (RFC 9457)."""
    told: dict[str, object] = {"type": REDUCED_CAPACITY, "title": REDUCED_CAPACITY_TITLE, "status": 503}
    seconds = retry_seconds(error)
    return told if seconds is None else {**told, "retry_after": seconds}


def reduced_capacity(request: HttpRequest, error: CircuitOpen) -> HttpResponse:
    """A 503 in the form that the client asks for, as a 429 is: a problem document, the project's `503.html` or a page
    of ours, or plain text. It is not to be stored, and carries `Retry-After` where the time is known."""
    form = asked_for(request)
    template = None if form == "problem" else projects_page(PAGE)
    return _made(request, error, form, template)


async def areduced_capacity(request: HttpRequest, error: CircuitOpen) -> HttpResponse:
    """The same in a coroutine: a template of the project's, which may ask a database, runs in a thread."""
    form = asked_for(request)
    template = None if form == "problem" else projects_page(PAGE)
    make = partial(_made, request, error, form, template)
    return make() if template is None else await sync_to_async(make)()


def _made(request: HttpRequest, error: CircuitOpen, form: str, template: Any) -> HttpResponse:
    seconds = retry_seconds(error)
    with language_of(request):
        if form == "problem":
            body = json.dumps({**members(error), "detail": when(error)})
            response = HttpResponse(body, status=503, content_type=PROBLEM)
        elif template is not None or form == "page":
            context = {"when": when(error), "retry_after": seconds}
            response = HttpResponse(rendered(template or our_page(PAGE), request, context), status=503)
        else:
            response = HttpResponse(f"{when(error)}\n", status=503, content_type="text/plain; charset=utf-8")
    response.headers["Cache-Control"] = "no-store"
    if seconds is not None:
        response.headers["Retry-After"] = str(seconds)
    return response
