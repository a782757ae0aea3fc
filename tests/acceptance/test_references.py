"""The reference of a refusal identifies the limit, the time and, by comparison, the client."""

from __future__ import annotations

import datetime
import io
import re
from typing import Any, ClassVar
from urllib.parse import urlencode

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.urls import path
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.utils.formats import date_format
from django.views import View
from rest_framework.response import Response
from rest_framework.views import APIView

from django_ratelimit_lua import RateLimiter, ratelimit
from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule
from django_ratelimit_lua.operations import BadReferenceError, OpenedReference, open_reference
from django_ratelimit_lua.operations.clients import explain_client
from django_ratelimit_lua.operations.explain import explain
from django_ratelimit_lua.operations.request_builder import build_request
from django_ratelimit_lua.throttling import ScopedRateThrottle, UserRateThrottle

pytestmark = pytest.mark.django_db(transaction=True)
HEADER = "RateLimit-Reference"


def ok(request: HttpRequest, **kwargs: Any) -> HttpResponse:
    return HttpResponse("ok")


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
    settings.MIDDLEWARE = ["django_ratelimit_lua.middleware.RateLimitMiddleware"]


def refused(where: str, **meta: Any) -> str:
    """Return the reference in the response to the second request."""
    client = Client(**meta)
    client.get(where)
    response = client.get(where)
    assert response.status_code == 429
    return str(response[HEADER])


def explained(reference: str, **options: str) -> str:
    out = io.StringIO()
    asked = ["--reference", reference, *(f"--{name}={value}" for name, value in options.items())]
    call_command("ratelimit", "rules", "explain", *asked, stdout=out, stderr=out, no_color=True)
    return out.getvalue()


def only(opened: OpenedReference) -> tuple[str, str]:
    (limit,) = {
        limit[:2] for limit in opened.limits
    }  # Other tests may have declared a second call site of a group.
    assert opened.is_exact
    return limit


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ("/decorated", "search:*:ip:1/h"),
        ("/method", f"{__name__}.OnMethod.get:*:ip:1/h"),
        ("/throttled", "hourly:GET"),
        ("/scoped", "reports"),
        ("/deep", "deep in"),
    ],
)
def test_a_reference_finds_the_limit_in_the_code(where: str, name: str) -> None:
    """It finds the limit that refused among those of decorators, throttles and `RateLimiter`s."""
    before = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    opened = open_reference(refused(where))
    assert only(opened) == (name, "code")
    assert before <= opened.at <= datetime.datetime.now(datetime.UTC)
    assert (len(opened.digest_prefix), opened.is_block) == (8, False)
    other = open_reference(refused(where, REMOTE_ADDR="203.0.113.9")).digest_prefix
    assert other != opened.digest_prefix or where == "/deep"


@pytest.mark.parametrize(
    ("where", "place"),
    [
        ("/decorated", "search"),
        ("/method", f"{__name__}.OnMethod.get"),
        ("/throttled", "hourly"),
        ("/scoped", "reports"),
        ("/deep", "deep in"),
    ],
)
def test_a_client_is_examined_by_its_digest(where: str, place: str) -> None:
    """Under the name in the statistics, exactly the refused client is found."""
    refused(where, REMOTE_ADDR="203.0.113.1")
    prefix = open_reference(refused(where, REMOTE_ADDR="203.0.113.77")).digest_prefix
    met = explain(build_request(where, address="203.0.113.77")).met
    digests = {limit.charge.digest.decode() for limit in met} or {deep.peek().identity.decode()}
    (digest,) = [digest for digest in digests if digest.startswith(prefix)]
    explained = explain_client(digest, place)
    # Limits of 0 that other tests have declared in this process refuse everybody.
    refusals = [met for met in explained.found.met if met.refuses]
    (refusing,) = [met for met in refusals if met.state is not None and met.state.limit]
    assert refusing.state is not None
    assert (refusing.state.used, refusing.state.limit, refusing.charge.digest) == (
        1,
        1,
        digest.encode(),
    )
    stranger = explain_client("0" * 32, place)
    assert not [met for met in stranger.found.met if met.state is not None and met.state.used]
    assert {met.state.used for met in stranger.found.met if met.state is not None} == {0}
    assert refusing.name in [met.name for met in explain_client(digest).found.met]
    assert not [met for met in explain_client("0" * 32).found.met if met.state and met.state.limit]


def test_a_reference_finds_the_current_rule() -> None:
    """It has the current text of the rule. A deleted rule is unknown."""
    rule = RateLimitRule.objects.create(name="all", key="ip", rate="1/h", path="/plain")
    reference = refused("/plain")
    assert only(open_reference(reference)) == ("all", "admin")
    rule.rate = "5/h"
    rule.save()
    (limit, *_) = open_reference(reference).limits
    assert limit.rule is not None
    assert limit.reading == "5 per hour per address, on /plain"
    assert "all (admin): 5 per hour per address, on /plain\nAdd --path" in explained(reference)
    rule.delete()
    assert open_reference(reference).limits == ()
    assert "Unknown limit: it was removed" in explained(reference)


