"""`manage.py check`, and errors for invalid settings."""

from __future__ import annotations

import contextlib
import inspect
import random
import re
from pathlib import Path
from typing import Any, ClassVar

import pytest
from django.contrib.auth.decorators import login_required
from django.contrib.auth.mixins import LoginRequiredMixin
from django.core.cache import caches
from django.core.checks import run_checks
from django.core.checks.registry import registry
from django.core.exceptions import ImproperlyConfigured
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.decorators import api_view, throttle_classes

from django_ratelimit_lua import UNSAFE, checks, ratelimit
from django_ratelimit_lua.checks import Problem, check_cache, check_paths, check_settings
from django_ratelimit_lua.conf import SETTINGS, conf
from django_ratelimit_lua.extension import SETTINGS_OF_ANNEXES
from django_ratelimit_lua.limits.rate import LimitError, Rate
from django_ratelimit_lua.models import RateLimitRule
from django_ratelimit_lua.store import get_store
from django_ratelimit_lua.throttling import ScopedRateThrottle
from django_ratelimit_lua.views.call_sites import CallSite, known_call_sites
from tests.examples import examples
from tests.urls import AUTHENTICATION, LIMITS, SESSIONS

REDIS = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}


def found() -> list[tuple[str, str]]:
    """Return the ids and texts of all messages, which end with one full stop."""
    everything = run_checks(tags=["caches"])
    for text in [text for each in everything for text in (each.msg, each.hint)]:
        assert re.search(r"[^.][.?]$", text), text
        assert ".." not in text
    return [(each.id.removeprefix("django_ratelimit_lua."), each.msg) for each in everything]


def messages(identifier: str, tag: str, **options: Any) -> list[Any]:
    """Return the messages with this id of the checks with this tag."""
    name = f"django_ratelimit_lua.{identifier}"
    return [message for message in run_checks(tags=[tag], **options) if message.id == name]


def urls(*patterns: Any) -> Any:
    """Return a URLconf with these patterns."""
    return type("Urls", (), {"urlpatterns": patterns})


pytestmark = pytest.mark.usefixtures("no_others")


def test_a_valid_project_gets_no_messages() -> None:
    """The settings of the tests are valid and get no message."""
    assert found() == []


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("CACHE_PREFIX", "a{b}", "without braces"),
        ("ALGORITHM", "lucky", "choose one of: token_bucket"),
        ("TIMEOUT", 0, "above 0"),
        ("HISTORY_DAYS", 0, "above 0"),
        ("DENY_CACHE_SECONDS", "1", "from 0"),
        ("TIMEOUT", "1", "above 0"),
        ("ON_STORE_ERROR", "maybe", "must be one of: open, closed, local"),
        ("IP_META_KEY", 7, "must be a callable"),
        ("IP_META_KEY", "nowhere.address", "cannot be imported"),
        ("IP_META_KEY", "X-Real-IP", "such as 'HTTP_X_REAL_IP'"),
        ("PROXY_HEADER", "X-Real-IP", "X-Forwarded-For"),
        ("IPV4_MASK", 33, "from 0 to 32"),
        ("IPV6_MASK", True, "from 0 to 128"),
        ("EXCEPTION_CLASS", "nowhere.Error", "cannot be imported"),
        ("VIEW", "os.sep", "not callable"),
        ("VIEW", 7, "must be a callable"),
    ],
)
def test_an_invalid_setting_is_an_error_that_shows_a_valid_value(
    name: str, value: Any, right: str, settings: Any
) -> None:
    """`manage.py check` reports the setting with a valid value, and its use raises an error."""
    setattr(settings, f"RATELIMIT_{name}", value)
    ((identifier, message),) = found()
    assert identifier == "E001"
    assert right in message
    assert f"RATELIMIT_{name}" in message
    with pytest.raises(ImproperlyConfigured, match=f"RATELIMIT_{name}"):
        getattr(conf, name)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("TIMEOUTS", "Did you mean RATELIMIT_TIMEOUT?"),
        ("TRUSTED_PROXY", "Did you mean RATELIMIT_TRUSTED_PROXIES?"),
        ("FROBNICATE", "Remove it or correct its name. Known settings: RATELIMIT_ALGORITHM, "),
    ],
)
def test_a_misspelt_setting_is_a_warning(name: str, hint: str, settings: Any) -> None:
    """The hint suggests the most similar setting, or lists all settings if none is similar."""
    setattr(settings, f"RATELIMIT_{name}", 1)
    (warning,) = run_checks(tags=["caches"])
    assert warning.id == "django_ratelimit_lua.W025"
    assert warning.msg == f"RATELIMIT_{name} is not a setting of django_ratelimit_lua."
    assert str(warning.hint).startswith(hint)
    assert str(warning.hint) == hint or hint.endswith(" ")


