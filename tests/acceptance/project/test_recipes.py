"""Recipes of the documentation are run as written, against clients that try to avoid them."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.cache import caches
from django.http import HttpResponse
from django.test import Client, RequestFactory
from django.urls import path
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from rest_framework.views import APIView

from django_ratelimit_lua import LimitError, RateLimiter, ratelimit
from django_ratelimit_lua.limits.call import MAX_COST
from django_ratelimit_lua.middleware import RateLimitMiddleware
from django_ratelimit_lua.rules.provider import reset_rules
from django_ratelimit_lua.testing import Server, override_ratelimits
from django_ratelimit_lua.throttling import AnonRateThrottle
from docs.conftest import celery  # noqa: F401
from tests.examples import examples
from tests.urls import AUTHENTICATION, SESSIONS

DOCS = Path(__file__).parents[3] / "docs"


def recipe(page: str, name: str, without: str = "") -> dict[str, Any]:
    """Run the code block of a page that defines the name, and return its definitions. Text that it
    is to be run `without` has to occur there.
    """
    text = (DOCS / page).read_text()
    assert without in text
    text = text.replace(without, "")
    blocks = re.findall(r"^\.\. code-block:: python\n\n((?:   .*\n|\n)+)", text, re.MULTILINE)
    definition = re.compile(rf"^   (def|class) {name}\b", re.MULTILINE)
    (block,) = (block for block in blocks if definition.search(block))
    names: dict[str, Any] = {"__name__": "recipe"}
    # Blocks use the imports of earlier ones.
    for line in re.findall(r"^   ((?:from|import) .*)", text, re.MULTILINE):
        exec(line, names)
    exec(compile(textwrap.dedent(block), page, "exec"), names)
    return names


def settings_of(page: str) -> dict[str, Any]:
    """Run the code block of a page that begins with `# settings.py`, and return its names."""
    (block,) = re.findall(
        r"^   # settings\.py\n((?:   .*\n|\n)+)", (DOCS / page).read_text(), re.MULTILINE
    )
    names: dict[str, Any] = {}
    exec(textwrap.dedent(block), names)
    return names


def serve_login(settings: Any, without: str = "") -> None:
    """Serve the login that counts by outcome at /login/. It redirects users that are signed in."""
    templates = {"registration/login.html": "{{ form }}"}
    options = {"loaders": [("django.template.loaders.locmem.Loader", templates)]}
    engine = "django.template.backends.django.DjangoTemplates"
    settings.TEMPLATES = [{"BACKEND": engine, "OPTIONS": options}]
    settings.MIDDLEWARE = [SESSIONS, AUTHENTICATION]
    settings.LOGIN_REDIRECT_URL = "/"
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    names = recipe("how-to/count-by-outcome.rst", "Login", without)
    login = names["Login"].as_view()
    urls = ModuleType("urls")
    # With the receiver of the signal, to which the signal itself has only a weak reference.
    vars(urls).update(names, urlpatterns=[path("login/", login)])
    settings.ROOT_URLCONF = urls


@pytest.fixture
def login(settings: Any, db: None) -> None:
    serve_login(settings)


def log_in(client: Client, name: str, password: str = "guess") -> int:
    return client.post("/login/", {"username": name, "password": password}).status_code


@pytest.mark.usefixtures("login")
def test_only_a_login_by_this_request_clears_the_failures() -> None:
    """An attacker signs in with an account of their own, and sends the victim's name with that
    session after every four guesses. The answer is a redirect, and no more than five guesses are
    made. A login of the victim clears the failures.
    """
    User.objects.create_user("mallory", password="lovelace")
    User.objects.create_user("victim", password="lovelace")
    attacker = Client()
    attacker.force_login(User.objects.get(username="mallory"))
    assert log_in(attacker, "nobody") == 302
    guesses = 0
    for _ in range(8):
        for _ in range(4):
            guesses += log_in(Client(), "victim") == 200
        log_in(attacker, "victim")
    assert 0 < guesses <= 5
    assert log_in(Client(), "victim", "lovelace") == 429


@pytest.mark.usefixtures("login")
def test_a_login_clears_the_failures_of_its_address_and_name() -> None:
    """Four failures, a login, and five more failures are allowed; the next attempt is refused."""
    User.objects.create_user("ada", password="lovelace")
    assert [log_in(Client(), "ada") for _ in range(4)] == [200] * 4
    assert log_in(Client(), "ada", "lovelace") == 302
    assert [log_in(Client(), "ada") for _ in range(6)] == [200] * 5 + [429]
    assert log_in(Client(REMOTE_ADDR="192.0.2.1"), "ada", "lovelace") == 302


@pytest.mark.parametrize("page", ["how-to/count-by-outcome.rst", "how-to/login.rst"])
@pytest.mark.parametrize("method", ["get", "head", "options"])
@pytest.mark.django_db
def test_viewing_a_login_form_locks_no_client_out(page: str, method: str, settings: Any) -> None:
    """Sixty clients view it, and a login afterwards is allowed."""
    login = recipe(page, "Login")["Login"].as_view()
    requests = RequestFactory()

    def status(method: str, address: str, **given: str) -> int:
        request = getattr(requests, method)("/", given, REMOTE_ADDR=address)
        request._dont_enforce_csrf_checks = True
        request.user = AnonymousUser()
        return int(login(request).status_code)

    for i in range(60):
        assert status(method, "192.0.2.1") == 200
        assert status(method, f"198.51.100.{i}") == 200
    assert status("get", "203.0.113.1") == 200
    assert status("post", "203.0.113.1", username="grace", password="guess") == 200
    assert status("post", "192.0.2.1", username="ada", password="guess") == 200


@pytest.mark.parametrize(("without", "allowed"), [("", 30), (", reset_if=succeeded", 5)])
@pytest.mark.django_db
def test_similar_user_names_allow_no_more_guesses_than_the_address(
    without: str, allowed: int, settings: Any
) -> None:
    """A login as ADA resets the failures for ada, but no other limit."""
    serve_login(settings, without)
    User.objects.create_user("ada", password="other")
    User.objects.create_user("ADA", password="lovelace")
    guesses = 0
    for _ in range(12):
        guesses += sum(log_in(Client(), "ada") == 200 for _ in range(4))
        log_in(Client(), "ADA", "lovelace")
    assert guesses == allowed


def test_a_cleared_cache_forgets_counts_and_bans_in_its_database_only(settings: Any) -> None:
    """An alias for another database keeps its limits."""
    limiter = RateLimiter("cleared", "1/h", ban_after=1, ban_for="1h")

    def hits() -> list[bool]:
        reset_rules()  # Otherwise a refusal is repeated from memory for up to a second.
        return [limiter.hit("ada").allowed for _ in range(3)]

    with Server() as server:
        url = f"redis://127.0.0.1:{server.port}"
        cache = {"BACKEND": "django_redis.cache.RedisCache"}
        settings.CACHES = {
            "default": {**cache, "LOCATION": f"{url}/0"},
            "limits": {**cache, "LOCATION": f"{url}/1"},
        }
        assert hits() == [True, False, False]
        caches["default"].clear()
        assert hits() == [True, False, False]
        settings.RATELIMIT_USE_CACHE = "limits"
        assert hits() == [True, False, False]
        caches["default"].clear()
        assert hits() == [False, False, False]


def test_login_rules_allow_viewing_the_form(settings: Any) -> None:
    """The rules of the page on logins: sixty clients view the form, then one logs in."""
    text = (DOCS / "how-to" / "login.rst").read_text()
    (block,) = re.findall(r"^   (RATELIMIT_RULES = \[\n(?:   .*\n)+?   \]\n)", text, re.MULTILINE)
    names: dict[str, Any] = {}
    exec(textwrap.dedent("   " + block), names)
    rules = [rule for rule in names["RATELIMIT_RULES"] if rule["name"].startswith("login")]
    assert len(rules) == 3
    settings.RATELIMIT_RULES = [
        {name: value for name, value in rule.items() if name != "route"} | {"path": "/login/"}
        for rule in rules
    ]
    site = RateLimitMiddleware(lambda request: HttpResponse("ok"))
    requests = RequestFactory()
    assert {site(requests.get("/login/")).status_code for _ in range(60)} == {200}
    guesses = [site(requests.post("/login/", {"username": "ada"})).status_code for _ in range(6)]
    assert guesses == [200] * 5 + [429]


NUMBERS = st.integers() | st.integers(10**39, 10**41) | st.floats()
ROWS = st.text(max_size=20) | NUMBERS.map(str)


def test_the_cost_of_rows_is_bounded_whatever_a_client_sends() -> None:
    """The cost is from 1 to the size of the bucket, and no value causes an error."""
    rows = recipe("how-to/api-by-plan.rst", "export")["rows"]

    def cost(text: Any) -> Any:
        return rows("", RequestFactory().get("/", {"rows": text}))

    @hypothesis_settings(max_examples=examples(300))
    @given(ROWS)
    def bounded(text: str) -> None:
        assert type(cost(text)) is int
        assert 1 <= cost(text) <= 50

    for text in ("-100", "-200", "abc", "", "9" * 40, "9" * 5000, "\0", "1e9", "\u0663\u0663"):
        assert 1 <= cost(text) <= 50
    bounded()
    assert list(map(cost, (0, 99, 100, 250, 4900))) == [1, 1, 2, 3, 50]
    assert rows("", RequestFactory().get("/")) == 1


@pytest.mark.parametrize(
    "cost", [-1, -(10**40), 0.5, 1.0, "1", None, True, MAX_COST + 1, [], float("nan")]
)
def test_an_invalid_cost_is_a_developers_error_and_serves_no_request(cost: Any) -> None:
    """The cost of a callable or of a throttle view is checked before any request is served, and the
    message names the valid values.
    """
    served: list[Any] = []
    view = ratelimit(key="ip", rate="5/m", cost=lambda group, request: cost)(served.append)
    with pytest.raises(LimitError, match="must be a whole number from 0"):
        view(RequestFactory().get("/"))

    class Costly(APIView):
        throttle_classes = (type("Throttle", (AnonRateThrottle,), {"rate": "5/m"}),)
        throttle_cost = cost

        def get(self, request: Any) -> None:
            served.append(request)

    with pytest.raises(LimitError, match=r"throttle_cost of Costly is .*: must be a whole number"):
        Costly.as_view()(RequestFactory().get("/"))
    assert served == []


def test_a_host_has_one_count_in_every_spelling() -> None:
    """Capitals, a port and a final dot do not change the count."""
    read_host = recipe("how-to/tenants.rst", "read_host")["read_host"]
    spellings = {
        "site.example": ["site.example", "Site.EXAMPLE", "site.example:8000", "SITE.example:1"],
        "[::1]": ["[::1]:8000"],
        "other.example": ["other.example"],
    }
    spellings["site.example"] += ["site.example.", "site.example.:80"]
    for host, written in spellings.items():
        requests = [RequestFactory().get("/", HTTP_HOST=each) for each in written]
        assert {read_host(request) for request in requests} == {host}


def test_text_from_a_callable_is_case_sensitive() -> None:
    """The text is used as it is, as the page on keys states."""
    limit = ratelimit(key=lambda group, request: request.GET["k"], rate="1/m")
    view = limit(lambda request: HttpResponse("ok"))
    found = [view(RequestFactory().get("/", {"k": k})).status_code for k in ("a", "A", " a", "a")]
    assert found == [200, 200, 200, 429]


def test_a_plan_selects_the_limit_of_a_user() -> None:
    """Free, pro and business users have the rate of their plan."""
    names = recipe("how-to/api-by-plan.rst", "read_plan")
    rules = settings_of("how-to/api-by-plan.rst")["RATELIMIT_RULES"]

    def remaining(plan: str) -> int:
        request: Any = RequestFactory().get("/api/")
        user = {"pk": plan, "is_authenticated": True, "is_active": True, "is_staff": False}
        request.user = SimpleNamespace(**user, profile=SimpleNamespace(plan=plan))
        RateLimitMiddleware(lambda request: HttpResponse("ok"))(request)
        return int(request.ratelimit.remaining)

    with override_ratelimits(rules=rules, RATELIMIT_KEYS={"plan": names["plan"]}):
        assert [remaining(plan) for plan in ("free", "pro", "business")] == [59, 999, 4999]


def test_a_user_does_not_use_up_the_limit_of_their_tenant() -> None:
    """The second rule refuses a user at 300 requests."""
    names = recipe("how-to/tenants.rst", "tenant")
    site = RateLimitMiddleware(lambda request: HttpResponse("ok"))

    def requests_that_pass(slug: str | None, number: int) -> int:
        statuses = []
        for _ in range(number):
            request: Any = RequestFactory().get("/")
            request.tenant = slug and SimpleNamespace(slug=slug)
            request.user = AnonymousUser()
            statuses.append(site(request).status_code)
        return statuses.count(200)

    keys = {"tenant": names["tenant"]}
    with override_ratelimits(rules=names["RATELIMIT_RULES"], RATELIMIT_KEYS=keys):
        assert [requests_that_pass(slug, 310) for slug in ("acme", None)] == [300, 300]


@pytest.mark.usefixtures("celery")
def test_a_task_beyond_the_limit_is_retried_when_a_unit_is_free() -> None:
    """The countdown of the retry is at most the period."""
    send_mail = recipe("how-to/celery.rst", "send_mail")["send_mail"]

    class Task:
        def retry(self, countdown: float) -> Exception:
            return RuntimeError(countdown)

    assert [send_mail(Task(), "ada@example.org") for _ in range(100)] == [None] * 100
    with pytest.raises(RuntimeError) as raised:
        send_mail(Task(), "ada@example.org")
    assert 0 < raised.value.args[0] <= 60


@pytest.mark.usefixtures("celery")
def test_tasks_of_a_leaky_bucket_start_one_after_another() -> None:
    """Five tasks are a quarter of a second apart."""
    names = recipe("how-to/celery.rst", "queue_webhook")
    turns: list[float] = []
    names["deliver"].apply_async = lambda args, countdown: turns.append(countdown)
    assert all(names["queue_webhook"]("https://receiver.example/") for _ in range(5))
    assert turns[0] == 0
    assert turns == sorted(turns)
    assert 0.5 < turns[4] <= 1
