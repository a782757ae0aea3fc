"""`usage(request)` and the page of a client's own limits."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

import axe_core_python
import pytest
import redis
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import AsyncClient, Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.utils.formats import date_format
from rest_framework.response import Response
from rest_framework.views import APIView

from django_ratelimit_lua import UNSAFE, LimitUsage, ausage, ratelimit, usage, usage_view
from django_ratelimit_lua.exceptions import StoreError
from django_ratelimit_lua.models import RateLimitOverride
from django_ratelimit_lua.testing import move_clock
from django_ratelimit_lua.throttling import ScopedRateThrottle, UserRateThrottle
from tests.support.redis_server import CLOSED, caches
from tests.urls import AUTHENTICATION, LIMITS, SESSIONS

AXE = Path(axe_core_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
pytestmark = pytest.mark.django_db(transaction=True)
ADDRESS = "203.0.113.9"


class User50(UserRateThrottle):
    rate = "50/h"


class Scoped(ScopedRateThrottle):
    THROTTLE_RATES: ClassVar = {"searches": "3/m"}


def rows(found: list[LimitUsage]) -> list[list[Any]]:
    return [[each.name, each.limit, each.used, each.remaining, each.unit] for each in found]


@method_decorator(
    [ratelimit("burst", "ip", "20/m"), ratelimit("day", "ip", "1000/d")], name="dispatch"
)
class Search(APIView):
    authentication_classes = ()
    throttle_classes = (User50, Scoped)
    throttle_scope = "searches"

    def get(self, request: Any) -> Response:
        return Response(rows(usage(request)))


@ratelimit("reports", "ip", "2/m")
@ratelimit("exports", "ip", "1", algorithm="concurrency")
def report(request: HttpRequest) -> HttpResponse:
    return JsonResponse(rows(usage(request)), safe=False)


@ratelimit("later", "ip", "2/m")
async def later(request: HttpRequest) -> HttpResponse:
    return JsonResponse(rows(await ausage(request)), safe=False)


@ratelimit("guesses", ("ip", "post:username"), "5/m", method=UNSAFE)
@ratelimit("names", "get:name", "5/m")
@ratelimit("everybody", "all", "100/m")
@ratelimit("numbers", lambda _, request: int(request.META["REMOTE_ADDR"][-1]), "11/m")
def login(request: HttpRequest, tenant: str = "") -> HttpResponse:
    return HttpResponse("form")


@ratelimit("own", ("ip", "kwarg:tenant", "path"), "5/m")
@ratelimit("page", ("kwarg:tenant", "path"), "5/m")
@ratelimit("strangers", ("kwarg:tenant", "user"), "5/m")
@ratelimit("query", ("ip", "get:name"), "5/m")
def combined(request: HttpRequest, tenant: str) -> HttpResponse:
    return HttpResponse("fine")


@ratelimit("arguments", lambda _, request: request.resolver_match.kwargs["tenant"], "5/m")
@ratelimit("body", lambda _, request: request.body or "nothing", "5/m")
def own(request: HttpRequest, tenant: str) -> HttpResponse:
    return HttpResponse("fine")


tenants = ratelimit("tenants", "kwarg:tenant", "7/m")(login)
urlpatterns = [
    path("search/", Search.as_view()),
    path("report/", report),
    path("later/", later),
    path("login/", login),
    path("t/<tenant>/", tenants),
    path("combined/<tenant>/", combined),
    path("own/<tenant>/", own),
    path("usage/", usage_view),
    path("usage/text/", usage_view, {"paths": "/search/"}),
    path("usage/own/", usage_view, {"paths": ["POST /own/acme/"]}),
    path("usage/combined/", usage_view, {"paths": ["/combined/acme/"]}),
    path("usage/report/", usage_view, {"paths": ["/report/"]}),
    path("usage/every/", usage_view, {"paths": ["/search/", "/report/", "POST /login/"]}),
    path("usage/login/", usage_view, {"paths": ["/login/", "POST /login/", "/t/acme/"]}),
]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.RATELIMIT_HEADERS = "ietf"
    settings.REST_FRAMEWORK = {}
    settings.MIDDLEWARE = [SESSIONS, AUTHENTICATION, LIMITS]
    settings.RATELIMIT_RULES = [
        {"name": "all pages", "path": "/", "key": "user_or_ip", "rate": "100/h"},
        {"name": "search", "path": "/search/", "key": "ip", "rate": "30/m", "message": "Slowly."},
    ]


def client(address: str = ADDRESS) -> Client:
    return Client(REMOTE_ADDR=address)


def decisions(direct: redis.Redis) -> int:
    """The calls of scripts so far."""
    return int(direct.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])


def header(response: Any) -> list[list[Any]]:
    """The name, remaining units and seconds of each limit in `RateLimit`."""
    items = re.findall(r'"([^"]+)";r=(\d+);t=(\d+)', response.headers["RateLimit"])
    return [[name, int(remaining), int(seconds)] for name, remaining, seconds in items]


@pytest.mark.usefixtures("quiet")
def test_six_limits_of_rules_decorators_and_throttles_are_one_round_trip(
    direct: redis.Redis,
) -> None:
    """The limits of rules, decorators and throttles are read in one call."""
    client().get("/search/")
    before = decisions(direct)
    answer = client().get("/search/").json()
    # The middleware, the decorators, the throttles, and usage.
    assert decisions(direct) - before == 4
    assert answer == [
        ["all pages", 100, 2, 98, "requests"],
        ["search", 30, 2, 28, "requests"],
        ["burst", 20, 2, 18, "requests"],
        ["day", 1000, 2, 998, "requests"],
        ["user", 50, 2, 48, "requests"],
        ["searches", 3, 2, 1, "requests"],
    ]


@pytest.mark.usefixtures("quiet")
def test_usage_equals_the_next_refusal(direct: redis.Redis) -> None:
    """All numbers are those of the headers of a refusal."""
    with move_clock() as clock:
        for _ in range(3):
            assert client().get("/search/").status_code == 200
            clock.advance(7)
        refused = client().get("/search/")
        assert refused.status_code == 429
        before = decisions(direct)
        shown = client().get("/usage/every/", headers={"Accept": "application/json"}).json()
        assert decisions(direct) - before == 3  # One for each path.
        limits = {each["name"]: each for each in shown["limits"]}
        assert len(header(refused)) == 6
        for name, remaining, seconds in header(refused):
            assert limits[name]["remaining"] == remaining
            assert -(-limits[name]["reset_after"] // 1) == seconds
        assert limits["searches"]["retry_after"] == float(refused.headers["Retry-After"])


def test_slots_are_a_unit_of_their_own_and_nothing_is_counted() -> None:
    """A slot that the request holds is used, and reading counts nothing."""
    for used in (1, 2):
        assert client().get("/report/").json() == [
            ["all pages", 100, used, 100 - used, "requests"],
            ["reports", 2, used, 2 - used, "requests"],
            ["exports", 1, 1, 0, "concurrent-requests"],
        ]


def test_a_coroutine_view_reads_the_same() -> None:
    """`ausage` returns what `usage` does."""
    answer = async_to_sync(AsyncClient().get)("/later/", REMOTE_ADDR=ADDRESS)
    assert answer.json() == [
        ["all pages", 100, 1, 99, "requests"],
        ["later", 2, 1, 1, "requests"],
    ]


def test_the_page_is_not_counted_even_if_rules_match_it() -> None:
    """Requests for the page count under no rule."""
    for _ in range(3):
        (shown,) = client().get("/usage/").json()["limits"]
        assert (shown["name"], shown["used"]) == ("all pages", 0)
    client().get("/report/")
    assert client().get("/usage/").json()["limits"][0]["used"] == 1
    assert client("198.51.100.7").get("/usage/").json()["limits"][0]["used"] == 0


def test_the_page_is_for_get_and_head_only() -> None:
    """Another method gets a 405, because the page changes nothing."""
    refused = Client().post("/usage/")
    assert (refused.status_code, refused["Allow"]) == (405, "GET, HEAD")
    assert Client().head("/usage/").status_code == 200


def test_a_text_instead_of_a_list_of_paths_is_an_error() -> None:
    """Its letters are no paths."""
    with pytest.raises(TypeError, match=r"paths is '/search/', a text; write a list"):
        Client().get("/usage/text/")


def test_only_the_limits_of_the_caller_are_shown() -> None:
    """Names in the query or body, parts of the URL and shared counts are left out."""
    victim = client("198.51.100.7")
    for _ in range(3):
        victim.post("/login/?name=ada", {"username": "ada"})
        victim.get("/t/acme/")
    page = "/usage/login/?name=ada&username=ada"
    curious = [
        client().get(page),
        client().generic("GET", page, json.dumps({"username": "ada"}), "application/json"),
        client().generic("GET", page, "username=ada", "application/x-www-form-urlencoded"),
    ]
    for answer in curious:
        limits = {each["name"]: each["used"] for each in answer.json()["limits"]}
        assert limits == {"all pages": 0, "numbers": 0}


def test_limits_that_combine_keys_are_shown_only_if_their_numbers_are_the_callers() -> None:
    """A field of a form is unknown here; a tenant's page is shared; an address with both is not."""
    client().get("/combined/acme/")
    client("198.51.100.7").get("/combined/acme/")
    limits = client().get("/usage/combined/").json()["limits"]
    assert [[each["name"], each["used"]] for each in limits] == [["all pages", 1], ["own", 1]]


