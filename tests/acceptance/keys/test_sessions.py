"""`key="session"`: only a session that is stored and that the client has sent has its own count."""

from __future__ import annotations

import re
import secrets
import string
from importlib import import_module
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.sessions.backends import db
from django.contrib.sessions.models import Session
from django.core.management import call_command
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path

from django_ratelimit_lua import ratelimit
from django_ratelimit_lua.identity.session import session_key
from tests.urls import AUTHENTICATION, LIMITS, SESSIONS, aok, ok

BACKENDS = ["db", "cache", "cached_db", "file", "signed_cookies"]
pytestmark = pytest.mark.django_db(transaction=True)


def visits(request: HttpRequest) -> HttpResponse:
    """Write to the session, as a page that counts visits does."""
    request.session["visits"] = request.session.get("visits", 0) + 1
    return HttpResponse("ok")


async def avisits(request: HttpRequest) -> HttpResponse:
    await request.session.aset("visits", await request.session.aget("visits", 0) + 1)
    return HttpResponse("ok")


limited = ratelimit(group="limited", key="session", rate="2/h")
urlpatterns = [
    path("start", visits),
    path("plain", limited(ok)),
    path("aplain", limited(aok)),
    path("visits", limited(visits)),
    path("avisits", limited(avisits)),
    path("ruled/ok", ok),
    path("ruled/aok", aok),
]
RULES = [{"name": "ruled", "path": "/ruled/", "key": "session", "rate": "2/h"}]


