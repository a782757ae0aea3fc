"""The answers of the gateway's URLs, for Django's views and for ASGI.

`check` decides requests for the proxy in front of another server, `json` descriptors for services,
and `health` is for monitoring.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import BadRequest, SuspiciousOperation

from ...conf import conf
from ...engine.decide import adecide
from ...engine.holding import await_turn
from ...engine.run import Wait, Waiting
from ...extension import require_annex
from ...limits.rate import Rate
from ...operations.health import ahealth
from ...rules.rule import EVERYONE, Rule
from ...rules.ruleset import PathIndex, Ruleset
from ...web.headers import limit_headers
from ...web.plan import Place
from ...web.refusal import refusal_of
from ...web.request_plan import RequestPlanner
from .conf import PROTOCOL, settings
from .described_request import (
    DescribedRequest,
    is_trusted_proxy,
    load_user,
    read_described_request,
)
from .http import TOO_LARGE, Answer, Meta, compose_refusal, is_too_large, meta_of
from .secrets import SECRET_KEY, authenticate

require_annex("gateway")

BODY_HEADER = "X-RateLimit-Body"
"""The body of a refusal once more, for nginx, which throws away that of a sub-request."""
STATUS_HEADER = "X-RateLimit-Status"
"""The status for the client: nginx logs every status of a sub-request as an error but 2xx, 401 and
403.
"""
MAX_BODY_BYTES = 64 * 1024
BAD_REQUEST = Answer.text(400, "Bad Request")
"""The response of envoyproxy/ratelimit to every invalid request."""
_AUDIENCES_OF_PRIMARY_KEY = {EVERYONE, "anonymous", "authenticated"}
"""Audiences that need only the primary key of the user."""
logger = logging.getLogger("django_ratelimit_lua")


async def answer_scope(scope: Mapping[str, Any]) -> Answer:
    """`answer_check` for an ASGI scope; 431 if its headers are too large."""
    if is_too_large(scope):
        return _adapt_refusal(TOO_LARGE)
    return await answer_check(meta_of(scope))


async def answer_check(meta: Meta) -> Answer:
    """Decide the request that a proxy describes.

    Args:
        meta: The `META` of the proxy's own request.

    Returns:
        200 to admit the request. 429, or the status of a block, with `Retry-After` and a body to
        refuse it. Both have rate-limit headers. 403 for a client that is not a trusted proxy with
        the secret, 400 for an invalid request. For nginx, every refusal is a 403 with the status
        in `X-RateLimit-Status`.
    """
    if settings.GATEWAY_DIALECT is None or not is_trusted_proxy(meta):
        return Answer.text(403, "Only trusted proxies of this site may use this URL.")
    try:
        request = read_described_request(meta)
        planner = _CheckPlanner(request)
        decision = await adecide(planner)
    except (BadRequest, SuspiciousOperation) as error:
        return _adapt_refusal(Answer.text(400, str(error)))
    if not decision:
        return _adapt_refusal(compose_refusal(request, refusal_of(request, decision)))
    if decision.wait > 0:
        await await_turn(decision.wait, planner.charges)
    return Answer(200, limit_headers(decision, conf.HEADERS or "ietf"))


def _adapt_refusal(answer: Answer) -> Answer:
    """Return a refusal in the form that the proxy accepts."""
    if settings.GATEWAY_DIALECT != "nginx":
        return answer
    # A header is one line of bytes, which are written as Latin-1 letters here.
    body = b" ".join(answer.body.splitlines()).decode("latin-1")
    headers = {**answer.headers, STATUS_HEADER: str(answer.status), BODY_HEADER: body}
    return Answer(403, headers, answer.body)


class _CheckPlanner(RequestPlanner):
    """Plans the charges of a request that a proxy describes."""

    request: DescribedRequest

    def __init__(self, request: DescribedRequest) -> None:
        super().__init__(request, partial(_find_places, request), blocks_uncharged=True)

    def gather(self, ruleset: Ruleset) -> Waiting[None]:
        """Find the charges, after the user was loaded if a rule needs the user's groups."""
        if hasattr(self.request, "user"):
            rules = _find_rules(self.request, ruleset) or ()
            if any(_needs_database(rule) for rule in rules):
                load = partial(load_user, self.request)
                yield Wait(load, sync_to_async(load))
        yield from super().gather(ruleset)


