"""A decision as an HTTP answer: 429 with a true `Retry-After`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, cast

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.template import TemplateDoesNotExist, loader
from django.template.backends.django import DjangoTemplates
from django.utils.translation import gettext as _

from ..conf import conf
from ..exceptions import Ratelimited
from ..limits.decision import Decision
from .headers import add_headers
from .refusal import Refusal, language_of, refusal_of
from .remedy import aremedy_of, remedy_of

PROBLEM = "application/problem+json"
_TEXT = "text/plain"
_HTML = "text/html"
_JSON = (PROBLEM, "application/json")
LONGEST_ACCEPT = 1024
"""Characters of an `Accept` header that are looked at; a longer one is answered with plain text."""
MOST_TYPES = 32
"""Types in an `Accept` header that are looked at; one with more is answered with plain text."""
REFERENCE_HEADER = "RateLimit-Reference"
_PAGE = "429.html"
_OURS = "django_ratelimit_lua"


def _problem(refusal: Refusal) -> HttpResponse:
    """A problem document (RFC 9457)."""
    body: dict[str, object] = {"type": "about:blank", "title": refusal.title, "status": refusal.status}
    if detail := refusal.detail():
        body["detail"] = detail
    body |= refusal.members()
    if refusal.retry_after is not None:
        body["retry_after"] = refusal.retry_after
    return HttpResponse(json.dumps(body), status=refusal.status, content_type=PROBLEM)


def projects_page(name: str) -> Any:
    """The project's page of that name, or None."""
    try:
        return loader.get_template(name)
    except TemplateDoesNotExist as error:
        if error.args[0] != name:
            raise
    return None


@lru_cache(maxsize=2)
def our_page(name: str) -> Any:
    """The page of this package, whatever the project's templates are made with, and whether or not it is an installed
    app."""
    folder = Path(__file__).parents[1] / "templates"
    engine = DjangoTemplates({"NAME": __name__, "DIRS": [folder], "APP_DIRS": False, "OPTIONS": {"debug": False}})
    return engine.get_template(f"{_OURS}/{name}")


def rendered(template: Any, request: HttpRequest, context: Mapping[str, Any]) -> str:
    """A page, with what every page needs."""
    nonce = getattr(request, "csp_nonce", None)  # Of django-csp; Django's own, from 6.0 on:
    nonce = getattr(request, "_csp_nonce", None) if nonce is None else nonce
    text: str = template.render({**context, "csp_nonce": "" if nonce is None else str(nonce)}, request)
    return text


def _rendered(template: Any, request: HttpRequest, refusal: Refusal) -> HttpResponse:
    with language_of(request):
        context = {
            "decision": refusal.decision,
            "reason": refusal.reason,
            "message": refusal.message,
            "when": refusal.when(),
            "retry_after": refusal.retry_after,
            "reference": refusal.reference,
            "remedy": refusal.remedy,
        }
        return HttpResponse(rendered(template, request, context), status=refusal.status)


def _plain(refusal: Refusal) -> HttpResponse:
    lines = [" ".join(filter(None, (refusal.begin(), refusal.message, refusal.when())))]
    if refusal.remedy:
        lines.append(refusal.remedy)
    if refusal.reference:
        lines.append(_("Reference: %s") % refusal.reference)
    text = "".join(f"{line}\n" for line in lines)
    return HttpResponse(text, status=refusal.status, content_type=f"{_TEXT}; charset=utf-8")


def asked_for(request: HttpRequest) -> Literal["problem", "page", "text"]:
    """The form of the answer, by what the client accepts."""
    accept = request.META.get("HTTP_ACCEPT", "")
    # Nobody needs more; and a refusal must not cost more than the request it refuses.
    return _preferred(accept) if len(accept) <= LONGEST_ACCEPT and accept.count(",") < MOST_TYPES else "text"


@lru_cache(maxsize=256)
def _preferred(accept: str) -> Literal["problem", "page", "text"]:
    request = HttpRequest()
    request.META = {"HTTP_ACCEPT": accept} if accept else {}
    preferred = request.get_preferred_type([_HTML, _TEXT, *_JSON])
    if preferred in _JSON:
        return "problem"
    # Browsers name it; who takes anything is a program.
    return "page" if preferred == _HTML and _HTML in accept.lower() else "text"


def too_many_requests(request: HttpRequest, decision: Decision) -> HttpResponse:
    """The answer to a blocked request.

    `RATELIMIT_VIEW` makes it where that is set, called with the request and a `Ratelimited`; else it is a 429: a
    problem document for clients that ask for JSON, the project's template `429.html`, or else a page of ours for
    browsers and plain text for others. It is not to be stored, and carries `Retry-After` unless the request can never
    be allowed, and the reference. A block may say 403 instead.
    """
    refusal = replace(refusal_of(request, decision), remedy=remedy_of(request, decision))
    view = conf.VIEW
    if view is not None:
        response = view(request, _told(request, refusal))
        if inspect.isawaitable(response):
            response = async_to_sync(_awaited)(response)
    elif asked_for(request) == "problem":
        response = _in_words(_problem, request, refusal)
    elif (template := projects_page(_PAGE)) is not None:
        response = _rendered(template, request, refusal)
    else:
        response = _own(request, refusal)
    return _finished(response, refusal)