class Router:
    """Sends the models of some apps to a database of their own."""

    def __init__(self, *labels: str) -> None:
        self.labels = labels

    def db_for_write(self, model: type[Model], **hints: object) -> str | None:
        return "limits" if model._meta.app_label in self.labels else None


def test_rules_and_users_in_different_databases_are_an_error(settings: Any) -> None:
    """Overrides refer to users. In one database, whatever its alias is, both work."""
    settings.DATABASE_ROUTERS = [Router("django_ratelimit_lua")]
    (message,) = run_checks(tags=["caches"])
    assert message.id == "django_ratelimit_lua.E039"
    assert message.msg == (
        "Tables that belong together are in different databases: auth.User in 'default'; "
        "django_ratelimit_lua in 'limits'."
    )
    assert "DATABASE_ROUTERS" in str(message.hint)
    settings.DATABASE_ROUTERS = [Router("auth")]
    assert [identifier for identifier, _text in found()] == ["E039"]
    settings.DATABASE_ROUTERS = [Router("django_ratelimit_lua", "auth")]
    assert found() == []


def test_a_project_without_its_user_model_is_checked(settings: Any) -> None:
    """Django's own check reports the missing app."""
    settings.AUTH_USER_MODEL = "absent.User"
    assert found() == []


@pytest.mark.parametrize("text", ["An error", "An error.", "An error.."])
def test_a_message_has_one_full_stop(text: str) -> None:
    """Texts of other packages, which a message quotes, may or may not end with one."""
    assert Problem("W001", "Correct {it}.").message(text, it="it").msg == "An error."


@pytest.mark.parametrize(("name", "annex"), sorted(SETTINGS_OF_ANNEXES.items()))
def test_a_setting_of_a_missing_app_names_the_line_to_add(
    name: str, annex: str, settings: Any
) -> None:
    """The hint names the app. The same name without the prefix is a setting of the project."""
    setattr(settings, f"RATELIMIT_{name}", "x" * 20)
    setattr(settings, name, "x" * 20)
    (warning,) = [found for found in check_settings() if found.id != "django_ratelimit_lua.E001"]
    assert warning.id == "django_ratelimit_lua.W030"
    assert f"contrib.{annex}" in warning.hint


def test_a_missing_cache_alias_is_an_error(settings: Any) -> None:
    """`manage.py check` reports the alias, and its use raises an error."""
    settings.RATELIMIT_USE_CACHE = "other"
    ((identifier, message),) = found()
    assert (identifier, "no alias 'other'" in message) == ("E002", True)
    with pytest.raises(ImproperlyConfigured, match="RATELIMIT_USE_CACHE"):
        get_store()


def test_a_dotted_path_that_leads_nowhere_is_an_error() -> None:
    """`manage.py check` reports the path before a request uses it."""
    ratelimit(key="nowhere.key", rate="os.sep", cost=f"{__name__}.found")
    texts = [message.msg for message in messages("E003", "caches")]
    assert any(text.startswith("Key 'nowhere.key' cannot be imported") for text in texts)
    assert "Rate 'os.sep' is not callable." in texts


UNSET = (
    "is not set. All clients behind a proxy share a count, and private addresses are never banned."
)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, UNSET),
        ({"USE_X_FORWARDED_HOST": True}, "USE_X_FORWARDED_HOST suggests that there is a proxy."),
        ({"RATELIMIT_TRUSTED_PROXIES": 0}, None),
        ({"RATELIMIT_TRUSTED_PROXIES": ["10.0.0.0/8"]}, None),
        ({"RATELIMIT_IP_META_KEY": "HTTP_X_REAL_IP"}, None),
    ],
)
def test_a_deployment_check_asks_for_the_proxy_setting(
    given: dict[str, Any], said: str | None, settings: Any
) -> None:
    """0 is a valid setting. The plain `check` does not warn."""
    for name, value in given.items():
        setattr(settings, name, value)
    warnings = messages("W008", "caches", include_deployment_checks=True)
    assert len(warnings) == (said is not None)
    assert said is None or warnings[0].msg.endswith(said)
    assert messages("W008", "caches") == []