def _find_places(request: DescribedRequest, ruleset: Ruleset) -> Sequence[Place] | None:
    """Return the rules as the one place of a request; None if the request is exempt."""
    rules = _find_rules(request, ruleset)
    return None if rules is None else [Place(rules)]


def _find_rules(request: DescribedRequest, ruleset: Ruleset) -> Sequence[Rule] | None:
    """Return the rules for a request that a proxy can describe; None if it is exempt.

    Servers parse paths in several ways. So the rules of all possible paths apply, and the request
    is exempt only if all of them are.
    """
    index = _index_rules(ruleset, hasattr(request, "user"))
    rules_of_paths: list[Sequence[Rule]] = []
    for path in request.possible_paths:
        rules = [rule for rule in index.matching(path) if rule.meets_conditions(request)]
        is_exempt = any(rule.template is None for rule in rules)
        if not is_exempt:
            rules_of_paths.append(rules)
    if not rules_of_paths:
        return None
    if len(rules_of_paths) == 1:
        return rules_of_paths[0]
    names = {rule.name for rules in rules_of_paths for rule in rules}
    return [rule for rule in ruleset.rules if rule.name in names]


@lru_cache(maxsize=4)
def _index_rules(ruleset: Ruleset, is_user_known: bool) -> PathIndex:
    """Return the rules that apply to requests of proxies, in their order, by path."""
    return PathIndex([rule for rule in ruleset.at_paths if _is_applicable(rule, is_user_known)])


def _is_applicable(rule: Rule, is_user_known: bool) -> bool:
    """Return whether a proxy reports all values that a rule needs.

    `is_user_known`: whether a header of the proxy contains the user.
    """
    if rule.route is not None or rule.needs_route or rule.needs_session:
        return False
    if rule.needs_user and not is_user_known:
        return False
    if any(key.needs_body or not key.known_to_proxies for key in rule.keys):
        return False
    # Slots are held until the request ends, which the proxy does not report.
    rates = () if rule.template is None else rule.template.rates
    return not any(isinstance(rate, Rate) and rate.is_slots for rate in rates)


def _needs_database(rule: Rule) -> bool:
    """Return whether a rule needs more of the user than the primary key."""
    if rule.template is not None and rule.template.has_group_tiers:
        return True
    return not _AUDIENCES_OF_PRIMARY_KEY.issuperset(rule.audience)


async def answer_json(meta: Meta, read_body: Callable[[], Awaitable[bytes]]) -> Answer:
    """Decide a `RateLimitRequest`, encoded as JSON.

    Args:
        meta: The `META` of the request.
        read_body: Returns the body. One that is longer than `MAX_BODY_BYTES` may be cut off after
            that. It is not called without a secret.

    Returns:
        A `RateLimitResponse` as JSON, with 200 or, if it is over a limit, with 429 and
        `Retry-After`. 400 for an invalid request; the log has the reason. 403 for a client without
        a secret.
    """
    # Only here, because `check` needs no protocol buffers.
    from . import protocol
    from .should_rate_limit import should_rate_limit

    secret_name = authenticate(meta.get(SECRET_KEY, ""), PROTOCOL, meta.get("REMOTE_ADDR"))
    if secret_name is None:
        return Answer.text(403, "A secret of this site is required.")
    try:
        body = await read_body()
        if len(body) > MAX_BODY_BYTES:
            raise protocol.ProtocolError(f"the body has more than {MAX_BODY_BYTES} bytes")
        response = await should_rate_limit(protocol.encode_json(body))
    except protocol.ProtocolError as error:
        logger.warning("The gateway refused a request with the secret %r: %s", secret_name, error)
        return BAD_REQUEST
    headers = {header.key: header.value for header in response.response_headers_to_add}
    headers["content-type"] = "application/json"
    status = 429 if response.overall_code == protocol.OVER_LIMIT else 200
    return Answer(status, headers, protocol.write_json(response))


async def answer_health() -> Answer:
    """Return 200 if Redis replies within `RATELIMIT_TIMEOUT`, otherwise 503. Counts nothing."""
    if (await ahealth()).ok:
        return Answer.text(200, "ok")
    return Answer.text(503, "Redis is unavailable; fallback policies decide.")
