"""The key `device:NAME`: attacks on a login must not lock out the owner of an account."""

from __future__ import annotations

import base64
import json
import re
import time
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import alogin, authenticate, login, logout
from django.contrib.auth.models import User
from django.contrib.auth.signals import user_logged_in
from django.contrib.auth.views import LoginView
from django.core.signing import Signer
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import AsyncClient, Client
from django.urls import path
from django.utils.decorators import method_decorator
from rest_framework.response import Response
from rest_framework.views import APIView

from django_ratelimit_lua import UNSAFE, ratelimit
from django_ratelimit_lua.identity.device import COOKIE, MAX_AGE, SALT
from django_ratelimit_lua.identity.names import display_name
from tests.acceptance.project.test_recipes import DOCS, recipe
from tests.support.project import Project
from tests.urls import AUTHENTICATION, LIMITS, SESSIONS

pytestmark = pytest.mark.django_db(transaction=True)
N = 5
OWNER = "198.51.100.7"
FORM = """{% for error in form.non_field_errors %}{{ error }}{% endfor %}"""


by_name = ratelimit(key="device:username", rate=f"{N}/h", method=UNSAFE)


@method_decorator(by_name, name="dispatch")
class Login(LoginView):
    template_name = "login.html"


@ratelimit(key="device:login", rate=f"{N}/h", method=UNSAFE)
def by_address(request: HttpRequest) -> HttpResponse:
    """A login that finds accounts by user name or address, the address first."""
    name = request.POST["login"]
    account = User.objects.filter(email__iexact=name).order_by("pk").first()
    name = account.username if account else name
    user = authenticate(request, username=name, password=request.POST["password"])
    if user is None:
        return HttpResponse("wrong", status=403)
    login(request, user)
    return HttpResponse("in")


@by_name
async def asynchronous(request: HttpRequest) -> HttpResponse:
    body = json.loads(request.body)
    user = await User.objects.filter(username=body["username"]).afirst()
    if user is None or not await user.acheck_password(body["password"]):
        return JsonResponse({}, status=403)
    await alogin(request, user, "django.contrib.auth.backends.ModelBackend")
    return JsonResponse({})


class TokenLogin(APIView):
    """Like django-rest-knox: it sends the signal, without a login."""

    authentication_classes = ()

    @method_decorator(ratelimit(key="device:username", rate=f"{N}/h"))
    def post(self, request: Any) -> Response:
        user = authenticate(**request.data)
        if user is None:
            return Response(status=403)
        user_logged_in.send(sender=type(user), request=request, user=user)
        return Response({"token": "t"})


def leave(request: HttpRequest) -> HttpResponse:
    logout(request)
    return HttpResponse("out")


urlpatterns = [
    path("login/", Login.as_view()),
    path("address/", by_address),
    path("async/", asynchronous),
    path("token/", TokenLogin.as_view()),
    path("logout/", leave),
]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.LOGIN_REDIRECT_URL = "/"
    settings.SECRET_KEY = "first"
    settings.SECRET_KEY_FALLBACKS = []
    loaders = [("django.template.loaders.locmem.Loader", {"login.html": FORM})]
    engine = "django.template.backends.django.DjangoTemplates"
    settings.TEMPLATES = [{"BACKEND": engine, "OPTIONS": {"loaders": loaders}}]
    settings.MIDDLEWARE = [LIMITS, SESSIONS, AUTHENTICATION]


@pytest.fixture(autouse=True)
def accounts() -> None:
    User.objects.create_user("ada", "ada@example.org", "ada's")
    User.objects.create_user("bob", "bob@example.org", "bob's")


def attempt(
    name: str,
    password: str = "guess",
    cookie: str = "",
    address: str = OWNER,
    where: str = "/login/",
    field: str = "username",
) -> Any:
    """One attempt by a browser with this device cookie."""
    client = Client(REMOTE_ADDR=address)
    if cookie:
        client.cookies[COOKIE] = cookie
    return client.post(where, {field: name, "password": password})


def attempts(count: int, name: str, **how: Any) -> int:
    """Return the number of guesses that reach the view."""
    return sum(attempt(name, **how).status_code != 429 for _ in range(count))


def cookie_of(name: str, cookie: str = "", password: str = "", **how: Any) -> str:
    """The device cookie after a successful login."""
    response = attempt(name, password or f"{name}'s", cookie, **how)
    assert response.status_code in (200, 302)
    return str(response.cookies[COOKIE].value)


