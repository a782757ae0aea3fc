"""What a client was shown with a 429 is opened: what refused, whom, when, and what is counted there now."""

from __future__ import annotations

import datetime
import io
import re
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlencode

import pytest
import redis
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.urls import path
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.response import Response
from rest_framework.views import APIView

from django_ratelimit_lua import RateLimiter, ratelimit
from django_ratelimit_lua.limits.decision import LimitState
from django_ratelimit_lua.models import RateLimitChange, RateLimitOverride, RateLimitRule
from django_ratelimit_lua.operations import BadReferenceError, OpenedReference, open_reference
from django_ratelimit_lua.operations.identity import explain_identity
from django_ratelimit_lua.throttling import ScopedRateThrottle, UserRateThrottle
from tests.server import url
from tests.worker import Worker, migrated

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
    """The reference that the second request is shown."""
    client = Client(**meta)
    client.get(where)
    response = client.get(where)
    assert response.status_code == 429
    return str(response[HEADER])


def explained(reference: str) -> str:
    out = io.StringIO()
    call_command("ratelimit", "rules", "explain", "--reference", reference, stdout=out, stderr=out, no_color=True)
    return out.getvalue()


def only(opened: OpenedReference) -> tuple[str, str, LimitState]:
    (limit,) = opened.limits
    assert opened.is_exact
    assert limit.state is not None
    return limit.name, limit.source, limit.state


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
def test_what_refused_in_the_code_is_found(where: str, name: str) -> None:
    """The one of several limits, by decorators, throttles and `RateLimiter`s; and what it counts for that client."""
    before = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    opened = open_reference(refused(where))
    found, source, state = only(opened)
    assert (found, source, state.used, state.limit, state.allowed) == (name, "code", 1, 1, False)
    assert before <= opened.at <= datetime.datetime.now(datetime.UTC)
    assert (len(opened.identity), opened.is_block, opened.error) == (32, False, "")
    assert open_reference(refused(where, REMOTE_ADDR="203.0.113.9")).identity != opened.identity or where == "/deep"


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
    """Under the name that statistics count by: exactly the client that was refused, and no other."""
    refused(where, REMOTE_ADDR="203.0.113.1")
    digest = open_reference(refused(where, REMOTE_ADDR="203.0.113.77")).identity
    explained = explain_identity(place, digest)
    (refusing,) = [met for met in explained.found.met if met.refuses]
    assert refusing.state is not None
    assert (refusing.state.used, refusing.state.limit, refusing.charge.digest) == (1, 1, digest.encode())
    stranger = explain_identity(place, "0" * 32)
    assert stranger.found.decision.allowed
    assert {met.state.used for met in stranger.found.met if met.state is not None} == {0}
    assert explain_identity("elsewhere", digest).found.met == ()


def test_limits_of_one_name_are_told_apart_by_what_they_count() -> None:
    """Call sites of one group may have one rate and count apart, as their algorithms differ: the one that refused is
    found, whichever was made first."""
    views = [ratelimit("alike", "ip", "1/h", algorithm=one)(ok) for one in ("fixed_window", "token_bucket")]
    for number, view in enumerate(views):
        request = RequestFactory().get("/", REMOTE_ADDR=f"203.0.113.{number}")
        assert view(request).status_code == 200
        _, _, state = only(open_reference(view(request).headers[HEADER]))
        assert (state.used, state.limit, state.allowed) == (1, 1, False)


def test_looking_takes_nothing(direct: redis.Redis, settings: Any) -> None:
    """However often it is opened, and however many are refused: nothing is written."""

    def kept() -> dict[bytes, bytes]:
        return {key: direct.dump(key) for key in direct.keys(f"{settings.RATELIMIT_CACHE_PREFIX}{{*}}:search*")}

    reference, before = refused("/decorated"), kept()
    for _ in range(3):
        assert only(open_reference(reference))[2].used == 1
        refused("/decorated")
    after = kept()
    assert [key for key in after if b"1/h" in key]
    assert after.items() <= before.items()  # What lasts a second has ended meanwhile.


def test_a_rule_is_found_as_it_is_now() -> None:
    """With its name, its numbers of now and what they say of that client; one that is gone is not known."""
    rule = RateLimitRule.objects.create(name="all", key="ip", limit=1, period=1, unit="h", path="/plain")
    reference = refused("/plain")
    assert only(open_reference(reference))[:2] == ("all", "admin")
    rule.limit = 5
    rule.save()
    opened = open_reference(reference)
    _, _, state = only(opened)
    assert (state.used, state.limit, state.allowed) == (1, 5, True)
    assert opened.limits[0].rule is not None
    assert opened.limits[0].reading == "5 per hour per address, on /plain"
    text = explained(reference)
    assert "all (admin): 5 per hour per address, on /plain\n    now 1 of 5 used, 4 left" in text
    rule.delete()
    assert open_reference(reference).limits == ()
    assert "the limit is not known here" in explained(reference)