@pytest.fixture(autouse=True)
def site(settings: Any, tmp_path: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = [SESSIONS, LIMITS]
    settings.RATELIMIT_RULES = RULES
    settings.RATELIMIT_TRUSTED_PROXIES = 1
    settings.SESSION_FILE_PATH = str(tmp_path)


@pytest.fixture(params=BACKENDS)
def backend(request: Any, settings: Any) -> str:
    settings.SESSION_ENGINE = f"django.contrib.sessions.backends.{request.param}"
    return str(request.param)


def get(url: str, cookie: str | None = None, address: str = "192.0.2.1") -> Any:
    """Send a request to a sync or an async view."""
    client: Any = AsyncClient() if "/a" in url else Client()
    if cookie is not None:
        client.cookies["sessionid"] = cookie
    ask = async_to_sync(client.get) if "/a" in url else client.get
    return ask(url, headers={"x-forwarded-for": address})


def started() -> str:
    """Return the cookie of a session that the site has created."""
    return str(get("/start").cookies["sessionid"].value)


def made_up() -> str:
    return "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(32))


ORDERS = [[SESSIONS, LIMITS], [LIMITS, SESSIONS]]
URLS = ["/plain", "/aplain", "/ruled/ok", "/ruled/aok"]


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("order", ORDERS, ids=["behind", "in front"])
def test_a_made_up_session_cookie_creates_no_count(
    url: str, order: list[str], backend: str, settings: Any
) -> None:
    """Requests with any cookie share the count of their address. No session is created."""
    settings.MIDDLEWARE = order
    cookies = [made_up(), None, made_up(), "", "x", "a:b:c", made_up() + "\u00e4"]
    answers = [get(url, cookie) for cookie in cookies]
    assert [answer.status_code for answer in answers] == [200] * 2 + [429] * 5
    assert Session.objects.count() == 0
    kept = [answer.cookies.get("sessionid") for answer in answers]
    assert not [cookie for cookie in kept if cookie is not None and cookie.value]
    assert get(url, made_up(), "192.0.2.2").status_code == 200


class SessionStore(db.SessionStore):
    """A store that rejects keys with an error, as PostgreSQL rejects a NUL."""

    def load(self) -> Any:
        self.check()
        return super().load()

    async def aload(self) -> Any:
        self.check()
        return await super().aload()

    def check(self) -> None:
        if not re.fullmatch("[!-~]{0,200}", self.session_key or ""):
            raise ValueError("A string literal cannot contain NUL (0x00) characters.")


@pytest.mark.parametrize("cookie", ["aaaaaaaaaaaa\0b", "a b\tcdefgh", "x" * 300], ids=ascii)
@pytest.mark.parametrize("url", ["/ruled/ok", "/ruled/aok"])
@pytest.mark.parametrize(
    "rule",
    [
        {"key": "session"},
        {"key": "user_or_ip"},
        {"key": "user"},
        {"key": "ip", "audience": "anonymous"},
        {"key": "ip", "tiers": [{"group": "pro", "rate": "100/h"}]},
    ],
    ids=str,
)
def test_a_session_cookie_that_the_store_rejects_lifts_no_limit(
    rule: dict[str, Any], url: str, cookie: str, settings: Any
) -> None:
    """The client of such a cookie is anonymous, and counts as its address."""
    settings.SESSION_ENGINE = __name__
    settings.MIDDLEWARE = [SESSIONS, AUTHENTICATION, LIMITS]
    settings.RATELIMIT_RULES = [{"name": "ruled", "path": "/ruled/", "rate": "2/h", **rule}]
    assert [get(url, cookie).status_code for _ in range(4)] == [200, 200, 429, 429]


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("order", ORDERS, ids=["behind", "in front"])
def test_an_existing_session_has_its_own_count(
    url: str, order: list[str], backend: str, settings: Any
) -> None:
    """Sessions in cookies have no lasting key, so they count as the address."""
    settings.MIDDLEWARE = order
    one, other = started(), started()
    found = [get(url, one, f"192.0.2.{number}").status_code for number in range(1, 4)]
    assert found == ([200, 200, 200] if backend == "signed_cookies" else [200, 200, 429])
    assert get(url, other, "192.0.2.1").status_code == 200
    assert get(url, None, "192.0.2.4").status_code == 200


@pytest.mark.parametrize("url", ["/visits", "/avisits"])
def test_a_client_with_a_new_session_per_request_is_limited(url: str, backend: str) -> None:
    """This holds for a client that keeps the cookies, and for one that drops them."""
    newest: Any = None
    codes = []
    for _ in range(6):
        answer = get(url, newest, "192.0.2.7")
        newest = answer.cookies["sessionid"].value if "sessionid" in answer.cookies else newest
        codes.append(answer.status_code)
    assert codes.count(200) <= 4  # Two as an address, before there was a session; two as a session.
    assert codes[-1] == 429
    assert [get(url, None, "192.0.2.8").status_code for _ in range(3)] == [200, 200, 429]


def test_a_flushed_session_does_not_identify_a_client(backend: str, rf: RequestFactory) -> None:
    """Nor does an empty one, or one that an earlier middleware has created."""
    store: Any = import_module(f"django.contrib.sessions.backends.{backend}").SessionStore
    old = store()
    old["visits"] = 1
    old.save()
    request = rf.get("/")
    first = (store(old.session_key), old.session_key)
    for session, cookie in (first, (old, None), (old, made_up())):
        request.session = session
        request.COOKIES = {} if cookie is None else {"sessionid": cookie}
        is_own = cookie == old.session_key and backend != "signed_cookies"
        assert session_key(request) == (old.session_key if is_own else None)
    request.COOKIES = {"sessionid": old.session_key}
    if backend != "signed_cookies":
        old.delete()
        request.session = store(old.session_key)
        assert session_key(request) is None
        request.session = store()
        request.session.create()
        request.COOKIES = {"sessionid": request.session.session_key}
        assert session_key(request) is None


def test_without_sessions_the_address_is_counted(settings: Any) -> None:
    """No request fails."""
    settings.MIDDLEWARE = [LIMITS]
    assert [get("/ruled/ok", made_up()).status_code for _ in range(3)] == [200, 200, 429]
    assert [get("/aplain", made_up()).status_code for _ in range(3)] == [200, 200, 429]


def test_the_session_is_loaded_once(settings: Any, django_assert_num_queries: Any) -> None:
    """It is loaded once, as the view would load it, and not at all without a cookie."""
    settings.SESSION_ENGINE = "django.contrib.sessions.backends.db"
    cookie = started()
    with django_assert_num_queries(1):
        get("/plain", cookie)
    with django_assert_num_queries(0):
        get("/plain")


def test_a_rule_by_session_is_explained_by_the_address(settings: Any, capsys: Any) -> None:
    """A described request has no session, so its address is used."""
    call_command("ratelimit", "rules", "explain", "--path", "/ruled/ok", "--ip", "192.0.2.1")
    assert "ruled (settings)" in capsys.readouterr().out
