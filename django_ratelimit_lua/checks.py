"""System checks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, NamedTuple

from django.apps import apps
from django.conf import settings
from django.core.checks import ERROR, INFO, WARNING, CheckMessage, Tags, register
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, router

from .conf import SETTINGS, callables, conf
from .exceptions import StoreError
from .extension import (
    FIELDS_OF_ANNEXES,
    SETTINGS_OF_ANNEXES,
    annex_options,
    install,
    is_installed,
)
from .identity import secrets_by_id
from .identity.keys import registered_keys
from .identity.networks import networks
from .limits.rate import LimitError, Rate
from .models import RateLimitOverride, RateLimitRevision, RateLimitRule
from .publishing.publish import primary, read_published, values_by_key
from .rules import RuleError, provider
from .rules.callsite import LIMITER, group_of, known_call_sites
from .rules.methods import method_name
from .rules.overrides import field_of, is_kind
from .rules.places import place_problems
from .rules.rule import Rule
from .rules.ruleset import settings_problems, settings_rules
from .rules.stacks import BEFORE_METHODS, Stack, is_behind_login, on_view, url_patterns
from .store import why_unusable

MIDDLEWARE = "django_ratelimit_lua.middleware.RateLimitMiddleware"
AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"
SESSIONS = "django.contrib.sessions.middleware.SessionMiddleware"
CORS = "corsheaders.middleware.CorsMiddleware"
APP = "django_ratelimit_lua"
MAX_OVERRIDES = 20_000
"""Maximum number of overrides without a warning. After each change of one of them, every process
loads all.
"""


LEVELS = {"E": ERROR, "W": WARNING, "I": INFO}
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


BAD_SETTING = Problem("E001", "See the settings page of the documentation.")
BAD_CACHE = Problem(
    "E002",
    "Name an alias of CACHES whose BACKEND is 'django_redis.cache.RedisCache', and whose LOCATION "
    "is a Redis or Valkey server.",
)
BAD_PATH = Problem("E003", "Name a callable that takes (group, request).")
BAD_RULE = Problem("E004", "See the rules page of the documentation.")
NO_USER = Problem("E005", f"Add '{AUTHENTICATION}' to MIDDLEWARE, in front of '{MIDDLEWARE}'.")
BAD_THROTTLE_RATE = Problem("E006", "Write '100/d', '10/15m', None, or a dict of these by method.")
BAD_THROTTLE = Problem(
    "E007", "Name the scope in DRF's DEFAULT_THROTTLE_RATES, with None for no limit."
)
UNKNOWN_SETTING = Problem("W025", "{right}")
UNUSED_RULES = Problem("W026", f"Add '{MIDDLEWARE}' to MIDDLEWARE.")
NO_PROXIES = Problem(
    "W008",
    "Set it to the networks or the number of your proxies, or to 0 if there is no proxy.",
)
SCRIPT_NAME = Problem("W009", "Write the paths as the URLconf has them, without {script}.")
ONE_FOR_ALL = Problem("W010", "Use the key 'user_or_ip', {otherwise}.")
NO_SESSION = Problem("W011", "{right}")
OTHER_SITE = Problem("E013", provider.REMEDY)
LOST_VALUES = Problem(
    "W014",
    "Add the old secret key to SECRET_KEY_FALLBACKS or to the end of "
    "RATELIMIT_KEY_SECRET, or enter the values again.",
)
MANY_OVERRIDES = Problem(
    "W016",
    "Block long lists of addresses in a firewall or a proxy, and clients that misbehave with bans "
    "(ban_after).",
)
NO_PACKAGE = Problem("W017", "Install django-ratelimit-lua[{extra}].")
TENANT_APP = Problem("E023", "Move it to SHARED_APPS: all tenants share its tables and its rules.")
NO_PLACE = Problem(
    "W022",
    "Use the path '/' for all requests, or the name of a limit in the code or of a URL pattern.",
)
TWO_LIMITERS = Problem(
    "E028", "Import one RateLimiter in both places, or give them different names."
)
SETTING_OF_ANNEX = Problem("W030", "{right}, or remove the setting.")
BAD_ROW = Problem(
    "W031",
    "Correct the rule or the override in the admin, or register its key in RATELIMIT_KEYS again.",
)
NO_REDIS = Problem(
    "W032",
    "Start Redis, or correct the LOCATION of the cache {alias!r}. Until then, limits apply as "
    "RATELIMIT_ON_STORE_ERROR says.",
)
NO_RATE = Problem(
    "W033",
    "Write a rate such as rate='100/m'. If only rules of the admin limit it, add the id of this "
    "warning to SILENCED_SYSTEM_CHECKS.",
)
NO_METHOD = Problem("W037", 'Add method=UNSAFE in the code, or "method": "POST" to the rule.')
ABOVE_CORS = Problem("W038", f"Move '{MIDDLEWARE}' below '{CORS}'.")
TWO_DATABASES = Problem(
    "E039",
    "Correct DATABASE_ROUTERS: {users}, django_ratelimit_lua and its optional apps need the same "
    "database.",
)
UNREAD_NETWORK = Problem(
    "W040", "Write the file anew. Every process reads it again within a second when it has changed."
)
NO_WAITING_TIME = Problem(
    "W041",
    "Set RATELIMIT_REQUEST_START to a header that your proxy overwrites, and "
    "RATELIMIT_TRUSTED_PROXIES to the networks of the proxy.",
)
ABSENT_ANNEX = Problem("W029", "{right}, or delete these values from RateLimitRule.options.")
EARLIER_KEY = Problem(
    "I015", "Enter the values again before you remove the secret key from the fallbacks."
)


@register(Tags.caches)
def check_settings(**kwargs: object) -> Iterator[CheckMessage]:
    """Check that all settings are valid, and that no setting is misspelt."""
    problems: dict[str, None] = {}
    for name, setting in SETTINGS.items():
        try:
            setting.read()
            if name == "KEYS":
                registered_keys()
        except ImproperlyConfigured as error:
            problems[str(error)] = None
    yield from map(BAD_SETTING.message, problems)
    for name in sorted(dir(settings)):
        word = name.removeprefix("RATELIMIT_")
        annex = SETTINGS_OF_ANNEXES.get(word)
        if annex is not None and not is_installed(annex):
            text = f"{name} is a setting of an app that is not installed."
            yield SETTING_OF_ANNEX.message(text, right=install(annex))
        elif word != name and word not in SETTINGS:
            text = f"{name} is not a setting of django_ratelimit_lua."
            yield UNKNOWN_SETTING.message(text, right=_right_setting(word))


def _right_setting(word: str) -> str:
    """Return the closest match of a misspelt setting, or else all settings."""
    near = get_close_matches(word, SETTINGS, 1)
    if near:
        return f"Did you mean RATELIMIT_{near[0]}?"
    names = ", ".join(sorted(f"RATELIMIT_{name}" for name in SETTINGS))
    return f"Remove it or correct its name. Known settings: {names}."


@register(Tags.caches)
def check_tenants(**kwargs: object) -> Iterator[CheckMessage]:
    """Check that the tables are in the schema that all tenants share."""
    apps = getattr(settings, "TENANT_APPS", None)
    if not isinstance(apps, (list, tuple, set, frozenset)):
        return
    if any(name == APP or name.startswith(f"{APP}.") for name in map(str, apps)):
        yield TENANT_APP.message(
            f"TENANT_APPS contains '{APP}'. Each tenant would have its own rules, but all "
            "processes share one set."
        )


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


@register(Tags.caches, deploy=True)
def check_redis(**kwargs: object) -> Iterator[CheckMessage]:
    """Check that Redis can be reached, with `manage.py check --deploy`."""
    with suppress(ImproperlyConfigured):  # `check_cache` reports it.
        try:
            read_published()
        except StoreError as error:
            yield NO_REDIS.message(f"Redis is unavailable: {error}", alias=conf.USE_CACHE)


@register(Tags.caches)
def check_rules(**kwargs: object) -> Iterator[CheckMessage]:
    """Check that every rule in `RATELIMIT_RULES` is valid, and that the middleware applies them."""
    wrong = settings_problems()
    if wrong:
        yield from map(BAD_RULE.message, wrong)
        return
    rules = settings_rules()
    active = [rule for rule in rules if rule.mode != "off"]
    if getattr(settings, "ROOT_URLCONF", None):
        for rule in active:
            for problem in place_problems(rule):
                yield NO_PLACE.message(f"Rule {rule.name!r}: {problem}")
    needs_user = ", ".join(rule.name for rule in active if rule.needs_user)
    by_session = ", ".join(rule.name for rule in active if rule.needs_session)
    is_applied_here = any(rule.is_for_requests for rule in rules)
    if MIDDLEWARE not in settings.MIDDLEWARE and is_installed("gateway"):
        return  # The process may serve only the gateway, which applies them.
    if is_applied_here and MIDDLEWARE not in settings.MIDDLEWARE:
        yield UNUSED_RULES.message(
            "RATELIMIT_RULES has rules, but the middleware that applies them is missing."
        )
    elif is_applied_here and needs_user and AUTHENTICATION not in settings.MIDDLEWARE:
        yield NO_USER.message(f"These rules need request.user: {needs_user}.")
    else:
        if by_session:
            yield from _no_session(f"Rules {by_session}")
        for rule in active:
            if rule.lumps_strangers:
                yield _one_for_all(f"Rule {rule.name!r}", "or the audience 'authenticated'")
    for rule in active:
        if rule.counts_missing_bodies:
            yield _no_method(f"Rule {rule.name!r}")


@register(Tags.caches)
def check_cors(**kwargs: object) -> Iterator[CheckMessage]:
    """Check that refused requests pass `CorsMiddleware`, which adds the headers of CORS."""
    order = [path for path in settings.MIDDLEWARE if path in (MIDDLEWARE, CORS)]
    if order == [MIDDLEWARE, CORS]:
        yield ABOVE_CORS.message(
            "Refused requests have no CORS headers, and preflights are counted, because "
            "RateLimitMiddleware is above CorsMiddleware."
        )


def _valid_rules() -> Sequence[Rule]:
    """Return the rules of the settings; none if they are invalid, which `check_rules` reports."""
    with suppress(ImproperlyConfigured):
        return settings_rules()
    return ()


def _no_session(subject: str) -> Iterator[CheckMessage]:
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


def _one_for_all(subject: str, otherwise: str) -> CheckMessage:
    text = (
        f"{subject} counts all clients without a signed-in user as one, because its key is the "
        "user."
    )
    return ONE_FOR_ALL.message(text, otherwise=otherwise)


def _no_method(subject: str) -> CheckMessage:
    return NO_METHOD.message(
        f"{subject}: the key is a field of the body, and all requests without a body share one "
        "count, such as those that only show the form."
    )


@register(Tags.urls)
def check_views(**kwargs: object) -> Iterator[CheckMessage]:
    """Check the call sites of all views.

    No public view counts all clients without a signed-in user as one, or counts requests without a
    body by a field of the body. Every `@ratelimit` has a rate, and sessions are stored if rules use
    them.
    """
    yield from _no_rates()
    bodiless: dict[str, None] = {}
    lumping: dict[str, None] = {}
    by_session: dict[str, None] = {}
    for view in _all_views():
        name = f"@ratelimit on {group_of(view)}"
        for stack in on_view(view).stacks:
            if any(rule.needs_session for rule in stack.rules):
                by_session[name] = None
            if stack.method in (*BEFORE_METHODS, "get") and any(
                rule.counts_missing_bodies for rule in stack.rules
            ):
                bodiless[name] = None
            if any(rule.lumps_strangers for rule in stack.rules) and _is_open(view, stack):
                lumping[name] = None
    for name in lumping:
        yield _one_for_all(name, "or login_required")
    for name in by_session:
        yield from _no_session(name)
    yield from map(_no_method, bodiless)


def _no_rates() -> Iterator[CheckMessage]:
    """Report decorators without a rate that no rule of the settings limits."""
    named = {rule.name for rule in _valid_rules()}
    stacks = (stack for view in _all_views() for stack in on_view(view).stacks)
    names = {
        rule.name_at(stack.group): stack.group
        for stack in stacks
        for rule in stack.rules
        if rule.template is not None and set(rule.template.rates) == {None}
    }
    for name, group in names.items():
        if name not in named:
            text = f"@ratelimit on {group} has no rate: only a rule named {name!r} limits it."
            yield NO_RATE.message(text)


def _all_views() -> list[Callable[..., object]]:
    return [pattern.callback for pattern, _space in url_patterns()]


def _is_open(view: object, stack: Stack) -> bool:
    """Return whether limits of a view are decided before a login is required."""
    # A DRF view checks permissions before its methods. It is assumed that they require a login.
    has_permissions = hasattr(getattr(view, "view_class", None), "permission_classes")
    is_after = has_permissions and stack.method not in BEFORE_METHODS
    return not (is_after or is_behind_login(view, stack))


@register(Tags.caches)
def check_throttle_rates(**kwargs: object) -> Iterator[CheckMessage]:
    """Check the rates in DRF's settings, if throttles of this package use them."""
    return (BAD_THROTTLE_RATE.message(problem) for _, problem in _bad_throttle_rates())