def test_a_call_site_whose_rate_was_changed_is_found_in_its_place() -> None:
    """What stands there now, and that it is not the one."""
    earlier = ratelimit("search", "ip", lambda group, request: "1/w")(ok)
    answers = [earlier(RequestFactory().get("/")) for _ in range(2)]
    opened = open_reference(answers[-1][HEADER])
    assert not opened.is_exact
    assert {"search:*:ip:9/s", "search:*:ip:1/h"} <= {limit.name for limit in opened.limits}
    assert "that limit is not there any more" in explained(answers[-1][HEADER])


@pytest.mark.parametrize("has_rule", [True, False])
def test_a_block_is_found_with_its_override(has_rule: bool) -> None:
    """Whether a rule is there or not; and that it is gone."""
    if has_rule:
        RateLimitRule.objects.create(name="all", key="ip", limit=5, period=60, path="/")
    ends = timezone.now() + datetime.timedelta(hours=1)
    block = RateLimitOverride.objects.create(network="203.0.113.0/24", effect="block", ends=ends)
    reference = Client(REMOTE_ADDR="203.0.113.9").get("/plain")[HEADER]
    opened = open_reference(reference)
    assert (opened.is_block, opened.overrides, opened.identity) == (True, (block,), block.subject)
    assert [(limit.name, limit.state) for limit in opened.limits] == ([("all", None)] if has_rule else [])
    text = explained(reference)
    assert "a block refused at " in text
    assert f"override {block.pk} (203.0.113.0/24): block: every request is refused, until " in text
    block.delete()
    assert open_reference(reference).overrides == ()
    assert "there is no override about that subject any more" in explained(reference)


def test_after_a_change_of_the_secret_it_is_still_opened(settings: Any) -> None:
    """As long as the earlier one is a fallback; which is said, as its counts are."""
    reference = refused("/decorated")
    before, settings.SECRET_KEY = settings.SECRET_KEY, "another"
    with pytest.raises(BadReferenceError):
        open_reference(reference)
    settings.SECRET_KEY_FALLBACKS = [before]
    opened = open_reference(reference)
    assert opened.is_of_earlier_key
    assert only(opened)[0] == "search:*:ip:1/h"
    assert "sealed with an earlier secret" in explained(reference)


def test_what_is_no_reference_is_an_error_of_the_command() -> None:
    """With what is wrong with it."""
    reference = refused("/decorated")
    letters = [
        ("0" if letter != "0" else "1") if place in (0, 7, 20) else letter for place, letter in enumerate(reference)
    ]
    for text, problem in (
        ("hello", "a reference has 65 letters"),
        ("".join(letters), "mistyped|not sealed"),
        ("X" * 70, "a reference has 65 letters and digits, and this has 70"),
        ("", "this looks cut off: a reference has 65 letters and digits, and this has 0"),
    ):
        with pytest.raises(CommandError, match=f"^--reference: .*{problem}"):
            explained(text)


def test_where_redis_is_away_it_says_what_it_knows(settings: Any) -> None:
    """What refused, and when; and that the counts are not known."""
    reference = refused("/decorated")
    settings.CACHES = {"away": {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}}
    settings.RATELIMIT_USE_CACHE = "away"
    opened = open_reference(reference)
    # Other tests of this process may have declared a second call site of that group.
    assert {(limit.name, limit.state) for limit in opened.limits} == {("search:*:ip:1/h", None)}
    assert opened.error
    assert "The counts are not known" in explained(reference)


