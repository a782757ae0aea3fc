"""The HTTP response for a decision: 429 with a correct `Retry-After`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
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
"""Maximum length of an `Accept` header that is parsed; a longer one gets plain text."""
MAX_TYPES = 32
"""Maximum number of types in an `Accept` header that is parsed."""
Form = Literal["problem", "page", "text"]
"""A form of the response: a problem document (RFC 9457), a page for browsers, or plain text."""
R = TypeVar("R")


def project_page(name: str) -> Any:
    """Return the project's page of that name, or None."""
    try:
        return loader.get_template(name)
    except TemplateDoesNotExist as error:
        if error.args[0] != name:  # A template that the page includes.
            raise
    return None


@lru_cache(maxsize=2)
def package_page(name: str, folder: Path) -> Template:
    """Return the page of this package.

    It is found with any template engine of the project, and even if the package is not an installed
    app.
    """
    engine = DjangoTemplates(
        {"NAME": __name__, "DIRS": [folder], "APP_DIRS": False, "OPTIONS": {"debug": False}}
    )
    return engine.get_template(f"django_ratelimit_lua/{name}")


def render_page(template: Any, request: HttpRequest, context: Mapping[str, object]) -> str:
    """Render a page, with the nonce of the Content-Security-Policy."""
    nonce = getattr(request, "csp_nonce", None)  # Set by django-csp.
    if nonce is None:
        nonce = getattr(request, "_csp_nonce", None)  # Set by Django 6.0 and newer.
    if nonce is None:  # Not `or`: a nonce is false until it is used.
        nonce = ""
    text: str = template.render({**context, "csp_nonce": str(nonce)}, request)
    return text


def accepted_form(request: HttpRequest) -> Form:
    """Return the form of the response that the client accepts."""
    accept = request.META.get("HTTP_ACCEPT", "")
    # A refusal must not cost more than the request.
    if len(accept) > MAX_ACCEPT_LENGTH or accept.count(",") >= MAX_TYPES:
        return "text"
    return _parse_accept(accept)


@lru_cache(maxsize=256)
def _parse_accept(accept: str) -> Form:
    """Return the form that an `Accept` header prefers."""
    request = HttpRequest()
    if accept:
        request.META = {"HTTP_ACCEPT": accept}
    preferred = request.get_preferred_type([_HTML, _TEXT, *_JSON])
    if preferred in _JSON:
        return "problem"
    # Browsers name HTML. A client that accepts anything is a program.
    if preferred == _HTML and _HTML in accept.lower():
        return "page"
    return "text"


def compose(request: HttpRequest, details: ErrorDetails) -> Waiting[HttpResponse]:
    """Compose a response in the form that the client accepts.

    It is a problem document for JSON, the project's page, this package's page for browsers, or
    plain text.
    """
    form = accepted_form(request)
    template = None
    if form != "problem":
        template = project_page(details.page)
    if template is not None:  # The project's page may query a database.
        render = partial(_render, request, details, form, template)
        response = yield Wait(render, sync_to_async(render))
        return _add_headers(response, details)
    if form == "page":
        template = package_page(details.page, details.folder)
    return _add_headers(_render(request, details, form, template), details)


def _render(request: HttpRequest, details: ErrorDetails, form: Form, template: Any) -> HttpResponse:
    """Return a response from the template; without a template, in this form."""
    with language_of(request):
        content_type = None
        if template is not None:
            body = render_page(template, request, details.context())
        elif form == "problem":
            body = json.dumps(details.problem())
            content_type = PROBLEM
        else:
            body = "".join(f"{line}\n" for line in details.lines())
            content_type = f"{_TEXT}; charset=utf-8"
    return HttpResponse(body, status=details.status, content_type=content_type)


def _add_headers(response: object, details: ErrorDetails) -> HttpResponse:
    """Return a response with the headers of a refusal that it does not have yet.

    Raises `TypeError` if it is no response.
    """
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


def _composing_refusal(request: HttpRequest, decision: Decision) -> Waiting[HttpResponse]:
    """Return the response to a refused request, from `RATELIMIT_VIEW` if that is set."""
    refusal = refusal_of(request, decision)
    if conf.VIEW is None:
        response = yield from compose(request, refusal)
    else:
        with language_of(request):
            error = refusal.describe_in(Ratelimited(decision))
        answer = yield from _calling_view(conf.VIEW, request, error)
        response = _add_headers(answer, refusal)
    add_headers(response, decision)
    return response


def _calling_view(view: Any, request: HttpRequest, error: Ratelimited) -> Waiting[object]:
    """Return the response of `RATELIMIT_VIEW`, which runs in a thread if it may block."""
    is_async = iscoroutinefunction(view) or iscoroutinefunction(getattr(view, "__call__", None))  # noqa: B004
    awaitable = view if is_async else sync_to_async(view)
    answer = yield Wait(partial(view, request, error), partial(awaitable, request, error))
    if inspect.isawaitable(answer):
        answer = yield waiting_for(answer)
    return answer


def too_many_requests(request: HttpRequest, decision: Decision) -> HttpResponse:
    """Return the response to a refused request.

    If `RATELIMIT_VIEW` is set, that view makes the response from the request and a `Ratelimited`.
    Otherwise the response is a 429, see `compose`. It forbids caching, and has the reference, and
    `Retry-After` unless the request can never be allowed. A block may respond with 403 instead.
    """
    return run(_composing_refusal(request, decision))


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
    # On Django's request, where DRF's request and the middleware find it.
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
        return (yield from _composing_refusal(request, decision))
    refusal = refusal_of(request, decision)
    if not issubclass(exception, Ratelimited):
        other = exception()
        if refusal.reason == "busy":
            vars(other)["status_code"] = refusal.status
        raise other
    with language_of(request):
        error = refusal.describe_in(exception(decision))
    error.message = error.message or str(error)
    raise error
