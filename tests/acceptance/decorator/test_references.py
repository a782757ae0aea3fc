"""The reference of a refusal identifies the limit, the time and, by comparison, the client."""

from __future__ import annotations

import datetime
from typing import Any, ClassVar

import pytest
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.urls import path
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.response import Response
from rest_framework.views import APIView

from django_ratelimit_lua import RateLimiter, ratelimit
from django_ratelimit_lua.admin.client_limits import explain_client
from django_ratelimit_lua.management.arguments import build_request
from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule
from django_ratelimit_lua.operations import OpenedReference, open_reference
from django_ratelimit_lua.operations.explain import explain
from django_ratelimit_lua.throttling import ScopedRateThrottle, UserRateThrottle
from tests.urls import LIMITS, ok

pytestmark = pytest.mark.django_db(transaction=True)
HEADER = "RateLimit-Reference"


class OnMethod(View):
    @method_decorator(ratelimit(key="ip", rate=["9/s", "1/h"]))
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")


class Hourly(UserRateThrottle):
    rate: ClassVar[dict[str, str]] = {"GET": "1/h", "*": "5/h"}
    scope = "hourly"


class Throttled(APIView):
    authentication_classes = ()
    throttle_classes = (Hourly,)

    def get(self, request: Any) -> Response:
        return Response({})


class Scoped(ScopedRateThrottle):
    THROTTLE_RATES: ClassVar[dict[str, str]] = {"reports": "1/h"}


class Reports(Throttled):
    throttle_classes = (Scoped,)
    throttle_scope = "reports"


deep = RateLimiter("deep in", "1/h", algorithm="fixed_window")


def raising(request: HttpRequest) -> HttpResponse:
    return HttpResponse(deep(lambda: "ok")())


urlpatterns = [
    path("decorated", ratelimit("search", "ip", ["9/s", "1/h"], algorithm="token_bucket")(ok)),
    path("method", OnMethod.as_view()),
    path("throttled", Throttled.as_view()),
    path("scoped", Reports.as_view()),
    path("deep", raising),
    path("plain", ok),
    path("admin/", admin.site.urls),
]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = [LIMITS]


def refused(where: str, **meta: Any) -> str:
    """Return the reference in the response to the second request."""
    client = Client(**meta)
    client.get(where)
    response = client.get(where)
    assert response.status_code == 429
    return str(response[HEADER])


def names(opened: OpenedReference) -> set[tuple[str, str]]:
    return {limit[:2] for limit in opened.limits}


PLACES = {
    "/decorated": ("search", "search:*:ip:1/h"),
    "/method": (f"{__name__}.OnMethod.get", f"{__name__}.OnMethod.get:*:ip:1/h"),
    "/throttled": ("hourly", "hourly:GET"),
    "/scoped": ("reports", "reports"),
    "/deep": ("deep in", "deep in"),
}
"""The name in the statistics and that of the limit."""


@pytest.mark.parametrize("where", PLACES)
def test_a_reference_finds_the_limit_in_the_code(where: str) -> None:
    """It finds the limit that refused among those of decorators, throttles and `RateLimiter`s."""
    before = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    opened = open_reference(refused(where))
    assert (PLACES[where][1], "code") in names(opened)
    assert before <= opened.at <= datetime.datetime.now(datetime.UTC)
    assert (len(opened.digest_prefix), opened.is_block) == (6, False)
    other = open_reference(refused(where, REMOTE_ADDR="203.0.113.9")).digest_prefix
    assert other != opened.digest_prefix or where == "/deep"


@pytest.mark.parametrize("where", PLACES)
def test_a_client_is_examined_by_its_digest(where: str) -> None:
    """Under the name in the statistics, exactly the refused client is found."""
    place, _ = PLACES[where]
    refused(where, REMOTE_ADDR="203.0.113.1")
    prefix = open_reference(refused(where, REMOTE_ADDR="203.0.113.77")).digest_prefix
    met = explain(build_request(where, address="203.0.113.77")).limits
    digests = {limit.charge.digest.decode() for limit in met} or {deep.peek().identity.decode()}
    (digest,) = [digest for digest in digests if digest.startswith(prefix)]
    explained = explain_client(digest, place)
    # Limits of 0 that other tests have declared in this process refuse everybody.
    refusals = [met for met in explained.explanation.limits if met.refuses]
    (refusing,) = [met for met in refusals if met.state is not None and met.state.limit]
    assert refusing.state is not None
    assert (refusing.state.used, refusing.state.limit) == (1, 1)
    assert refusing.charge.digest == digest.encode()
    stranger = explain_client("0" * 32, place)
    assert not [
        met for met in stranger.explanation.limits if met.state is not None and met.state.used
    ]
    assert {met.state.used for met in stranger.explanation.limits if met.state is not None} == {0}
    assert refusing.name in [met.name for met in explain_client(digest).explanation.limits]
    assert not [
        met for met in explain_client("0" * 32).explanation.limits if met.state and met.state.limit
    ]


def test_a_reference_finds_the_current_rule() -> None:
    """It has the current text of the rule. A deleted rule is unknown."""
    rule = RateLimitRule.objects.create(name="all", key="ip", rate="1/h", path="/plain")
    reference = refused("/plain")
    assert names(open_reference(reference)) == {("all", "admin")}
    rule.rate = "5/h"
    rule.save()
    (limit, *_) = open_reference(reference).limits
    assert limit.rule is not None
    assert limit.reading == "5 per hour per address, on /plain"
    rule.delete()
    assert open_reference(reference).limits == ()


def test_a_reference_finds_a_call_site_with_a_changed_rate() -> None:
    """It finds the current limits of the call site."""
    earlier = ratelimit("search", "ip", lambda group, request: "1/w")(ok)
    answers = [earlier(RequestFactory().get("/")) for _ in range(2)]
    opened = open_reference(answers[-1][HEADER])
    assert {"search:*:ip:9/s", "search:*:ip:1/h"} <= {limit.name for limit in opened.limits}


@pytest.mark.parametrize("has_rule", [True, False])
def test_a_reference_finds_a_block_with_its_override(has_rule: bool) -> None:
    """The override is found with or without a rule. A deleted override is reported."""
    if has_rule:
        RateLimitRule.objects.create(name="all", key="ip", rate="5/60m", path="/")
    ends = timezone.now() + datetime.timedelta(hours=1)
    block = RateLimitOverride.objects.create(network="203.0.113.0/24", effect="block", ends=ends)
    reference = Client(REMOTE_ADDR="203.0.113.9").get("/plain")[HEADER]
    opened = open_reference(reference)
    assert (opened.is_block, opened.overrides, opened.limits) == (True, (block,), ())
    assert block.subject.startswith(opened.digest_prefix)
    block.delete()
    assert open_reference(reference).overrides == ()