def test_another_process_opens_it(prefix: str, tmp_path: Path) -> None:
    """One that serves nobody, of the same site; it need not have refused anybody. Another site cannot."""
    databases = {"default": migrated(tmp_path / "db.sqlite3")}
    view = f"__import__('importlib').import_module('{__name__}')"
    line = f"{view}.refused('/decorated', REMOTE_ADDR='198.51.100.7')"
    given = {"ROOT_URLCONF": __name__}
    with Worker(prefix, databases, at=url(), **given) as serving, Worker(prefix, databases, **given) as desk:
        reference = serving(line)
        opened = desk(f"str({view}.only({view}.open_reference({reference!r}))[:2])")
        assert opened == "('search:*:ip:1/h', 'code')"
    with (
        Worker(prefix, databases, SECRET_KEY="theirs", **given) as stranger,
        pytest.raises(AssertionError, match="not sealed by this site"),
    ):
        stranger(f"str({view}.open_reference({reference!r}))")


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
def test_the_inspector_opens_it_and_resets_what_is_counted() -> None:
    """Rule and counts as they are now; who may act resets them, and the client is let in."""
    rule = RateLimitRule.objects.create(name="all", key="ip", limit=1, period=1, unit="h", path="/plain")
    reference = refused("/plain", REMOTE_ADDR="203.0.113.9")
    client = desk("view_ratelimitrule", "block_identity")
    text = page(client, reference.replace("-", " ").lower())
    assert '<h2 id="opened" class="ratelimit-verdict refused">Refused, ' in text
    assert f"ratelimitrule/{rule.pk}/change/" in text
    assert "1 per hour per address, on /plain" in text
    assert "1 / 1" in text
    assert "Refused; allowed again: in " in text
    assert Client(REMOTE_ADDR="203.0.113.9").get("/plain").status_code == 429
    response = client.post(f"{INSPECTOR}?{urlencode({'reference': reference})}", {"action": "reset"}, follow=True)
    text = response.content.decode()
    assert "Counts are reset: all." in text
    assert "0 / 1" in text
    assert Client(REMOTE_ADDR="203.0.113.9").get("/plain").status_code == 200
    change = RateLimitChange.objects.get(kind=RateLimitChange.Kind.IDENTITY)
    assert (change.name, change.after["digests"]) == ("all", [open_reference(reference).identity])
    for _ in range(2):
        response = client.post(f"{INSPECTOR}?{urlencode({'reference': reference})}", {"action": "reset"}, follow=True)
    assert "Nothing was reset: nothing is counted any more." in response.content.decode()


@pytest.mark.usefixtures("admin_site")
def test_who_may_only_look_is_offered_no_reset() -> None:
    """And cannot send it."""
    RateLimitRule.objects.create(name="all", key="ip", limit=1, period=1, unit="h", path="/plain")
    reference = refused("/plain")
    client = desk("view_ratelimitoverride")
    text = page(client, reference)
    assert "1 / 1" in text
    assert "Reset for this identity" not in text
    assert "ratelimitrule/" not in text
    response = client.post(f"{INSPECTOR}?{urlencode({'reference': reference})}", {"action": "reset"})
    assert response.status_code == 403


@pytest.mark.usefixtures("admin_site")
def test_the_inspector_says_what_is_wrong_with_a_reference() -> None:
    """Or that what refused is not there any more."""
    client = desk("view_ratelimitoverride")
    assert "This looks cut off: a reference has 65 letters and digits, and this has 5" in page(client, "ABCDE")
    assert "This field is required." in page(client, "")
    rule = RateLimitRule.objects.create(name="all", key="ip", limit=1, period=1, unit="h", path="/plain")
    reference = refused("/plain")
    rule.delete()
    assert "The limit is not known here" in page(client, reference)
    block = RateLimitOverride.objects.create(network="203.0.113.0/24", effect="block")
    reference = Client(REMOTE_ADDR="203.0.113.9").get("/plain")[HEADER]
    assert f"ratelimitoverride/{block.pk}/change/" in page(client, reference)
    block.delete()
    assert "That block is not there any more." in page(client, reference)


@pytest.mark.usefixtures("admin_site")
@pytest.mark.parametrize("is_block", [True, False])
def test_the_inspector_compares_who_it_was(is_block: bool) -> None:
    """Of whom one has in mind: who is counted as the refused one was, or met by the same block. No digest is shown."""
    RateLimitRule.objects.create(name="all", key="ip", limit=1, period=1, unit="h", path="/plain")
    if is_block:
        RateLimitOverride.objects.create(network="203.0.113.9", effect="block")
    reference = Client(REMOTE_ADDR="203.0.113.9").get("/plain")[HEADER] if is_block else refused(
        "/plain", REMOTE_ADDR="203.0.113.9"
    )  # fmt: skip
    client = desk("view_ratelimitrule")
    text = page(client, reference)
    assert "Who it was is not kept." in text
    assert f"In the log, look for: <code>{reference}</code>" in text
    assert open_reference(reference).identity[:8] not in text

    def compared(address: str, where: str = "/plain") -> str:
        response = client.get(INSPECTOR, {"reference": reference, "path": where, "address": address})
        return str(re.search(r'"ratelimit-who"><strong>(.*?)[:<]', response.content.decode())[1])

    assert compared("203.0.113.9") == "It was this client"
    assert compared("203.0.113.8") == "It was another client"
    if not is_block:
        assert compared("203.0.113.9", "/decorated") == "The request below cannot be compared"