def entries(cookie: str) -> list[Any]:
    found: list[Any] = Signer(salt=SALT).unsign_object(cookie)
    return found


def signed(*entry: Any) -> str:
    return Signer(salt=SALT).sign_object(list(entry))


def test_a_thousand_addresses_get_n_guesses_and_the_owner_signs_in_at_once() -> None:
    """The owner's browser is not locked out by guesses from anywhere."""
    cookie = cookie_of("ada")
    addresses = [f"203.0.{number // 250}.{number % 250}" for number in range(1000)]
    reached = sum(attempts(1, "ada", address=address) for address in addresses)
    assert reached == N - 1  # The owner's first login, without a cookie, is one of them.
    assert attempt("ada", "ada's").status_code == 429
    assert attempt("ada", "ada's", cookie).status_code == 302
    assert attempt("bob", "bob's").status_code == 302  # Other accounts are not affected.


def test_other_spellings_share_the_guesses() -> None:
    """Case, spaces and width of letters make no new count."""
    spellings = ("ada", "ADA", " ada ", "\uff41\uff44\uff41", "Ada\u3000")
    assert sum(attempts(2, spelling) for spelling in spellings) == N


def test_a_cookie_of_one_account_gives_no_guesses_at_another() -> None:
    """It counts as no cookie."""
    cookie = cookie_of("bob")
    assert attempts(N + 3, "ada") == N
    assert attempts(3, "ada", cookie=cookie) == 0
    assert attempts(1, "ada", cookie=cookie.upper()) == 0


def test_replays_from_fifty_addresses_share_one_count() -> None:
    """A stolen cookie gives one count, wherever it is used."""
    cookie = cookie_of("ada")
    assert sum(attempts(2, "ada", cookie=cookie, address=f"203.0.113.{n}") for n in range(50)) == N


def test_an_altered_cookie_is_ignored() -> None:
    """Only a cookie that the site has signed is valid."""
    cookie = cookie_of("ada")
    assert attempts(N + 3, "ada") == N - 1
    payload, _, signature = cookie.rpartition(":")
    inside = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    inside[0][2] = "another device"
    forged = base64.urlsafe_b64encode(json.dumps(inside).encode()).decode().strip("=")
    foreign = Signer(key="another", salt=SALT).sign_object(inside)
    others = Signer(salt="another").sign_object(inside)
    texts = (cookie[:-1], f"{cookie}x", ":", "\u00e4", "x" * 9000)
    for altered in (*texts, f"{forged}:{signature}", foreign, others, signed([]), signed(1)):
        assert attempts(1, "ada", cookie=altered) == 0, altered
    assert attempts(1, "ada", cookie=cookie) == 1


def test_a_change_of_the_password_ends_all_cookies() -> None:
    """Earlier cookies are ignored."""
    cookie = cookie_of("ada")
    assert attempts(N + 3, "ada") == N - 1
    ada = User.objects.get(username="ada")
    ada.set_password("new")
    ada.save()
    assert attempts(1, "ada", cookie=cookie) == 0


def test_a_login_with_a_new_password_replaces_the_entry_of_the_account() -> None:
    """Entries of earlier passwords take no place, and the browser has a new id."""
    cookie = cookie_of("ada")
    ada = User.objects.get(username="ada")
    ada.set_password("new")
    ada.save()
    ((account, password, device, _then),) = entries(cookie)
    ((renewed, *others, _then),) = entries(cookie_of("ada", cookie, "new"))
    assert renewed == account
    assert not {password, device} & {*others}


def test_the_cookie_reveals_no_name_and_has_all_attributes() -> None:
    """It holds digests and random ids."""
    response = attempt("ada", "ada's")
    morsel = response.cookies[COOKIE]
    assert COOKIE.startswith("__Host-")
    assert (morsel["secure"], morsel["httponly"], morsel["samesite"]) == (True, True, "Lax")
    assert (morsel["path"], morsel["domain"], morsel["max-age"]) == ("/", "", MAX_AGE)
    assert MAX_AGE == 180 * 24 * 3600
    text = json.dumps(entries(morsel.value)) + morsel.value
    for word in ("ada", "example", User.objects.get(username="ada").password):
        assert word not in text
    again = cookie_of("ada")
    assert entries(again)[0][2] != entries(morsel.value)[0][2]  # Each browser has its own id.


def test_a_failed_login_sets_no_cookie() -> None:
    """Only a request that signs a user in gets the cookie."""
    assert COOKIE not in attempt("ada").cookies
    assert COOKIE not in Client().get("/login/").cookies