def test_functions_of_the_project_see_the_route_and_no_body() -> None:
    """A key may read the arguments of the view. The body may name another client."""
    tenant = {"REMOTE_ADDR": "198.51.100.7", "content_type": "application/json"}
    Client().post("/own/acme/", "victim", **tenant)
    limits = client().generic("GET", "/usage/own/", "victim", "application/json").json()
    found = [(each["name"], each["used"]) for each in limits["limits"]]
    assert found == [("all pages", 0), ("arguments", 1), ("body", 0)]


def test_a_signed_in_user_sees_the_count_of_the_user() -> None:
    """The count of a user is the same from every address."""
    ada = client()
    ada.force_login(User.objects.create_user("ada"))
    ada.get("/report/")
    elsewhere = client("198.51.100.7")
    elsewhere.force_login(User.objects.get())
    assert elsewhere.get("/usage/").json()["limits"][0]["used"] == 1


def test_a_quota_of_a_month_is_shown_by_its_window(settings: Any) -> None:
    """A calendar window is shown with its first day and its end, in its time zone."""
    quota = {"name": "quota", "path": "/", "key": "ip", "rate": "1000/30d"}
    options = {"algorithm": "fixed_window", "align": "month", "time_zone": "Europe/Berlin"}
    settings.RATELIMIT_RULES = [quota | options | {"message": "Upgrade your plan."}]
    client().get("/report/")
    (shown,) = client().get("/usage/").json()["limits"]
    now = datetime.now(ZoneInfo("Europe/Berlin"))
    start, end = map(datetime.fromisoformat, shown["window"])
    assert start <= now < end
    assert (start.day, start.hour, end.day, end.hour) == (1, 0, 1, 0)
    assert (shown["used"], shown["remaining"]) == (1, 999)
    page = client().get("/usage/", headers={"Accept": "text/html"}).content.decode()
    words = f"1000 from {date_format(start)} to {date_format(end)} (Europe/Berlin)"
    assert f"{words}: 1 used, 999 left." in page
    assert "When nothing is left: Upgrade your plan." in page


