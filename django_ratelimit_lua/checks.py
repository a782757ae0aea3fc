"""System checks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, NamedTuple

from django.apps import apps
from django.conf import settings
from django.core.checks import ERROR, WARNING, CheckMessage, Tags, register
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, router

from .conf import SETTINGS, conf, values
from .exceptions import StoreError
from .extension import (
    FIELDS_OF_ANNEXES,
    SETTINGS_OF_ANNEXES,
    annex_options,
    install_hint,
    is_installed,
)
from .identity.keys import registered_keys
from .identity.networks import networks
from .models import RateLimitOverride, RateLimitRevision, RateLimitRule
from .models.rule import rules_database
from .publishing.publisher import read_published
from .publishing.triggers import migration_problem
from .rules import RuleError, provider
from .rules.rule import Rule, Spec
from .rules.ruleset import settings_problems, settings_rules
from .store import why_unusable
from .views.call_sites import place_problems
from .views.inspection import (
    BEFORE_METHODS,
    Stack,
    default_group,
    inspect_view,
    is_behind_login,
    url_patterns,
)

MIDDLEWARE = "django_ratelimit_lua.middleware.RateLimitMiddleware"
AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"
SESSIONS = "django.contrib.sessions.middleware.SessionMiddleware"
CORS = "corsheaders.middleware.CorsMiddleware"
APP = "django_ratelimit_lua"
MAX_OVERRIDES = 20_000
"""Maximum number of overrides without a warning. After each change of one of them, every process
loads all.
"""


LEVELS = {"E": ERROR, "W": WARNING}
"""The levels of messages, by the first letter of their ids."""


class Problem(NamedTuple):
    """The id and the hint of a message."""

    id: str
    hint: str

    def message(self, text: str, **words: str) -> CheckMessage:
        """Return the message, with one full stop. The `words` are inserted into the hint."""
        sentence = f"{text.rstrip('.')}."
        hint = self.hint.format(**words)
        return CheckMessage(LEVELS[self.id[0]], sentence, hint, id=f"{APP}.{self.id}")


BAD_SETTING = Problem(
    "E001", "The page Settings in the reference of the documentation lists the values."
)
BAD_CACHE = Problem(
    "E002",
    "Name an alias of CACHES whose BACKEND is 'django_redis.cache.RedisCache', and whose LOCATION "
    "is a Redis or Valkey server.",
)
BAD_PATH = Problem("E003", "Name a callable that takes (group, request).")
BAD_RULE = Problem(
    "E004", "The page Rules in the reference of the documentation lists the fields of a rule."
)
NO_USER = Problem("E005", f"Add '{AUTHENTICATION}' to MIDDLEWARE, in front of '{MIDDLEWARE}'.")
UNKNOWN_SETTING = Problem("W025", "{right}")
UNUSED_RULES = Problem("W026", f"Add '{MIDDLEWARE}' to MIDDLEWARE.")
NO_PROXIES = Problem(
    "W008",
    "Set it to the networks or the number of your proxies, or to 0 if there is no proxy.",
)
ONE_FOR_ALL = Problem("W010", "Use the key 'user_or_ip', {otherwise}.")
NO_SESSION = Problem("W011", "{right}")
OTHER_SITE = Problem("E013", provider.REMEDY)
MANY_OVERRIDES = Problem(
    "W016",
    "Block long lists of addresses in a firewall or a proxy, and clients that misbehave with bans "
    "(ban_after).",
)
NO_PLACE = Problem(
    "W022",
    "Use the path '/' for all requests, or the name of a limit in the code or of a URL pattern.",
)
SETTING_OF_ANNEX = Problem("W030", "{right}, or remove the setting.")
NO_METHOD = Problem("W037", 'Add method=UNSAFE in the code, or "method": "POST" to the rule.')
ABOVE_CORS = Problem("W038", f"Move '{MIDDLEWARE}' below '{CORS}'.")
TWO_DATABASES = Problem(
    "E039",
    "Correct DATABASE_ROUTERS: {users}, django_ratelimit_lua and its optional apps need the same "
    "database.",
)
NOT_MIGRATED = Problem("W040", "Run `manage.py migrate`.")
UNREAD_NETWORK = Problem(
    "W041", "Write the file anew. Every process reads it again within a second when it has changed."
)
NO_WAITING_TIME = Problem(
    "W042",
    "Set RATELIMIT_REQUEST_START to a header that your proxy overwrites, and "
    "RATELIMIT_TRUSTED_PROXIES to the networks of the proxy.",
)
BAD_THROTTLE = Problem("W043", "Add the scope to DEFAULT_THROTTLE_RATES, or correct its rate.")
ABSENT_ANNEX = Problem("W029", "{right}, or delete these values from RateLimitRule.options.")


@register(Tags.caches)
def check_settings(**kwargs: object) -> Iterator[CheckMessage]:
    """Check that all settings are valid, and that no setting is misspelt."""
    problems: list[str] = []
    for name, setting in SETTINGS.items():
        try:
            setting.read()
            if name == "KEYS":
                registered_keys()
        except ImproperlyConfigured as error:
            problems.append(str(error))
    yield from map(BAD_SETTING.message, dict.fromkeys(problems))
    for name in sorted(dir(settings)):
        if name.startswith("RATELIMIT_"):
            yield from _name_problems(name)


def _name_problems(name: str) -> Iterator[CheckMessage]:
    """Report a setting of an optional app that is not installed, and one that does not exist."""
    word = name.removeprefix("RATELIMIT_")
    annex = SETTINGS_OF_ANNEXES.get(word)
    if annex is not None and not is_installed(annex):
        text = f"{name} is a setting of an app that is not installed."
        yield SETTING_OF_ANNEX.message(text, right=install_hint(annex))
    elif word not in SETTINGS:
        text = f"{name} is not a setting of django_ratelimit_lua."
        yield UNKNOWN_SETTING.message(text, right=_suggest_setting(word))


def _suggest_setting(word: str) -> str:
    """Return a hint with the closest match of a misspelt setting, or else with all settings."""
    near = get_close_matches(word, SETTINGS, 1)
    if near:
        return f"Did you mean RATELIMIT_{near[0]}?"
    names = ", ".join(sorted(f"RATELIMIT_{name}" for name in SETTINGS))
    return f"Remove it or correct its name. Known settings: {names}."


@register(Tags.caches)
def check_databases(**kwargs: object) -> Iterator[CheckMessage]:
    """Check that the tables of the core, of optional apps and of users are in one database.

    Overrides refer to users, and a change is recorded in the transaction of its row. If no app has
    the user model, Django reports it.
    """
    users = settings.AUTH_USER_MODEL
    apps_by_database: dict[str, set[str]] = {}
    for model in apps.get_models():
        is_ours = model.__module__.startswith(f"{APP}.")
        if is_ours or model._meta.label_lower == users.lower():
            name = model._meta.app_config.name if is_ours else users
            apps_by_database.setdefault(router.db_for_write(model), set()).add(name)
    if len(apps_by_database) > 1:
        places = [
            f"{', '.join(sorted(names))} in {alias!r}"
            for alias, names in sorted(apps_by_database.items())
        ]
        text = f"Tables that belong together are in different databases: {'; '.join(places)}"
        yield TWO_DATABASES.message(text, users=users)


@register(Tags.caches)
def check_cache(**kwargs: object) -> Iterator[CheckMessage]:
    """Check that the cache alias is a django-redis cache with a supported client."""
    with suppress(ImproperlyConfigured):  # `check_settings` reports it.
        problem = why_unusable(conf.USE_CACHE)
        if problem is not None:
            yield BAD_CACHE.message(f"RATELIMIT_USE_CACHE: {problem}")


@register(Tags.caches)
def check_rules(**kwargs: object) -> Iterator[CheckMessage]:
    """Check that every rule in `RATELIMIT_RULES` is valid, and that the middleware applies them."""
    problems = settings_problems()
    if problems:
        yield from map(BAD_RULE.message, problems)
        return
    rules = settings_rules()
    active = [rule for rule in rules if rule.mode != "off"]
    if getattr(settings, "ROOT_URLCONF", None):
        for rule in active:
            for problem in place_problems(rule):
                yield NO_PLACE.message(f"Rule {rule.name!r}: {problem}")
    if MIDDLEWARE not in settings.MIDDLEWARE and is_installed("gateway"):
        return  # The process may serve only the gateway, which applies the rules.
    needs_middleware = any(rule.is_for_requests for rule in rules)
    by_user = ", ".join(rule.name for rule in active if rule.needs_user)
    if needs_middleware and MIDDLEWARE not in settings.MIDDLEWARE:
        yield UNUSED_RULES.message(
            "RATELIMIT_RULES has rules, but the middleware that applies them is missing."
        )
    elif needs_middleware and by_user and AUTHENTICATION not in settings.MIDDLEWARE:
        yield NO_USER.message(f"These rules need request.user: {by_user}.")
    else:
        yield from _key_problems(active)
    for rule in active:
        if rule.counts_missing_bodies:
            yield _warn_without_method(f"Rule {rule.name!r}")


def _key_problems(rules: Sequence[Rule]) -> Iterator[CheckMessage]:
    """Report rules whose key needs sessions, or counts all clients without a user as one."""
    by_session = ", ".join(rule.name for rule in rules if rule.needs_session)
    if by_session:
        yield from _warn_without_sessions(f"Rules {by_session}")
    for rule in rules:
        if rule.lumps_strangers:
            yield _warn_lumping(f"Rule {rule.name!r}", "or the audience 'authenticated'")


@register(Tags.caches)
def check_cors(**kwargs: object) -> Iterator[CheckMessage]:
    """Check that refused requests pass `CorsMiddleware`, which adds the headers of CORS."""
    order = [path for path in settings.MIDDLEWARE if path in (MIDDLEWARE, CORS)]
    if order == [MIDDLEWARE, CORS]:
        yield ABOVE_CORS.message(
            "Refused requests have no CORS headers, and preflights are counted, because "
            "RateLimitMiddleware is above CorsMiddleware."
        )


def _find_valid_rules() -> Sequence[Rule]:
    """Return the rules of the settings; none if they are invalid, which `check_rules` reports."""
    try:
        return settings_rules()
    except ImproperlyConfigured:
        return ()


def _warn_without_sessions(subject: str) -> Iterator[CheckMessage]:
    """Report a rule that uses the session if the project stores no sessions on the server."""
    if SESSIONS not in settings.MIDDLEWARE:
        problem = "there are no sessions"
        right = f"Add '{SESSIONS}' to MIDDLEWARE, or use the key 'ip'."
    elif str(settings.SESSION_ENGINE).endswith(".signed_cookies"):
        problem = "a client can create any number of sessions in signed cookies"
        right = "Use the key 'user_or_ip', or a session engine that stores sessions on the server."
    else:
        return
    yield NO_SESSION.message(
        f"{subject}: the key uses the session, but {problem}, so the client's address is counted.",
        right=right,
    )


def _warn_lumping(subject: str, otherwise: str) -> CheckMessage:
    """Return the warning about a key that is the user; `otherwise` is the alternative."""
    text = (
        f"{subject} counts all clients without a signed-in user as one, because its key is the "
        "user."
    )
    return ONE_FOR_ALL.message(text, otherwise=otherwise)


def _warn_without_method(subject: str) -> CheckMessage:
    """Return the warning about a key that is a field of the body, for requests without one."""
    return NO_METHOD.message(
        f"{subject}: the key is a field of the body, and all requests without a body share one "
        "count, such as those that only show the form."
    )


@register(Tags.urls)
def check_views(**kwargs: object) -> Iterator[CheckMessage]:
    """Check the call sites of all views.

    No public view counts all clients without a signed-in user as one, or counts requests without a
    body by a field of the body. Sessions are stored if limits use them.
    """
    lumping: list[str] = []
    by_session: list[str] = []
    without_body: list[str] = []
    for view in _all_views():
        name = f"@ratelimit on {default_group(view)}"
        for stack in inspect_view(view).stacks:
            if any(rule.lumps_strangers for rule in stack.rules) and _is_open(view, stack):
                lumping.append(name)
            if any(rule.needs_session for rule in stack.rules):
                by_session.append(name)
            runs_without_body = stack.method in (*BEFORE_METHODS, "get")
            if runs_without_body and any(rule.counts_missing_bodies for rule in stack.rules):
                without_body.append(name)
    for name in dict.fromkeys(lumping):
        yield _warn_lumping(name, "or login_required above it")
    for name in dict.fromkeys(by_session):
        yield from _warn_without_sessions(name)
    yield from map(_warn_without_method, dict.fromkeys(without_body))


@register(Tags.urls)
def check_throttles(**kwargs: object) -> Iterator[CheckMessage]:
    """Check the rates of the throttles of all DRF views, which are otherwise read by a request."""
    problems: list[str] = []
    for view in _all_views():
        cls: Any = getattr(view, "cls", None)
        initkwargs = getattr(view, "initkwargs", {})
        for throttle_class in getattr(cls, "throttle_classes", ()):
            if not hasattr(throttle_class, "limits_on"):  # A throttle of DRF or of the project.
                continue
            try:
                throttle_class().limits_on(cls(**initkwargs))
            except ImproperlyConfigured as error:
                problems.append(f"{default_group(view)}: {error}")
            except Exception:  # The project's throttle may need a request.
                continue
    yield from map(BAD_THROTTLE.message, dict.fromkeys(problems))


def _all_views() -> list[Callable[..., object]]:
    """Return the views of all URL patterns, which are imported for this."""
    return [pattern.callback for pattern, _space in url_patterns()]


def _is_open(view: object, stack: Stack) -> bool:
    """Return whether limits of a view are decided before a login is required."""
    has_permissions = hasattr(getattr(view, "view_class", None), "permission_classes")
    if has_permissions and stack.method not in BEFORE_METHODS:
        return False  # DRF has checked the permissions, which are assumed to require a login.
    return not is_behind_login(view, stack)


@register(Tags.caches)
def check_paths(**kwargs: object) -> Iterator[CheckMessage]:
    """Check that all functions given by a dotted path can be imported."""
    # Both register the paths that they use.
    _all_views()
    _find_valid_rules()
    for path, purpose in list(values.known_paths.items()):  # An import may register more.
        try:
            values.import_callable(path, purpose, "group", "request")
        except ImproperlyConfigured as error:
            yield BAD_PATH.message(str(error))


@register(Tags.caches, deploy=True)
def check_proxies(**kwargs: object) -> Iterator[CheckMessage]:
    """Check that the proxy setting is present: clients behind an untrusted proxy share a count."""
    with suppress(ImproperlyConfigured):  # `check_settings` reports it.
        if conf.TRUSTED_PROXIES is None and conf.IP_META_KEY is None:
            signs = ("SECURE_PROXY_SSL_HEADER", "USE_X_FORWARDED_HOST", "USE_X_FORWARDED_PORT")
            signs_set = ", ".join(name for name in signs if getattr(settings, name))
            text = (
                "RATELIMIT_TRUSTED_PROXIES is not set. All clients behind a proxy share a count, "
                "and private addresses are never banned."
            )
            if signs_set:
                text += f" {signs_set} suggests that there is a proxy."
            yield NO_PROXIES.message(text)


@register(Tags.caches)
def check_conditions(**kwargs: object) -> Iterator[CheckMessage]:
    """Check that networks can be read, and that the waiting time of requests is known."""
    with suppress(ImproperlyConfigured):  # `check_settings` reports it.
        yield from map(UNREAD_NETWORK.message, networks.refresh())
        yield from _warn_without_waiting_time([rule.spec for rule in _find_valid_rules()])


def _warn_without_waiting_time(specs: Iterable[Spec]) -> Iterator[CheckMessage]:
    """Report rules with `waited` if no setting determines the waiting time of requests."""
    if conf.REQUEST_START is not None and isinstance(conf.TRUSTED_PROXIES, tuple):
        return
    names = [repr(spec["name"]) for spec in specs if spec.get("waited")]
    if names:
        yield NO_WAITING_TIME.message(
            f"Rules {', '.join(names)} never apply: no waiting time of requests is known."
        )


@register(Tags.database)
def check_database(
    databases: Sequence[str] | None = None, **kwargs: object
) -> Iterator[CheckMessage]:
    """Check the tables, with `manage.py check --database default`.

    They exist, no rule has values of an optional app that is not installed, the published rules
    are of this database, and overrides are not too many.
    """
    using = rules_database()
    if using not in (databases or ()) or sys.argv[1:2] == ["migrate"]:
        return
    problem = migration_problem(with_annexes=True)
    if problem:
        yield NOT_MIGRATED.message(problem)
        return
    with suppress(DatabaseError):  # Django reports a database that is unavailable.
        yield from _database_problems(using)


def _database_problems(using: str) -> Iterator[CheckMessage]:
    """Report problems of the rows, and of the published rules. Raises `DatabaseError`."""
    rules = list(RateLimitRule.objects.using(using))
    for word, annex in FIELDS_OF_ANNEXES.items():
        names = [repr(rule.name) for rule in rules if word in rule.spec]
        if names and word not in annex_options():
            subject = f"The option {word} of the rules {', '.join(names)}"
            text = f"{subject} is ignored: its app is not installed."
            yield ABSENT_ANNEX.message(text, right=install_hint(annex))
    with suppress(ImproperlyConfigured):
        yield from _warn_without_waiting_time([rule.spec for rule in rules])
    yield from _row_problems(rules)
    number = RateLimitOverride.objects.using(using).lasting().count()
    if number > MAX_OVERRIDES:
        yield MANY_OVERRIDES.message(
            f"{number} overrides have not ended; every process loads all of them after each change"
        )
    with suppress(StoreError, ImproperlyConfigured):  # `health` and `check_cache` report it.
        database = RateLimitRevision.read(using).database
        owner = read_published().database
        if owner not in ("", database):
            yield OTHER_SITE.message(
                f"The rules under RATELIMIT_CACHE_PREFIX {conf.CACHE_PREFIX.decode()!r} belong to "
                f"the database {owner}; the id of this database is {database or 'not set yet'}."
            )


def _row_problems(rows: Iterable[RateLimitRule]) -> Iterator[CheckMessage]:
    """Report rows that count requests without a body as one, or that no middleware applies."""
    unused = []
    for row in rows:
        try:
            rule = row.compiled()
        except RuleError:  # `health` reports it.
            continue
        if rule.mode == "off":
            continue
        if rule.counts_missing_bodies:
            yield _warn_without_method(f"Rule {row.name!r}")
        if rule.is_for_requests:
            unused.append(repr(row.name))
    if unused and MIDDLEWARE not in settings.MIDDLEWARE and not is_installed("gateway"):
        yield UNUSED_RULES.message(
            f"The middleware that applies rules of the admin is missing: {', '.join(unused)}."
        )