def _drf(name: str, *kinds: type) -> Any:
    """Return a setting of DRF, or None if it is missing or has another type."""
    drf = getattr(settings, "REST_FRAMEWORK", None)
    if isinstance(drf, dict) and isinstance(drf.get(name), kinds):
        return drf[name]
    return None


def _default_throttles() -> Sequence[Any]:
    return _drf("DEFAULT_THROTTLE_CLASSES", list, tuple) or ()


def _bad_throttle_rates() -> Iterator[tuple[object, str]]:
    """Yield each scope with an invalid rate in DRF's settings, and the problem."""
    ours = [path for path in _default_throttles() if str(path).startswith("django_ratelimit_lua.")]
    if not ours:
        return
    for scope, declared in (_drf("DEFAULT_THROTTLE_RATES", dict) or {}).items():
        by_method = declared
        if not isinstance(declared, dict):
            by_method = {"*": declared}
        for method, rate in by_method.items():
            try:
                if method != "*":
                    method_name(method)
                if rate is not None and Rate.parse(rate).is_slots:
                    raise LimitError(
                        f"Rate {rate!r} is a number of slots; throttles need a rate such as "
                        f"'{rate}/m'"
                    )
            except LimitError as error:
                yield scope, f"REST_FRAMEWORK['DEFAULT_THROTTLE_RATES']: scope {scope!r}: {error}"


