"""A decision as an HTTP answer: 429 with a true `Retry-After`."""

from __future__ import annotations

import json
import math
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.template import TemplateDoesNotExist, loader

from .conf import conf
from .exceptions import Ratelimited
from .headers import add_headers
from .limits.decision import Decision
from .rules.current import current

PROBLEM = "application/problem+json"
_PLAIN = "text/plain"


def retry_after_header(decision: Decision) -> str | None:
    """Whole seconds, rounded up, and at least 1 (RFC 9110, 10.2.3); None for a request that can never be allowed.

    >>> retry_after_header(Decision(False))
    """
    seconds = decision.retry_after
    return None if seconds is None else str(max(1, math.ceil(seconds)))


def message(decision: Decision) -> str:
    """What the rule that refuses has to say to who is refused; empty if nothing."""
    ruleset = current()
    if ruleset is None:
        return ""
    rules = map(ruleset.rule_of, decision.denied_by)
    return next((rule.message for rule in rules if rule is not None and rule.message), "")


def _when(retry_after: str | None) -> str:
    if retry_after is None:
        return "This request is larger than the limit allows."
    unit = "second" if retry_after == "1" else "seconds"
    return f"Try again in {retry_after} {unit}."


def _detail(decision: Decision, retry_after: str | None) -> str:
    return " ".join(part for part in (message(decision), _when(retry_after)) if part)


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


def _page(request: HttpRequest, decision: Decision, retry_after: str | None) -> HttpResponse:
    context = {
        "decision": decision,
        "message": message(decision),
        "retry_after": None if retry_after is None else int(retry_after),
    }
    try:
        return HttpResponse(loader.render_to_string("429.html", context, request), status=429)
    except TemplateDoesNotExist as error:
        if error.args[0] != "429.html":
            raise
    return HttpResponse(
        f"Too many requests. {_detail(decision, retry_after)}\n", status=429, content_type=f"{_PLAIN}; charset=utf-8"
    )


def too_many_requests(request: HttpRequest, decision: Decision) -> HttpResponse:
    """The answer to a blocked request.

    `RATELIMIT_VIEW` makes it where that is set, called with the request and a `Ratelimited`; else it is a 429: a
    problem document for clients that ask for JSON, the project's template `429.html`, or a plain page. It is not
    to be stored, and carries `Retry-After` unless the request can never be allowed.
    """
    retry_after = retry_after_header(decision)
    view = conf.VIEW
    if view is not None:
        response: HttpResponse = view(request, Ratelimited(decision))
    else:
        wanted = request.get_preferred_type(["text/html", _PLAIN, PROBLEM, "application/json"])
        as_json = wanted in (PROBLEM, "application/json")
        response = _problem(decision, retry_after) if as_json else _page(request, decision, retry_after)
        response.headers["Cache-Control"] = "no-store"
    if retry_after is not None:
        response.headers.setdefault("Retry-After", retry_after)
    add_headers(response, decision)
    return response


def told(request: Any, response: Any) -> Any:
    """The view's answer, with the headers that tell what is left."""
    if conf.HEADERS is not None and isinstance(response, HttpResponseBase):
        add_headers(response, request.ratelimit)
    return response


def note(request: Any, decision: Decision) -> Decision:
    """Leave on the request what the view may want to know; returns this decision."""
    refused = not decision or any(state.mode == "advise" and not state.allowed for state in decision.limits)
    request.limited = refused or getattr(request, "limited", False)
    earlier = getattr(request, "ratelimit", None)
    request.ratelimit = earlier.merged(decision) if isinstance(earlier, Decision) else decision
    return decision


def refusal(request: HttpRequest, decision: Decision) -> HttpResponse:
    """The answer to a blocked request. Raises what `RATELIMIT_EXCEPTION_CLASS` names, if anything."""
    exception = conf.EXCEPTION_CLASS
    if exception is None:
        return too_many_requests(request, decision)
    raise exception(decision) if issubclass(exception, Ratelimited) else exception()