def test_a_success_renews_the_cookie_and_keeps_the_device() -> None:
    """An entry is valid for 180 days after the last login."""
    first = cookie_of("ada")
    ((*known, _then),) = entries(first)
    later = cookie_of("ada", signed((*known, time.time() - MAX_AGE + 100)))
    assert entries(later)[0][:3] == known
    assert entries(later)[0][3] > time.time() - 60
    expired = signed((*known, time.time() - MAX_AGE - 1))
    assert attempts(N, "ada") < N
    assert attempts(1, "ada", cookie=expired) == 0


def test_a_logout_keeps_the_cookie() -> None:
    """The session ends, and the browser is still known."""
    browser = Client(REMOTE_ADDR=OWNER)
    browser.post("/login/", {"username": "ada", "password": "ada's"}, secure=True)
    kept = browser.cookies[COOKIE].value
    browser.get("/logout/", secure=True)
    assert browser.cookies[COOKIE].value == kept
    assert "_auth_user_id" not in browser.session


def test_a_browser_keeps_the_last_five_accounts() -> None:
    """The size of the cookie is bounded."""
    cookie = ""
    names = [f"user{number}" for number in range(7)]
    for name in names:
        User.objects.create_user(name, password=f"{name}'s")
        cookie = cookie_of(name, cookie)
    assert len(entries(cookie)) == 5
    assert len(cookie) < 1000
    for name in names:
        assert attempts(N + 1, name) == N - 1
    reached = [attempts(1, name, cookie=cookie) for name in names]
    assert reached == [0, 0, 1, 1, 1, 1, 1]
    assert len({entry[2] for entry in entries(cookie)}) == 5


def test_a_rotated_secret_key_keeps_cookies(settings: Any) -> None:
    """`SECRET_KEY_FALLBACKS` are accepted, and a login signs with the new key."""
    cookie = cookie_of("ada")
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "second", ["first"]
    assert attempts(N + 3, "ada") == N
    assert attempts(1, "ada", cookie=cookie) == 1
    renewed = cookie_of("ada", cookie)
    settings.SECRET_KEY_FALLBACKS = []
    assert attempts(1, "ada", cookie=renewed) == 1
    assert attempts(1, "ada", cookie=cookie) == 0


HOW: dict[str, Any] = {"where": "/address/", "field": "login"}


def test_an_account_is_found_by_its_address_too() -> None:
    """A form may accept user names and addresses."""
    cookie = cookie_of("ada@example.org", password="ada's", **HOW)
    assert attempts(N + 3, "ada@example.org", **HOW) == N - 1
    assert attempts(1, "Ada@Example.org", cookie=cookie, **HOW) == 1
    assert attempts(N + 3, "ada", **HOW) == N
    assert attempts(1, "ada", cookie=cookie, **HOW) == 1


def test_a_known_browser_has_one_count_for_name_and_address() -> None:
    """Another name of the account gives a stolen cookie no further guesses."""
    cookie = cookie_of("ada")
    assert attempts(N, "ada", cookie=cookie, **HOW) == N
    assert attempts(1, "ada@example.org", cookie=cookie, **HOW) == 0


@pytest.mark.parametrize(
    ("username", "email"), [("bob@example.org", ""), ("mallory", "BOB@example.org")]
)
def test_an_account_named_as_the_address_of_another_gives_no_guesses_at_it(
    username: str, email: str
) -> None:
    """A name that could be one of two accounts has no devices."""
    User.objects.create_user(username, email, "mallory's")
    cookie = cookie_of(username, password="mallory's")
    assert attempts(N + 3, "bob@example.org", **HOW) == N
    assert attempts(1, "bob@example.org", cookie=cookie, **HOW) == 0


def test_an_account_that_differs_in_case_gives_no_guesses() -> None:
    """User names are compared as the user model does."""
    User.objects.create_user("ADA", password="ADA's")
    cookie = cookie_of("ADA")
    attempts(N, "ada")
    assert attempts(1, "ada", cookie=cookie) == 0
    assert attempts(1, "ADA", cookie=cookie) == 1


@pytest.mark.parametrize("name", ["ada\0", "\ud800", "a" * 5000, "\u0130" * 2000, "", "0", "1"])
def test_odd_names_do_not_lift_the_limit(name: str) -> None:
    """A name that the database rejects counts with all others."""
    cookie = cookie_of("bob")
    body = {"username": name, "password": "guess"}
    client = Client(REMOTE_ADDR=OWNER, raise_request_exception=False)  # A view may fail.
    client.cookies[COOKIE] = cookie
    codes = [client.post("/token/", body, "application/json").status_code for _ in range(N + 2)]
    assert codes[-2:] == [429, 429]