@register(Tags.urls)
def check_throttles(**kwargs: object) -> Iterator[CheckMessage]:
    """Check that all throttles of this package have a rate, in DRF's settings or on a view."""
    throttles: dict[tuple[object, object], None] = {}
    for path in _default_throttles():
        with suppress(ImproperlyConfigured):  # DRF reports it when it imports the first view.
            throttle = path
            if isinstance(path, str):
                throttle = callables.find(path, "Throttle")
            throttles[throttle, None] = None
    for view in _all_views():
        for throttle in _attribute(view, "throttle_classes") or ():
            scope = _attribute(view, getattr(throttle, "scope_attr", ""))
            throttles[throttle, scope] = None
    bad_scopes = {scope for scope, _ in _bad_throttle_rates()}
    problems = {_throttle_problem(throttle, scope, bad_scopes) for throttle, scope in throttles}
    return (BAD_THROTTLE.message(problem) for problem in sorted(problems - {""}))


def _attribute(view: object, name: str) -> Any:
    """Return an attribute of a view of DRF, or None."""
    given = getattr(view, "initkwargs", None) or {}
    return given.get(name) or getattr(getattr(view, "cls", None), name, None)


def _throttle_problem(throttle: object, scope: object, bad_scopes: Collection[object]) -> str:
    """Return the problem of a throttle of this package.

    The result is empty if the throttle works, or if its scope was reported.
    """
    throttling = sys.modules.get(f"{__package__}.throttling")
    if throttling is None or not isinstance(throttle, type):
        return ""
    is_ours = issubclass(throttle, throttling.SimpleRateThrottle)
    if not is_ours or (scope or getattr(throttle, "scope", None)) in bad_scopes:
        return ""
    try:
        instance = throttle()  # As DRF does for each request.
        if issubclass(throttle, throttling.ScopedRateThrottle) and scope:
            instance.scope = scope
            instance.rate = instance.get_rate()
        rates = [instance.rate]
        if isinstance(instance.rate, Mapping):
            rates = list(instance.rate.values())
        for rate in rates:
            if rate != ():  # It gets its rate from the view.
                instance.parse_rate(rate)
    except ImproperlyConfigured as error:
        return str(error)
    except Exception:
        return ""  # A subclass of the project that needs a request.
    return ""


