"""A decision as an HTTP answer: 429 with a true `Retry-After`."""

from __future__ import annotations

import inspect
import json
import math
from functools import lru_cache
from typing import Any, cast

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.template import TemplateDoesNotExist, loader

from ..conf import conf
from ..exceptions import Ratelimited
from ..limits.decision import Decision
from ..rules.provider import current
from .headers import add_headers

PROBLEM = "application/problem+json"
_TEXT = "text/plain"
LONGEST_ACCEPT = 1024
"""Characters of an `Accept` header that are looked at; a longer one is answered with a page."""
MOST_TYPES = 32
"""Types in an `Accept` header that are looked at; one with more is answered with a page."""


def retry_after_header(decision: Decision) -> str | None:
    """Whole seconds, rounded up, and at least 1 (RFC 9110, 10.2.3); None for a request that can never be allowed.

    >>> retry_after_header(Decision(False))
    """
    seconds = decision.retry_after
    return None if seconds is None else str(max(1, math.ceil(seconds)))


def refusal_message(decision: Decision) -> str:
    """What the rule that refuses has to say to who is refused; empty if nothing."""
    ruleset = current()
    if ruleset is None:
        return ""
    rules = map(ruleset.rule_of, decision.denied_by)
    return next((rule.message for rule in rules if rule is not None and rule.message), "")


def _when(decision: Decision, retry_after: str | None) -> str:
    if retry_after is None:
        # Whoever is blocked has a limit of nothing, and so has a rate of 0.
        if any(not state.allowed and not state.limit for state in decision.enforced):
            return "This request is not allowed."
        return "This request is larger than the limit allows."
    unit = "second" if retry_after == "1" else "seconds"
    return f"Try again in {retry_after} {unit}."


def _detail(decision: Decision, retry_after: str | None) -> str:
    return " ".join(part for part in (refusal_message(decision), _when(decision, retry_after)) if part)


def _problem(decision: Decision, retry_after: str | None) -> HttpResponse:
    """A problem document (RFC 9457)."""
    body: dict[str, object] = {
        "type": "about:blank",
        "title": "Too Many Requests",
        "status": 429,
        "detail": _detail(decision, retry_after),
    }
    if retry_after is not None:
        body["retry_after"] = int(retry_after)
    return HttpResponse(json.dumps(body), status=429, content_type=PROBLEM)


def _template() -> Any:
    """The project's page for the blocked, or None."""
    try:
        return loader.get_template("429.html")
    except TemplateDoesNotExist as error:
        if error.args[0] != "429.html":
            raise
    return None


def _rendered(template: Any, request: HttpRequest, decision: Decision, retry_after: str | None) -> HttpResponse:
    context = {
        "decision": decision,
        "message": refusal_message(decision),
        "retry_after": None if retry_after is None else int(retry_after),
    }
    return HttpResponse(template.render(context, request), status=429)


def _plain(decision: Decision, retry_after: str | None) -> HttpResponse:
    return HttpResponse(
        f"Too many requests. {_detail(decision, retry_after)}\n", status=429, content_type=f"{_TEXT}; charset=utf-8"
    )


def _asks_for_json(request: HttpRequest) -> bool:
    accept = request.META.get("HTTP_ACCEPT", "")
    # Nobody needs more; and a refusal must not cost more than the request it refuses.
    return len(accept) <= LONGEST_ACCEPT and accept.count(",") < MOST_TYPES and _names_json(accept)


@lru_cache(maxsize=256)
def _names_json(accept: str) -> bool:
    request = HttpRequest()
    request.META = {"HTTP_ACCEPT": accept} if accept else {}
    preferred = request.get_preferred_type(["text/html", _TEXT, PROBLEM, "application/json"])
    return preferred in (PROBLEM, "application/json")


def too_many_requests(request: HttpRequest, decision: Decision) -> HttpResponse:
    """The answer to a blocked request.

    `RATELIMIT_VIEW` makes it where that is set, called with the request and a `Ratelimited`; else it is a 429: a
    problem document for clients that ask for JSON, the project's template `429.html`, or a plain page. It is not
    to be stored, and carries `Retry-After` unless the request can never be allowed.
    """
    retry_after = retry_after_header(decision)
    view = conf.VIEW
    if view is not None:
        response = view(request, Ratelimited(decision))
        if inspect.isawaitable(response):
            response = async_to_sync(_awaited)(response)
    elif _asks_for_json(request):
        response = _problem(decision, retry_after)
    elif (template := _template()) is not None:
        response = _rendered(template, request, decision, retry_after)
    else:
        response = _plain(decision, retry_after)
    return _finished(response, decision, retry_after)


async def atoo_many_requests(request: HttpRequest, decision: Decision) -> HttpResponse:
    """The same in a coroutine: what may ask a database, a template or a synchronous view, runs in a thread."""
    retry_after = retry_after_header(decision)
    view = conf.VIEW
    if view is not None:
        called = view if _is_async(view) else sync_to_async(view)
        response = await called(request, Ratelimited(decision))
        if inspect.isawaitable(response):
            response = await response
    elif _asks_for_json(request):
        response = _problem(decision, retry_after)
    elif (template := _template()) is not None:
        response = await sync_to_async(_rendered)(template, request, decision, retry_after)
    else:
        response = _plain(decision, retry_after)
    return _finished(response, decision, retry_after)


def _is_async(view: Any) -> bool:
    return iscoroutinefunction(view) or iscoroutinefunction(getattr(view, "__call__", None))  # noqa: B004


async def _awaited(response: Any) -> Any:
    return await response


def _finished(response: Any, decision: Decision, retry_after: str | None) -> HttpResponse:
    if not isinstance(response, HttpResponseBase):
        raise TypeError(f"RATELIMIT_VIEW returned {response!r}: it must return an HttpResponse")
    response.headers.setdefault("Cache-Control", "no-store")
    if retry_after is not None:
        response.headers.setdefault("Retry-After", retry_after)
    add_headers(response, decision)
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
    _raise_instead(decision)
    return too_many_requests(request, decision)


async def arefused_response(request: HttpRequest, decision: Decision) -> HttpResponse:
    """The same in a coroutine."""
    _raise_instead(decision)
    return await atoo_many_requests(request, decision)


def _raise_instead(decision: Decision) -> None:
    exception = conf.EXCEPTION_CLASS
    if exception is not None:
        raise exception(decision) if issubclass(exception, Ratelimited) else exception()