def test_a_reference_finds_a_call_site_with_a_changed_rate() -> None:
    """It finds the current limits of the call site, and reports that the limit was replaced."""
    earlier = ratelimit("search", "ip", lambda group, request: "1/w")(ok)
    answers = [earlier(RequestFactory().get("/")) for _ in range(2)]
    opened = open_reference(answers[-1][HEADER])
    assert not opened.is_exact
    assert {"search:*:ip:9/s", "search:*:ip:1/h"} <= {limit.name for limit in opened.limits}
    assert "The limit was replaced by" in explained(answers[-1][HEADER])


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
    text = explained(reference)
    assert "a block refused at " in text
    assert f"override {block.pk} (203.0.113.0/24): block: every request is refused, until " in text
    block.delete()
    assert open_reference(reference).overrides == ()
    assert "The override does not exist any more." in explained(reference)


def test_an_earlier_secret_still_opens_a_reference(settings: Any) -> None:
    """The earlier secret has to be a fallback. No request can be compared with such a reference."""
    reference = refused("/decorated")
    before, settings.SECRET_KEY = settings.SECRET_KEY, "another"
    with pytest.raises(BadReferenceError):
        open_reference(reference)
    settings.SECRET_KEY_FALLBACKS = [before]
    opened = open_reference(reference)
    assert opened.is_of_earlier_key
    assert only(opened)[0] == "search:*:ip:1/h"
    assert opened.is_of(explain(build_request("/decorated"))) is None
    assert "made with an earlier secret" in explained(reference)


def test_an_invalid_reference_is_an_error_of_the_command() -> None:
    """The message names the error."""
    for text, problem in (
        ("hello", "a reference has 20 letters"),
        ("X" * 20, "this text is mistyped"),
    ):
        with pytest.raises(CommandError, match=f"^--reference: {problem}"):
            explained(text)


INSPECTOR = "/admin/django_ratelimit_lua/ratelimitoverride/inspect/"


def desk(*permissions: str) -> Client:
    user = User.objects.create_user("desk", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client(REMOTE_ADDR="192.0.2.1")
    client.force_login(user)
    return client


def page(client: Client, reference: str) -> str:
    response = client.get(INSPECTOR, {"reference": reference})
    assert response.status_code == 200
    return " ".join(response.content.decode().split())


@pytest.fixture
def admin_site(settings: Any) -> None:
    settings.MIDDLEWARE = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
        *settings.MIDDLEWARE,
    ]


@pytest.mark.usefixtures("admin_site")
def test_the_inspector_opens_a_reference_and_resets_the_client() -> None:
    """It shows the rule and the time. The described request has its counts, and can be reset."""
    rule = RateLimitRule.objects.create(name="all", key="ip", rate="1/h", path="/plain")
    reference = refused("/plain", REMOTE_ADDR="203.0.113.9")
    client = desk("view_ratelimitrule", "block_identity")
    text = page(client, reference.replace("-", " ").lower())
    at = date_format(timezone.localtime(open_reference(reference).at), "j M, H:i:s")
    assert f'<h2 id="opened" class="ratelimit-verdict refused">Refused, {at}</h2>' in text
    assert f"ratelimitrule/{rule.pk}/change/" in text
    assert "1 per hour per address, on /plain" in text
    asked = {"reference": reference, "path": "/plain", "address": "203.0.113.9"}
    text = client.get(INSPECTOR, asked).content.decode()
    assert "from the same client as the refused one" in text
    assert "1 / 1" in text
    response = client.post(f"{INSPECTOR}?{urlencode(asked)}", {"action": "reset"}, follow=True)
    assert "Counts are reset: all." in response.content.decode()
    assert Client(REMOTE_ADDR="203.0.113.9").get("/plain").status_code == 200


@pytest.mark.usefixtures("admin_site")
@pytest.mark.parametrize("is_block", [True, False])
def test_the_inspector_compares_the_client_of_a_reference(is_block: bool) -> None:
    """It compares the described client with the refused one, or with the one that met the block. No
    digest is shown.
    """
    RateLimitRule.objects.create(name="all", key="ip", rate="1/h", path="/plain")
    if is_block:
        RateLimitOverride.objects.create(network="203.0.113.9", effect="block")
    reference = (
        Client(REMOTE_ADDR="203.0.113.9").get("/plain")[HEADER]
        if is_block
        else refused("/plain", REMOTE_ADDR="203.0.113.9")
    )
    client = desk("view_ratelimitrule")
    text = page(client, reference)
    assert "The client is not stored." in text
    assert f"In the log, look for: <code>{reference}</code>" in text
    assert open_reference(reference).digest_prefix not in text

    def compared(address: str, where: str = "/plain") -> str:
        response = client.get(
            INSPECTOR, {"reference": reference, "path": where, "address": address}
        )
        shown = re.search(r'"ratelimit-who">\s*<strong>(.*?)[:<]', response.content.decode())[1]
        assert shown.replace(" below", "") in explained(reference, path=where, ip=address)
        return str(shown)

    assert (
        compared("203.0.113.9") == "The request below is from the same client as the refused one."
    )
    assert (
        compared("203.0.113.8") == "The request below is from another client than the refused one."
    )
    if not is_block:
        assert compared("203.0.113.9", "/decorated") == "The request below cannot be compared"