@register(Tags.caches)
def check_paths(**kwargs: object) -> Iterator[CheckMessage]:
    """Check that all functions given by a dotted path can be imported."""
    _all_views()  # Importing the views registers the paths that they use.
    _valid_rules()  # The same for the rules.
    for path, purpose in list(callables.known.items()):  # An import may register more.
        try:
            callables.find(path, purpose)
        except ImproperlyConfigured as error:
            yield BAD_PATH.message(str(error))


@register(Tags.caches)
def check_limiters(**kwargs: object) -> Iterator[CheckMessage]:
    """Check that `RateLimiter`s of one name, which share a count, have the same limits."""
    _all_views()  # Importing the views registers their limiters.
    for name in known_call_sites.names():
        sites = [site for site in reversed(known_call_sites.of(name)) if site.kind == LIMITER]
        for site in sites[1:]:
            if set(site.limits) != set(sites[0].limits):
                yield TWO_LIMITERS.message(
                    f"RateLimiter {name!r} has different rates or options in {site.place} and "
                    f"{sites[0].place}."
                )


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
        yield from map(UNREAD_NETWORK.message, networks.read())
        for rule in _valid_rules():
            yield from _no_waiting_time(rule)


def _no_waiting_time(rule: Rule) -> Iterator[CheckMessage]:
    is_known = conf.REQUEST_START is not None and isinstance(conf.TRUSTED_PROXIES, tuple)
    if rule.waited and not is_known:
        yield NO_WAITING_TIME.message(
            f"Rule {rule.name!r} never applies, because the waiting time of requests is not known."
        )


