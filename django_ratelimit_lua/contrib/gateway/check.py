"""`check`: decide, for the proxy in front of another server, whether a request is allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import BadRequest, SuspiciousOperation

from ...conf import conf
from ...engine.decide import adecide
from ...engine.holding import await_turn
from ...engine.run import Wait, Waiting
from ...rules.rule import EVERYONE, Rule
from ...rules.ruleset import Ruleset
from ...web.headers import limit_headers
from ...web.plan import Place, RequestPlanner
from ...web.responses import brief_refusal
from .answer import Answer
from .conf import settings as gateway_settings
from .described_request import DescribedRequest, is_trusted_proxy, read_described_request
from .meta import TOO_LARGE, Meta, is_too_large, meta_of
from .proxy_rules import rules_at
from .users import load_user

BODY_HEADER = "X-RateLimit-Body"
"""The body of a refusal once more, for nginx, which throws away that of a sub-request."""
STATUS_HEADER = "X-RateLimit-Status"
"""The status for the client: nginx logs every status of a sub-request as an error but 2xx, 401 and
403.
"""
_AUDIENCES_OF_KEY = {EVERYONE, "anonymous", "authenticated"}
"""Audiences that the user's key decides alone."""


async def answer_scope(scope: Mapping[str, Any]) -> Answer:
    """`answer_check` for an ASGI scope; 431 if its headers are too large."""
    if is_too_large(scope):
        return _refusal(TOO_LARGE)
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
    if gateway_settings.GATEWAY_DIALECT is None or not is_trusted_proxy(meta):
        return Answer.text(403, "Only trusted proxies of this site may use this URL.")
    try:
        request = read_described_request(meta)
        planner = _CheckPlanner(request)
        decision = await adecide(planner)
    except (BadRequest, SuspiciousOperation) as error:
        return _refusal(Answer.text(400, str(error)))
    style = conf.HEADERS or "ietf"
    if not decision:
        refusal = brief_refusal(request, decision, style)
        return _refusal(Answer(refusal.status_code, dict(refusal.items()), refusal.content))
    if decision.wait > 0:
        await await_turn(decision.wait, planner.charges)
    return Answer(200, limit_headers(decision, style))


def _refusal(answer: Answer) -> Answer:
    """Return a refusal in the form that the proxy accepts."""
    if gateway_settings.GATEWAY_DIALECT != "nginx":
        return answer
    # A header is one line of bytes, which are written as Latin-1 letters here.
    body = b" ".join(answer.body.splitlines()).decode("latin-1")
    headers = {**answer.headers, STATUS_HEADER: str(answer.status), BODY_HEADER: body}
    return Answer(403, headers, answer.body)


class _CheckPlanner(RequestPlanner):
    """Plans the charges of a request that a proxy describes."""

    request: DescribedRequest

    def __init__(self, request: DescribedRequest) -> None:
        super().__init__(request, partial(_places, request), has_blocks=True)

    def gather(self, ruleset: Ruleset) -> Waiting[None]:
        if hasattr(self.request, "user"):
            rules = _rules(self.request, ruleset) or ()
            if any(_needs_groups(rule) for rule in rules):
                load = partial(load_user, self.request)
                yield Wait(load, sync_to_async(load))
        yield from super().gather(ruleset)


def _places(request: DescribedRequest, ruleset: Ruleset) -> Sequence[Place] | None:
    rules = _rules(request, ruleset)
    if rules is None:
        return None
    return [Place(rules)]


def _rules(request: DescribedRequest, ruleset: Ruleset) -> Sequence[Rule] | None:
    """Return the rules for a request that a proxy can describe; None if it is exempt.

    Servers parse paths in several ways. So the rules of all possible paths apply, and the request
    is exempt only if all of them are.
    """
    is_user_known = hasattr(request, "user")
    readings: list[Sequence[Rule]] = []
    for path in request.readings:
        rules = rules_at(ruleset, path, is_user_known=is_user_known)
        rules = [rule for rule in rules if rule.meets_conditions(request)]
        if all(rule.template is not None for rule in rules):
            readings.append(rules)
    if not readings:
        return None
    if len(readings) == 1:
        return readings[0]
    names = {rule.name for rules in readings for rule in rules}
    return [rule for rule in ruleset.rules if rule.name in names]


def _needs_groups(rule: Rule) -> bool:
    """Return whether a rule needs data of the user from the database."""
    if rule.template is not None and rule.template.has_group_tiers:
        return True
    return not _AUDIENCES_OF_KEY.issuperset(rule.audience)
