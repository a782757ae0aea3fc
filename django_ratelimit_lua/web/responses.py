"""The HTTP response for a decision: 429 with a correct `Retry-After`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.template import TemplateDoesNotExist, loader
from django.template.backends.django import DjangoTemplates, Template

from ..conf import conf
from ..engine.run import Wait, Waiting, arun, run, waiting_for
from ..exceptions import Ratelimited
from ..limits.decision import Decision
from .headers import add_headers
from .refusal import ErrorDetails, language_of, refusal_of

PROBLEM = "application/problem+json"
_TEXT = "text/plain"
_HTML = "text/html"
_JSON = (PROBLEM, "application/json")
MAX_ACCEPT_LENGTH = 1024
"""Characters of an `Accept` header that are looked at; a longer one is answered with plain text."""
MAX_TYPES = 32
"""Types in an `Accept` header that are looked at; one with more is answered with plain text."""
_OURS = "django_ratelimit_lua"
R = TypeVar("R")


def projects_page(name: str) -> Any:
    """Return the project's page of that name, or None."""
    try:
        return loader.get_template(name)
    except TemplateDoesNotExist as error:
        if error.args[0] != name:
            raise
    return None


@lru_cache(maxsize=2)
def our_page(name: str, folder: Path) -> Template:
    """Return the page of this package.

    It is found with any template engine of the project, and even if the package is not an installed
    app.
    """
    engine = DjangoTemplates(
        {"NAME": __name__, "DIRS": [folder], "APP_DIRS": False, "OPTIONS": {"debug": False}}
    )
    return engine.get_template(f"{_OURS}/{name}")


def render_page(template: Any, request: HttpRequest, context: Mapping[str, object]) -> str:
    """Render a page, with the nonce of the Content-Security-Policy."""
    nonce = getattr(request, "csp_nonce", None)  # Of django-csp; Django's own, from 6.0 on:
    if nonce is None:
        nonce = getattr(request, "_csp_nonce", None)
    if nonce is None:  # A nonce that was not used yet is false.
        nonce = ""
    text: str = template.render({**context, "csp_nonce": str(nonce)}, request)
    return text


def asked_for(request: HttpRequest) -> Literal["problem", "page", "text"]:
    """Return the form of the response that the client accepts."""
    accept = request.META.get("HTTP_ACCEPT", "")
    # More is not needed, and a refusal must not cost more than the request.
    if len(accept) > MAX_ACCEPT_LENGTH or accept.count(",") >= MAX_TYPES:
        return "text"
    return _preferred(accept)


@lru_cache(maxsize=256)
def _preferred(accept: str) -> Literal["problem", "page", "text"]:
    request = HttpRequest()
    if accept:
        request.META = {"HTTP_ACCEPT": accept}
    preferred = request.get_preferred_type([_HTML, _TEXT, *_JSON])
    if preferred in _JSON:
        return "problem"
    # Browsers name it. A client that accepts anything is a program.
    if preferred == _HTML and _HTML in accept.lower():
        return "page"
    return "text"


def compose(request: HttpRequest, details: ErrorDetails) -> Waiting[HttpResponse]:
    """Compose a response in the form that the client accepts.

    It is a problem document for JSON, the project's page, this package's page for browsers, or
    plain text.
    """
    form = asked_for(request)
    template = None
    if form != "problem":
        template = projects_page(details.page)
    if template is not None:  # It may ask a database.
        make = partial(_made, request, details, form, template)
        response = yield Wait(make, sync_to_async(make))
        return _finished(response, details)
    if form == "page":
        template = our_page(details.page, details.folder)
    return _finished(_made(request, details, form, template), details)


def brief_refusal(
    request: HttpRequest, decision: Decision, style: str | None = None, *, only_status: int = 0
) -> HttpResponse:
    """Return the response to a refused request of another server.

    It is a problem document or plain text, as the client accepts. The project's pages are not used,
    because they are not for that server. `style`: see `add_headers`; `only_status`: see `Refusal`.
    """
    refusal = replace(refusal_of(request, decision), only_status=only_status)
    response = _finished(_made(request, refusal, asked_for(request), None), refusal)
    add_headers(response, decision, style)
    return response