@register(Tags.caches)
def check_script_name(**kwargs: object) -> Iterator[CheckMessage]:
    """Check that no path of a rule begins with `FORCE_SCRIPT_NAME`, which rules do not match."""
    script = str(settings.FORCE_SCRIPT_NAME or "").rstrip("/")
    below = [
        rule.name
        for rule in _valid_rules()
        if any(path.startswith(f"{script}/") for path in rule.paths)
    ]
    if script and below:
        text = (
            f"Rules {', '.join(below)}: paths that begin with FORCE_SCRIPT_NAME match no request."
        )
        yield SCRIPT_NAME.message(text, script=script)


@register(Tags.database)
def check_annexes(
    databases: Sequence[str] | None = None, **kwargs: object
) -> Iterator[CheckMessage]:
    """Check that no rule of the admin has values of an optional app that is not installed.

    Like `check_published`, it runs only with `manage.py check --database default`.
    """
    using = primary()
    if using not in (databases or ()):
        return
    installed = annex_options()
    absent = {word: annex for word, annex in FIELDS_OF_ANNEXES.items() if word not in installed}
    with suppress(DatabaseError):  # Not migrated yet, or unavailable.
        rows = RateLimitRule.objects.using(using).exclude(options={})
        for word, annex in absent.items():
            names = [repr(row.name) for row in rows if word in row.spec]
            if names:
                text = (
                    f"The option {word} of the rules {', '.join(names)} is ignored: its app "
                    "is not installed."
                )
                yield ABSENT_ANNEX.message(text, right=install(annex))


@register(Tags.database)
def check_published(
    databases: Sequence[str] | None = None, **kwargs: object
) -> Iterator[CheckMessage]:
    """Check that the admin's rules are valid and published, and overrides use known keys.

    It runs with `manage.py check --database default`, and before migrations. It reports nothing if
    the database or Redis is unavailable.
    """
    using = primary()
    if using not in (databases or ()):
        return
    try:
        own = RateLimitRevision.read(using).database
        by_key = values_by_key(using)
        overrides = RateLimitOverride.objects.using(using).lasting().order_by()
        number = overrides.count()
        kinds = overrides.values_list("kind", flat=True).distinct()
        odd = [kind for kind in kinds if not is_kind(field_of(kind))]
        rules = list(RateLimitRule.objects.using(using))
        owner = read_published().database
    except (DatabaseError, StoreError, ImproperlyConfigured):
        return  # Not migrated yet, or unavailable: other checks report it.
    if owner not in ("", own):
        prefix = conf.CACHE_PREFIX.decode()
        yield OTHER_SITE.message(
            f"The rules under RATELIMIT_CACHE_PREFIX {prefix!r} belong to the database {owner}; "
            "the id of this "
            f"database is {own or 'not set yet'}."
        )
    for rule in rules:
        try:
            compiled = rule.compiled()
            yield from _no_waiting_time(compiled)
            if compiled.counts_missing_bodies and rule.mode != "off":
                yield _no_method(f"Rule {rule.name!r}")
        except RuleError as error:
            yield BAD_ROW.message(f"A rule, or a part of it, is not applied: {error}")
    if odd:
        yield BAD_ROW.message(
            "Overrides by these keys match no request, because the keys are not "
            f"registered: {', '.join(odd)}."
        )
    secrets = secrets_by_id()
    lost = sum(count for key, count in by_key.items() if key not in secrets)
    earlier = sum(by_key.values()) - lost
    if lost:
        yield LOST_VALUES.message(
            "Overrides for values of fields match no client, because the key of their digests was "
            f"removed: {lost}."
        )
    if number > MAX_OVERRIDES:
        yield MANY_OVERRIDES.message(
            f"{number} overrides have not ended; every process loads all of them after each change"
        )
    if earlier:
        yield EARLIER_KEY.message(
            f"Overrides for values of fields use an earlier secret key: {earlier}."
        )