def test_a_key_function_with_other_arguments_is_an_error_at_import() -> None:
    """A path to such a function is an error of the check."""
    for function in (len, lambda request: "ada", lambda group, request, user: "ada"):
        with pytest.raises(LimitError, match=r"Key .* must accept \(group, request\)"):
            ratelimit(key=function, rate="5/m")
    ratelimit(key=lambda *arguments: "ada", rate="5/m")
    ratelimit(key="os.path.basename", rate="5/m")
    texts = [message.msg for message in messages("E003", "caches")]
    assert "Key 'os.path.basename' must accept (group, request)." in texts


def test_the_hint_about_a_bad_rule_names_a_page_of_the_documentation(settings: Any) -> None:
    """The page is in the reference, under this title."""
    settings.RATELIMIT_RULES = [{"name": "x", "rate": "5/moon"}]
    (error,) = run_checks(tags=["caches"])
    assert error.id == "django_ratelimit_lua.E004"
    assert "The page Rules in the reference" in error.hint
    page = Path(__file__).parents[2] / "docs" / "reference" / "rules.rst"
    assert page.read_text().startswith("Rules\n=====")


def test_every_check_id_is_used_once_and_every_message_has_a_hint() -> None:
    """No warning has the number of an error. The documentation names existing ids."""
    problems = [value for value in vars(checks).values() if isinstance(value, checks.Problem)]
    assert 14 < len(problems) == len({problem.id[1:] for problem in problems})
    root = Path(__file__).parents[2]
    pages = "".join(path.read_text() for path in root.glob("docs/**/*.rst"))
    # Those of optional apps, too.
    sources = "".join(path.read_text() for path in root.glob("django_ratelimit_lua/**/checks.py"))
    named = {*re.findall(r"`([EWI]\d{3})`", pages)}
    assert named <= {*re.findall(r"\b[EWI]\d{3}\b", sources)}
    assert all(problem.hint for problem in problems)
    # Each message is made by its row.
    assert not re.search(r"\b(Error|Warning|Info)\(", inspect.getsource(checks))