def test_people_get_a_page_with_the_message_of_the_rule(settings: Any) -> None:
    """Browsers get a page without inline styles and scripts."""
    settings.RATELIMIT_RULES = [
        {"name": "hits", "path": "/", "key": "ip", "rate": "1/m", "message": "Try <later>."}
    ]
    client().get("/report/")
    answer = client().get("/usage/", headers={"Accept": "text/html"})
    page = answer.content.decode()
    assert answer.headers["Content-Type"].startswith("text/html")
    assert "no-store" in answer.headers["Cache-Control"]
    assert "1 per minute: 1 used, 0 left." in page
    assert re.search(r"Try again in \d+ seconds\.", page)
    assert "<p>Try &lt;later&gt;.</p>" in page
    assert " style=" not in page
    assert "<script" not in page


def test_a_blocked_client_sees_the_block_but_not_its_end() -> None:
    """A block that forbids is shown without its end."""
    block = {"effect": "block", "forbids": True, "message": "Write to us."}
    RateLimitOverride.objects.create(network=ADDRESS, **block)
    (shown,) = client().get("/usage/").json()["limits"]
    assert (shown["remaining"], shown["retry_after"]) == (0, None)
    assert shown["message"] == "Write to us."
    page = client().get("/usage/", headers={"Accept": "text/html"}).content.decode()
    assert "You are blocked." in page