async def atoo_many_requests(request: HttpRequest, decision: Decision) -> HttpResponse:
    """The same in a coroutine: what may ask a database, a template or a synchronous view, runs in a thread."""
    refusal = replace(refusal_of(request, decision), remedy=await aremedy_of(request, decision))
    view = conf.VIEW
    if view is not None:
        called = view if _is_async(view) else sync_to_async(view)
        response = await called(request, _told(request, refusal))
        if inspect.isawaitable(response):
            response = await response
    elif asked_for(request) == "problem":
        response = _in_words(_problem, request, refusal)
    elif (template := projects_page(_PAGE)) is not None:
        response = await sync_to_async(_rendered)(template, request, refusal)
    else:
        response = _own(request, refusal)
    return _finished(response, refusal)


def brief_refusal(
    request: HttpRequest, decision: Decision, style: str | None = None, *, only_status: int = 0
) -> HttpResponse:
    """The answer to a blocked request of another server: a problem document or plain text, by what the client accepts.

    Nothing of the project's makes it, as its pages are not that server's. `style`: see `add_headers`; `only_status`:
    see `Refusal`.
    """
    refusal = replace(refusal_of(request, decision), only_status=only_status)
    response = _in_words(_problem if asked_for(request) == "problem" else _plain, request, refusal)
    return _finished(response, refusal, style)


def _in_words(make: Callable[[Refusal], HttpResponse], request: HttpRequest, refusal: Refusal) -> HttpResponse:
    with language_of(request):
        return make(refusal)


def _own(request: HttpRequest, refusal: Refusal) -> HttpResponse:
    """Of this package's making, which asks nobody."""
    if asked_for(request) == "page":
        return _rendered(our_page(_PAGE), request, refusal)
    return _in_words(_plain, request, refusal)


def _told(request: HttpRequest, refusal: Refusal) -> Ratelimited:
    with language_of(request):
        return refusal.tell(Ratelimited(refusal.decision))


def _is_async(view: Any) -> bool:
    return iscoroutinefunction(view) or iscoroutinefunction(getattr(view, "__call__", None))  # noqa: B004


async def _awaited(response: Any) -> Any:
    return await response


def _finished(response: Any, refusal: Refusal, style: str | None = None) -> HttpResponse:
    if not isinstance(response, HttpResponseBase):
        raise TypeError(f"RATELIMIT_VIEW returned {response!r}: it must return an HttpResponse")
    response.headers.setdefault("Cache-Control", "no-store")
    if refusal.retry_after is not None:
        response.headers.setdefault("Retry-After", str(refusal.retry_after))
    if refusal.reference:
        response.headers.setdefault(REFERENCE_HEADER, refusal.reference)
    add_headers(response, refusal.decision, style)
    return cast(HttpResponse, response)


def add_ratelimit_headers(request: Any, response: Any) -> Any:
    """The view's answer, with the headers that tell what is left."""
    if conf.HEADERS is not None and isinstance(response, HttpResponseBase):
        add_headers(response, request.ratelimit)
    return response


def attach_decision(request: Any, decision: Decision) -> Decision:
    """Leave on the request what the view may want to know; returns this decision."""
    is_limited = not decision.allowed
    for state in decision.limits:
        is_limited = is_limited or (state.mode == "advise" and not state.allowed)
    request = vars(request).get("_request", request)  # DRF's finds it there, and so does the middleware.
    request.limited = is_limited or getattr(request, "limited", False)
    earlier = getattr(request, "ratelimit", None)
    request.ratelimit = earlier.merged(decision) if isinstance(earlier, Decision) else decision
    return decision


def refused_response(request: HttpRequest, decision: Decision) -> HttpResponse:
    """The answer to a blocked request. Raises what `RATELIMIT_EXCEPTION_CLASS` names, if anything."""
    _raise_instead(request, decision)
    return too_many_requests(request, decision)


async def arefused_response(request: HttpRequest, decision: Decision) -> HttpResponse:
    """The same in a coroutine."""
    _raise_instead(request, decision)
    return await atoo_many_requests(request, decision)


def _raise_instead(request: HttpRequest, decision: Decision) -> None:
    exception = conf.EXCEPTION_CLASS
    if exception is None:
        return
    refusal = refusal_of(request, decision)
    if not issubclass(exception, Ratelimited):
        raise exception()
    with language_of(request):
        error = refusal.tell(exception(decision))
    error.message = error.message or str(error)
    raise error