def anybody(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


by_user = ratelimit(key="user", rate="5/m")


@method_decorator(by_user, name="dispatch")
class Dispatched(LoginRequiredMixin, View):
    pass


class Gated(LoginRequiredMixin, View):
    @method_decorator(by_user)
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")


class Open(View):
    @method_decorator(by_user)
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")


@pytest.mark.parametrize(
    ("view", "is_said"),
    [
        (by_user(anybody), True),
        (by_user(login_required(anybody)), True),
        (login_required(by_user(anybody)), False),
        (Dispatched.as_view(), True),
        (Gated.as_view(), False),
        (Open.as_view(), True),
        (by_user(Open.as_view()), True),
        (login_required(Dispatched.as_view()), False),
        (ratelimit(key=("user", "path"), rate="5/m")(anybody), True),
        (ratelimit(key=("user", "ip"), rate="5/m")(anybody), False),
        (ratelimit(key=("user", lambda group, request: "x"), rate="5/m")(anybody), False),
        (ratelimit(key="user_or_ip", rate="5/m")(anybody), False),
    ],
)
def test_a_view_that_counts_anonymous_clients_as_one_is_a_warning(
    view: Any, is_said: bool, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no warning if a login is required before the limit is decided."""
    settings.ROOT_URLCONF = urls(path("deep/", include([path("view", view)])))
    warnings = messages("W010", "urls")
    assert len(warnings) == is_said
    assert all("'user_or_ip'" in str(message.hint) for message in warnings)
    settings.MIDDLEWARE = ["django.contrib.auth.middleware.LoginRequiredMiddleware"]
    assert messages("W010", "urls") == []
    monkeypatch.setattr(view, "login_required", False, raising=False)
    assert len(messages("W010", "urls")) == is_said


def test_a_throttle_scope_without_a_rate_is_a_warning(settings: Any) -> None:
    """It names the view and the scopes that have a rate, which a request would name too late."""

    class Scoped(ScopedRateThrottle):
        THROTTLE_RATES: ClassVar = {"uploads": "5/m"}

    @api_view()
    @throttle_classes([Scoped])
    def export(request: Any) -> None: ...

    export.cls.throttle_scope = "uploads"
    settings.ROOT_URLCONF = urls(path("export", export))
    assert messages("W043", "urls") == []
    export.cls.throttle_scope = "exports"
    (message,) = messages("W043", "urls")
    assert "export: " in message.msg
    assert "'exports' scope; DEFAULT_THROTTLE_RATES has: uploads" in message.msg


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"key": "user"}, "W010"),
        ({"key": "user", "audience": "anonymous"}, "W010"),
        ({"key": "user", "audience": ["staff", "anonymous"]}, "W010"),
        ({"key": "user", "audience": "authenticated"}, ""),
        ({"key": "user", "audience": "group:pro"}, ""),
        ({"key": "user", "mode": "off"}, ""),
        ({"key": ["user", "route"]}, "W010"),
        ({"key": ["user", "header:x"]}, ""),
        ({"key": "user_or_ip"}, ""),
        ({"key": "post:username"}, "W037"),
        ({"key": "post:username", "method": ["GET", "POST"]}, "W037"),
        ({"key": ["ip", "int:post:account"]}, "W037"),
        ({"key": "post:username", "method": "POST"}, ""),
        ({"key": "post:username", "mode": "off"}, ""),
        ({"key": "get:username"}, ""),
        # It counts the methods of the call site.
        ({"key": "post:username", "path": None, "group": "login"}, ""),
    ],
)
def test_a_rule_that_counts_different_clients_as_one_is_a_warning(
    rule: Any, expected: str, settings: Any
) -> None:
    """These are anonymous clients for a key by user, and requests without a body."""
    settings.MIDDLEWARE = [SESSIONS, AUTHENTICATION, LIMITS]
    fields = {"name": "all", "path": "/", "rate": "5/m", **rule}
    settings.RATELIMIT_RULES = [{name: value for name, value in fields.items() if value}]
    reported = [(identifier, text) for identifier, text in found() if identifier != "W022"]
    assert [identifier for identifier, _ in reported] == ([expected] if expected else [])
    said = "Rule 'all' counts all clients without a signed-in user as one, because its key is the "
    assert expected != "W010" or reported == [("W010", f"{said}user.")]


by_name = ratelimit(key="post:username", rate="5/m")


class Posted(View):
    @method_decorator(by_name)
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")


@method_decorator(by_name, name="dispatch")
class Form(View):
    pass


@pytest.mark.parametrize(
    ("view", "is_reported"),
    [
        (by_name(anybody), True),
        (ratelimit(key=("ip", "json:user.name"), rate="5/m")(anybody), True),
        (ratelimit(key="int:data:account", rate="5/m", method=["GET", "POST"])(anybody), True),
        (Form.as_view(), True),
        (Posted.as_view(), False),
        (ratelimit(key="post:username", rate="5/m", method=UNSAFE)(anybody), False),
        (ratelimit(key="post:username", rate="5/m", method="POST")(anybody), False),
        (ratelimit(key="get:username", rate="5/m")(anybody), False),
    ],
)
def test_a_body_key_that_counts_requests_without_a_body_is_a_warning(
    view: Any, is_reported: bool, settings: Any
) -> None:
    """Otherwise a few views of the form by any client lock the form for all clients."""
    settings.ROOT_URLCONF = urls(path("view", view))
    warnings = messages("W037", "urls")
    assert len(warnings) == is_reported
    assert all("method=UNSAFE" in str(message.hint) for message in warnings)


@pytest.mark.django_db(transaction=True)
def test_a_rule_of_the_admin_by_a_body_field_without_a_method_is_a_warning() -> None:
    """It is reported together with the other problems of stored rules."""
    for number, fields in enumerate(({}, {"method": "POST"}, {"mode": "off"}, {"key": "ip"})):
        values = {"name": f"form {number}", "path": "/", "key": "int:post:account", "rate": "5/m"}
        RateLimitRule.objects.create(**{**values, **fields})
    (message,) = messages("W037", "database", databases=["default"])
    assert "'form 0'" in message.msg


@pytest.mark.django_db(transaction=True)
def test_rules_of_the_admin_without_the_middleware_are_a_warning(settings: Any) -> None:
    """It names the rules that apply to requests and are not off."""
    RateLimitRule.objects.create(name="path", path="/", key="ip", rate="5/m")
    RateLimitRule.objects.create(name="old", path="/", key="ip", rate="5/m", mode="off")
    RateLimitRule.objects.create(name="site", group="site", rate="5/m")

    settings.MIDDLEWARE = [LIMITS]
    assert messages("W026", "database", databases=["default"]) == []
    settings.MIDDLEWARE = []
    (message,) = messages("W026", "database", databases=["default"])
    assert message.msg == "The middleware that applies rules of the admin is missing: 'path'."


BANS = {"ban_after": 5, "ban_for": "1h"}
CORS = "corsheaders.middleware.CorsMiddleware"


@pytest.mark.parametrize(
    ("middleware", "is_reported"),
    [([LIMITS, CORS], True), ([CORS, LIMITS], False), ([LIMITS], False), ([CORS], False)],
)
def test_the_middleware_above_the_cors_middleware_is_a_warning(
    middleware: list[str], is_reported: bool, settings: Any
) -> None:
    """Its refusals would have no CORS headers, and it would count preflights."""
    settings.MIDDLEWARE = middleware
    assert [identifier for identifier, _ in found()] == (["W038"] if is_reported else [])


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ({}, "No imported limit has the name “nobody's”: the rule has no effect."),
        ({"group": "serch"}, "No imported limit has the name “serch”"),
        ({"route": "nowhere"}, "No URL pattern has the name “nowhere”: the rule has no effect."),
        ({"route": "nowhere", "exempt": True, "rate": None}, "No URL pattern has the name “now"),
        ({"name": "shared", "key": None, **BANS}, "so the rule never bans"),
        ({"path": "/"}, ""),
        ({"name": "known"}, ""),
        ({"mode": "off"}, ""),
    ],
)
def test_a_rule_for_a_missing_route_or_call_site_is_a_warning(
    place: dict[str, Any], said: str, settings: Any
) -> None:
    """The warning has the same words as the form of a rule."""
    settings.MIDDLEWARE = [LIMITS]
    known_call_sites.add_name("known")
    shared = CallSite("@ratelimit", "app.shared", (Rate.parse("10/s"),), "all")
    known_call_sites.add("shared", shared)
    settings.RATELIMIT_RULES = [{"name": "nobody's", "key": "ip", "rate": "5/m", **place}]
    assert [identifier for identifier, _ in found()] == (["W022"] if said else [])
    assert all(said in text for _, text in found())


@ratelimit(key=("session", "path"), rate="5/m")
def by_session(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


urlpatterns = [path("by-session", by_session)]


def test_a_session_key_without_server_sessions_is_a_warning(settings: Any) -> None:
    """Rules and views by session would count addresses."""
    settings.ROOT_URLCONF = __name__
    rule = {"name": "all", "path": "/", "key": ["session", "path"], "rate": "5/m"}
    settings.RATELIMIT_RULES = [rule]
    settings.MIDDLEWARE = [LIMITS]
    ((identifier, text),) = found()
    assert (identifier, "there are no sessions" in text) == ("W011", True)
    (message,) = messages("W011", "urls")
    assert message.msg.partition(":")[0] == f"@ratelimit on {__name__}.by_session"
    assert "SessionMiddleware" in message.hint
    settings.MIDDLEWARE = [SESSIONS, LIMITS]
    assert found() == []
    settings.SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
    ((identifier, text),) = found()
    assert (identifier, "in signed cookies" in text) == ("W011", True)


NONSENSE: list[Any] = [
    *(None, True, -1, 10**40, float("nan"), object(), len, ValueError, b"\xff"),
    *("", "*", "nowhere.at.all", "a..b", "os.sep", "tests.unit.raises_on_import.name"),
    *([], {}, [None], [7], [{}], {None: None}),
    [{"name": "x", "key": "ip", "rate": "5/min"}],
]
"""Values that are no setting."""


@pytest.mark.parametrize("name", [f"RATELIMIT_{name}" for name in (*SETTINGS, "UNHEARD_OF")])
@pytest.mark.django_db
def test_a_check_reports_an_invalid_setting_without_raising(name: str, settings: Any) -> None:
    """A setting without an error can be read."""
    ours = [
        check
        for check in registry.get_checks(include_deployment_checks=True)
        if check.__module__ == "django_ratelimit_lua.checks"
    ]
    assert len(ours) >= 8
    for value in random.Random(name).sample(NONSENSE, examples(len(NONSENSE))):
        setattr(settings, name, value)
        given = {"app_configs": None, "databases": ["default"]}
        identifiers = {message.id for check in ours for message in check(**given)}
        setting = SETTINGS.get(name.removeprefix("RATELIMIT_"))
        if setting is not None and "django_ratelimit_lua.E001" not in identifiers:
            setting.read()


@pytest.mark.parametrize(
    "value",
    [
        *("10.0.0.0/8", True, 33, -1, {"10.0.0.0/8"}),
        *(["*"], [None], [7], ["10.0.0.1/8"], ["proxy.example"], [10.5]),
    ],
)
def test_an_invalid_proxy_setting_is_reported_once(value: Any, settings: Any) -> None:
    """There is no warning that the setting is missing."""
    settings.RATELIMIT_TRUSTED_PROXIES = value
    (message,) = run_checks(tags=["caches"], include_deployment_checks=True)
    assert message.id == "django_ratelimit_lua.E001"
    assert "RATELIMIT_TRUSTED_PROXIES" in message.msg
    assert "must be a number of proxies from 0 to 32, or a list of networks" in message.msg
    with pytest.raises(ImproperlyConfigured, match="RATELIMIT_TRUSTED_PROXIES"):
        _ = conf.TRUSTED_PROXIES


DJANGOS = "django.core.cache.backends"
SHARDS = {"CLIENT_CLASS": "django_redis.client.ShardClient"}


@pytest.mark.parametrize(
    ("cache", "problem"),
    [
        ({"BACKEND": f"{DJANGOS}.locmem.LocMemCache"}, "LocMemCache"),
        ({**REDIS, "BACKEND": f"{DJANGOS}.redis.RedisCache"}, "must be django"),
        ({**REDIS, "OPTIONS": SHARDS}, "ShardClient"),
        ({**REDIS, "LOCATION": "rodis://127.0.0.1"}, "cannot be used: Redis URL must specify"),
        ({"BACKEND": REDIS["BACKEND"]}, ""),
        *(({**REDIS, "LOCATION": where}, "") for where in ("", None, "127.0.0.1:6379")),
        ({**REDIS, "LOCATION": "redis://host:port/0"}, ""),
        ({**REDIS, "OPTIONS": {"CLIENT_CLASS": "nowhere.Client"}}, ""),
        ({**REDIS, "OPTIONS": {"CONNECTION_POOL_CLASS": "nowhere.Pool"}}, ""),
        ({**REDIS, "BACKEND": "nowhere.Cache"}, ""),
        ({"LOCATION": REDIS["LOCATION"]}, ""),
        ({}, ""),
    ],
)
def test_a_cache_that_cannot_be_used_is_an_error_that_names_it(
    cache: dict[str, Any], problem: str, settings: Any
) -> None:
    """Its use raises `ImproperlyConfigured` instead of another exception."""
    settings.CACHES = {"default": cache}
    (message,) = check_cache()  # Alone: of some of these, Django's own checks make a traceback.
    assert message.id == "django_ratelimit_lua.E002"
    assert "CACHES['default']" in message.msg
    assert problem in message.msg
    with pytest.raises(ImproperlyConfigured, match="RATELIMIT_USE_CACHE: CACHES"):
        get_store()
    with contextlib.suppress(AttributeError):  # django-redis 6 cannot close what it could not open.
        del caches["default"]


@pytest.mark.parametrize(
    "rule",
    [
        {"key": "nowhere.key", "rate": "5/m"},
        {"key": "ip", "rate": "nowhere.rate"},
        {"key": ["ip", "nowhere.key"]},
    ],
)
def test_an_invalid_path_of_a_rule_is_found_in_any_order_of_checks(
    rule: Any, settings: Any
) -> None:
    """The check for dotted paths reads the rules itself."""
    settings.RATELIMIT_RULES = [{"name": "x", "rate": "5/m", **rule}]
    (message,) = check_paths()
    assert message.id == "django_ratelimit_lua.E003"
    assert "nowhere" in message.msg