def _made(request: HttpRequest, details: ErrorDetails, form: str, template: Any) -> HttpResponse:
    with language_of(request):
        kind = None
        if template is not None:
            body = render_page(template, request, details.context())
        elif form == "problem":
            body = json.dumps(details.problem())
            kind = PROBLEM
        else:
            body = "".join(f"{line}\n" for line in details.lines())
            kind = f"{_TEXT}; charset=utf-8"
    return HttpResponse(body, status=details.status, content_type=kind)


def _finished(response: object, details: ErrorDetails) -> HttpResponse:
    if not isinstance(response, HttpResponseBase):
        raise TypeError(f"RATELIMIT_VIEW returned {response!r}: it must return an HttpResponse")
    for name, value in details.headers().items():
        response.headers.setdefault(name, value)
    if getattr(details, "reason", "") == "busy":
        leave_unlogged(response)
    return cast(HttpResponse, response)


def leave_unlogged(response: Any) -> None:
    """Keep Django from logging a 503 as an error, of which it may mail each to the admins."""
    response._has_been_logged = True


def _refuse(request: HttpRequest, decision: Decision) -> Waiting[HttpResponse]:
    refusal = refusal_of(request, decision)
    view = conf.VIEW
    if view is None:
        response = yield from compose(request, refusal)
    else:
        with language_of(request):
            error = refusal.tell(Ratelimited(decision))
        is_async = iscoroutinefunction(view) or iscoroutinefunction(getattr(view, "__call__", None))  # noqa: B004
        awaitable = view
        if not is_async:
            awaitable = sync_to_async(view)
        answer = yield Wait(partial(view, request, error), partial(awaitable, request, error))
        if inspect.isawaitable(answer):
            answer = yield waiting_for(answer)
        response = _finished(answer, refusal)
    add_headers(response, decision)
    return response


def too_many_requests(request: HttpRequest, decision: Decision) -> HttpResponse:
    """Return the response to a refused request.

    If `RATELIMIT_VIEW` is set, that view makes the response from the request and a `Ratelimited`.
    Otherwise the response is a 429, see `compose`. It forbids caching, and has the reference, and
    `Retry-After` unless the request can never be allowed. A block may respond with 403 instead.
    """
    return run(_refuse(request, decision))


def add_ratelimit_headers(request: Any, response: R) -> R:
    """Return the response of the view, with rate-limit headers."""
    if conf.HEADERS is not None and isinstance(response, HttpResponseBase):
        add_headers(response, request.ratelimit)
    return response


def attach_decision(request: Any, decision: Decision) -> None:
    """Store a decision on the request for the view, merged with earlier ones."""
    is_limited = not decision.allowed
    for state in decision.limits:
        is_limited = is_limited or (state.mode == "advise" and not state.allowed)
    # DRF's request finds it there, and so does the middleware.
    request = vars(request).get("_request", request)
    request.limited = is_limited or getattr(request, "limited", False)
    earlier = getattr(request, "ratelimit", None)
    request.ratelimit = decision
    if isinstance(earlier, Decision):
        request.ratelimit = earlier.merged(decision)


def refused_response(request: HttpRequest, decision: Decision) -> HttpResponse:
    """Return the response to a refused request.

    Raises the exception of `RATELIMIT_EXCEPTION_CLASS`, if that is set.
    """
    return run(refusing(request, decision))


async def arefused_response(request: HttpRequest, decision: Decision) -> HttpResponse:
    """`refused_response`, for coroutines."""
    return await arun(refusing(request, decision))


def refusing(request: HttpRequest, decision: Decision) -> Waiting[HttpResponse]:
    """Like `refused_response`, but as a generator for one of the drivers in `engine.run`."""
    exception = conf.EXCEPTION_CLASS
    if exception is None:
        return (yield from _refuse(request, decision))
    refusal = refusal_of(request, decision)
    if not issubclass(exception, Ratelimited):
        other = exception()
        if refusal.reason == "busy":
            vars(other)["status_code"] = refusal.status
        raise other
    with language_of(request):
        error = refusal.tell(exception(decision))
    error.message = error.message or str(error)
    raise error