def test_asynchronous_logins_have_devices() -> None:
    """`alogin` in a coroutine view sets the cookie too."""

    def post(password: str, cookie: str = "") -> Any:
        client = AsyncClient()
        if cookie:
            client.cookies[COOKIE] = cookie
        body = {"username": "ada", "password": password}
        return async_to_sync(client.post)("/async/", body, "application/json")

    cookie = post("ada's").cookies[COOKIE].value
    assert [post("guess").status_code for _ in range(N)] == [403] * (N - 1) + [429]
    renewed = post("ada's", cookie)
    assert renewed.status_code == 200
    assert entries(renewed.cookies[COOKIE].value)[0][2] == entries(cookie)[0][2]


def test_a_login_by_token_sets_no_cookie() -> None:
    """The signal without a session is not a login by a browser."""
    body = {"username": "ada", "password": "ada's"}
    response = Client().post("/token/", body, "application/json")
    assert response.status_code == 200
    assert COOKIE not in response.cookies


def test_operators_see_the_account_and_the_device_masked(settings: Any) -> None:
    """A device is shown after its account."""
    identity = ("device", "username", "alice", "f81d4fae")
    assert display_name(identity) == [("device:username", "al… f8…")]
    settings.RATELIMIT_SHOW_IDENTITIES = "plain"
    assert display_name(identity) == [("device:username", "alice f81d4fae")]


def test_the_recipe_for_django_rest_framework(settings: Any) -> None:
    """The owner's browser logs in while others have used up the guesses."""
    urls = ModuleType("urls")
    view = recipe("how-to/login.rst", "SessionLogin")["SessionLogin"].as_view()
    urls.urlpatterns = [path("login/", view)]  # type: ignore[attr-defined]
    settings.ROOT_URLCONF = urls

    def post(password: str, cookie: str = "") -> Any:
        client = Client()
        client.cookies[COOKIE] = cookie
        body = {"username": "ada", "password": password}
        return client.post("/login/", body, "application/json")

    cookie = post("ada's").cookies[COOKIE].value
    assert [post("guess").status_code for _ in range(50)] == [403] * 49 + [429]
    assert post("ada's").status_code == 429
    assert post("ada's", cookie).status_code == 204
    forged = Client(enforce_csrf_checks=True).post("/login/", {}, "application/json")
    assert forged.status_code == 403
    assert b"CSRF" in forged.content


ALLAUTH = """
from django.test import Client
from django.contrib.auth.models import User
from django_ratelimit_lua.identity.device import COOKIE

User.objects.create_user("ada", "ada@example.org", "ada's")

def post(name, password, cookie=""):
    client = Client()
    client.cookies[COOKIE] = cookie
    return client.post("/accounts/login/", {"login": name, "password": password}, secure=True)

for name in ("ada", "ada@example.org"):
    cookie = post(name, "ada's").cookies[COOKIE].value
    print([post(name, "guess").status_code for _ in range(50)].count(200), end=" ")
    print(post(name, "ada's").status_code, post(name, "ada's", cookie).status_code)
"""
ALLAUTH_SETTINGS = """
INSTALLED_APPS += ["allauth", "allauth.account"]
MIDDLEWARE += ["allauth.account.middleware.AccountMiddleware"]
AUTHENTICATION_BACKENDS = ["allauth.account.auth_backends.AuthenticationBackend"]
ACCOUNT_LOGIN_METHODS = {"username", "email"}
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_RATE_LIMITS = False
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
"""


@pytest.mark.skipif(find_spec("allauth") is None, reason="NO ALLAUTH TEST: pip install it")
def test_the_recipe_for_allauth(tmp_path: Path) -> None:
    """The login page of allauth finds accounts by user name and by address."""
    text = (DOCS / "how-to" / "login.rst").read_text()
    (rules,) = re.findall(r"^   (by_account = .*)\n   (RATELIMIT_RULES.*)$", text, re.MULTILINE)
    project = Project(
        tmp_path,
        settings=ALLAUTH_SETTINGS + "\n".join(rules),
        urls="from django.urls import include, path\n"
        'urlpatterns = [path("accounts/", include("allauth.urls"))]\n',
    )
    project.manage("migrate")
    assert project.execute(ALLAUTH).splitlines() == ["49 429 302"] * 2