def test_limits_in_shadow_mode_are_left_out(settings: Any) -> None:
    """They do not affect the client."""
    settings.RATELIMIT_RULES[0]["mode"] = "shadow"
    settings.RATELIMIT_RULES = [*settings.RATELIMIT_RULES]
    assert client().get("/usage/").json() == {"limits": []}
    page = client().get("/usage/", headers={"Accept": "text/html"})
    assert b"You have no limits here." in page.content


def test_without_redis_the_page_reports_that(settings: Any) -> None:
    """The status is 503, and `usage` raises `StoreError`."""
    settings.CACHES = caches(CLOSED)
    settings.RATELIMIT_ON_STORE_ERROR = "open"
    assert client().get("/usage/").status_code == 503
    page = client().get("/usage/", headers={"Accept": "text/html"})
    assert b"The limits cannot be read at the moment." in page.content
    with pytest.raises(StoreError):
        client().get("/report/")


def test_switched_off_there_are_no_limits(settings: Any) -> None:
    """With `RATELIMIT_ENABLE = False` the list is empty."""
    settings.RATELIMIT_ENABLE = False
    assert json.loads(client().get("/report/").content) == []


def test_bans_overrides_and_leases_are_included(settings: Any) -> None:
    """A banned client, one with another rate, and a limit with leases."""
    settings.RATELIMIT_NEVER_BAN = []
    settings.RATELIMIT_RULES = [
        {"name": "banned", "path": "/", "key": "ip", "rate": "2/m", "ban_after": 1, "ban_for": "1h"}
    ]
    for _ in range(4):
        refused = client().get("/report/")
    (shown,) = client().get("/usage/").json()["limits"]
    assert shown["remaining"] == 0
    assert abs(shown["retry_after"] - int(refused.headers["Retry-After"])) < 5
    settings.RATELIMIT_RULES = [
        {"name": "rated", "path": "/", "key": "ip", "rate": "2/m"},
        {"name": "leased", "path": "/", "key": "ip", "rate": "1000/s", "lease": 50}
        | {"algorithm": "token_bucket"},
    ]
    RateLimitOverride.objects.create(network=ADDRESS, rule="rated", effect="limit", rate="9/h")
    client().get("/report/")
    rated, leased = client().get("/usage/").json()["limits"]
    assert (rated["rate"], rated["limit"], rated["used"]) == ("9/h", 9, 1)
    assert leased["limit"] == 1000


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_real_browser_renders_the_page(theme: str, browser: Any, live_server: Any) -> None:
    """axe finds no problem on a phone in light and dark."""
    media = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
    metrics = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    client("127.0.0.1").get("/search/")
    browser.get(f"{live_server.url}/usage/every/")
    assert browser.find_element("tag name", "h1").text == "Your limits"
    assert "1000 per day: 1 used, 999 left." in browser.find_element("tag name", "dl").text
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    browser.execute_script(AXE)
    found = browser.execute_async_script("axe.run().then(arguments[0])")
    assert [problem["id"] for problem in found["violations"]] == []
