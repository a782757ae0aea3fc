"""System checks: what would otherwise be found in production."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Info, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError
from django.urls import URLResolver, get_resolver

from .conf import SETTINGS, callables, conf
from .exceptions import StoreError
from .identity import secrets_by_id
from .limits.rate import LimitError, Rate
from .models import RateLimitRevision
from .publishing.publish import primary, published_at, values_by_key
from .publishing.triggers import migration_problem
from .rules import provider
from .rules.callsite import group_of
from .rules.methods import method_name
from .rules.rule import Rule
from .rules.ruleset import settings_rules
from .store import why_unusable

BAD_SETTING = "django_ratelimit_lua.E001"
BAD_CACHE = "django_ratelimit_lua.E002"
BAD_PATH = "django_ratelimit_lua.E003"
BAD_RULE = "django_ratelimit_lua.E004"
BAD_THROTTLE_RATE = "django_ratelimit_lua.E006"
BAD_THROTTLE = "django_ratelimit_lua.E007"
NO_USER = "django_ratelimit_lua.E005"
UNUSED_RULES = "django_ratelimit_lua.W002"
ONE_FOR_ALL = "django_ratelimit_lua.W010"
NO_SESSION = "django_ratelimit_lua.W011"
MIDDLEWARE = "django_ratelimit_lua.middleware.RateLimitMiddleware"
AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"
SESSIONS = "django.contrib.sessions.middleware.SessionMiddleware"
LOGIN_REQUIRED = "django.contrib.auth.middleware.LoginRequiredMiddleware"
UNKNOWN_SETTING = "django_ratelimit_lua.W001"
OTHER_SITE = "django_ratelimit_lua.W013"
LOST_VALUES = "django_ratelimit_lua.W014"
EARLIER_KEY = "django_ratelimit_lua.I015"
NO_PROXIES = "django_ratelimit_lua.W008"
NOT_MIGRATED = "django_ratelimit_lua.W012"
SCRIPT_NAME = "django_ratelimit_lua.W009"


@register(Tags.caches)
def check_settings(**kwargs: Any) -> list[CheckMessage]:
    """Every setting can be taken as it is, and every name is one we know."""
    found: list[CheckMessage] = []
    for name in SETTINGS:
        try:
            getattr(conf, name)
        except ImproperlyConfigured as error:
            found.append(Error(str(error), hint="See the settings page of the documentation.", id=BAD_SETTING))
    known = {f"RATELIMIT_{name}" for name in SETTINGS}
    given = {name for name in dir(settings) if name.startswith("RATELIMIT_")}
    for name in sorted(given - known):
        hint = f"Known are: {', '.join(sorted(known))}."
        found.append(Warning(f"{name} is not a setting of django_ratelimit_lua.", hint=hint, id=UNKNOWN_SETTING))
    return found


@register(Tags.caches)
def check_cache(**kwargs: Any) -> list[CheckMessage]:
    """The cache alias is django-redis, with a client we can use."""
    try:
        problem = why_unusable(conf.USE_CACHE)
    except ImproperlyConfigured:
        return []  # `check_settings` says it.
    if problem is None:
        return []
    hint = "Point RATELIMIT_USE_CACHE at an alias whose BACKEND is 'django_redis.cache.RedisCache'."
    return [Error(f"RATELIMIT_USE_CACHE: {problem}.", hint=hint, id=BAD_CACHE)]


@register(Tags.caches)
def check_rules(**kwargs: Any) -> list[CheckMessage]:
    """Every rule in `RATELIMIT_RULES` can be understood, and somebody applies them."""
    try:
        rules = settings_rules()
    except ImproperlyConfigured as error:
        return [Error(str(error), hint="See the middleware page of the documentation.", id=BAD_RULE)]
    middleware = list(getattr(settings, "MIDDLEWARE", ()))
    found = _by_session(rules) + _by_user(rules)
    if all(rule.group is not None for rule in rules):
        return found  # There are none, or call sites apply them.
    if MIDDLEWARE not in middleware:
        hint = f"Add '{MIDDLEWARE}' to MIDDLEWARE."
        return [Warning("RATELIMIT_RULES has rules, but nothing applies them.", hint=hint, id=UNUSED_RULES)]
    needs_user = [rule.name for rule in rules if rule.mode != "off" and rule.needs_user]
    if needs_user and AUTHENTICATION not in middleware:
        hint = f"Add '{AUTHENTICATION}' to MIDDLEWARE, in front of '{MIDDLEWARE}'."
        return [Error(f"Rules need the user: {', '.join(needs_user)}.", hint=hint, id=NO_USER)]
    return found


def _by_session(rules: Sequence[Rule]) -> list[CheckMessage]:
    names = ", ".join(rule.name for rule in rules if rule.mode != "off" and rule.needs_session)
    return _no_session(f"Rules: {names}") if names else []


def _no_session(what: str) -> list[CheckMessage]:
    """What is wrong with whatever goes by the session, in this project."""
    if SESSIONS not in getattr(settings, "MIDDLEWARE", ()):
        problem, hint = "of which there is none", f"Add '{SESSIONS}' to MIDDLEWARE, or use the key 'ip'."
    elif str(settings.SESSION_ENGINE).endswith(".signed_cookies"):
        problem = "which clients keep themselves here and can have as often as they like"
        hint = "Use the key 'user_or_ip', or sessions that are kept on the server."
    else:
        return []
    text = f"{what}: the key goes by the session, {problem}, so it counts by the client's address."
    return [Warning(text, hint=hint, id=NO_SESSION)]


def _by_user(rules: Sequence[Rule]) -> list[CheckMessage]:
    return [
        _one_for_all(f"The rule {rule.name!r}", "or say that it is for the audience 'authenticated'")
        for rule in rules
        if rule.mode != "off" and rule.lumps_strangers
    ]


def _one_for_all(what: str, otherwise: str) -> CheckMessage:
    hint = f"Use the key 'user_or_ip', {otherwise}."
    return Warning(
        f"{what} counts all who are not logged in as one: its key goes by the user.", hint=hint, id=ONE_FOR_ALL
    )


@register(Tags.urls)
def check_views(**kwargs: Any) -> list[CheckMessage]:
    """No view that anybody may ask counts all who are not logged in as one, and none goes by sessions there are not."""
    if not getattr(settings, "ROOT_URLCONF", None):
        return []
    found: dict[tuple[str, str], list[CheckMessage]] = {}
    for view in _views(get_resolver().url_patterns):
        for rules, is_open in _limited(view):
            name = f"@ratelimit on {group_of(view)}"
            if is_open and any(rule.lumps_strangers for rule in rules):
                found[name, "user"] = [_one_for_all(name, "or put login_required around it")]
            if any(rule.needs_session for rule in rules):
                found[name, "session"] = _no_session(name)
    return [message for messages in found.values() for message in messages]


def _views(patterns: Sequence[Any]) -> Iterator[Any]:
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from _views(pattern.url_patterns)
        else:
            yield pattern.callback


def _limited(view: Any) -> Iterator[tuple[Sequence[Rule], bool]]:
    """The call sites of a view, and whether they are asked before somebody has to be logged in."""
    cls = getattr(view, "view_class", None)
    methods = [] if cls is None else [getattr(cls, name, None) for name in ("dispatch", *cls.http_method_names)]
    is_for_users = LOGIN_REQUIRED in getattr(settings, "MIDDLEWARE", ()) and getattr(view, "login_required", True)
    # `login_required` leaves this on what it makes. Decorators around that copy it; those inside have it not.
    is_closed = hasattr(view, "login_url")
    # Others ask in `dispatch`, before the methods.
    # Django's AccessMixin by what it has: to import it, django.contrib.auth would have to be installed.
    asks = any(hasattr(cls, name) for name in ("handle_no_permission", "permission_classes"))
    is_gated = cls is not None and (is_closed or asks)
    for function in (view, *methods):
        stack = getattr(function, "_ratelimits", None)
        if stack is not None:
            is_inside = is_closed and not hasattr(stack.checker, "login_url")
            is_method = function is not view and function.__name__ != "dispatch"
            yield stack.rules, not (is_for_users or is_inside or (is_gated and is_method))


@register(Tags.caches)
def check_throttle_rates(**kwargs: Any) -> list[CheckMessage]:
    """Every rate of DRF's settings can be understood, where throttles of ours go by them."""
    hint = "Write '100/d', '10/15m', None, or a dict of these by method."
    return [Error(problem, hint=hint, id=BAD_THROTTLE_RATE) for _, problem in _bad_throttle_rates()]


def _drf(name: str, *kinds: type) -> Any:
    """A setting of DRF's, or None where it is not of that kind."""
    drf = getattr(settings, "REST_FRAMEWORK", None)
    value = drf.get(name) if isinstance(drf, dict) else None
    return value if isinstance(value, kinds) else None


def _default_throttles() -> Sequence[Any]:
    return _drf("DEFAULT_THROTTLE_CLASSES", list, tuple) or ()


def _bad_throttle_rates() -> list[tuple[Any, str]]:
    """Scopes of DRF's settings, and what is wrong with their rates."""
    ours = [path for path in _default_throttles() if str(path).startswith("django_ratelimit_lua.")]
    rates = _drf("DEFAULT_THROTTLE_RATES", dict) if ours else None
    found: list[tuple[Any, str]] = []
    for scope, rate in (rates or {}).items():
        for method, one in rate.items() if isinstance(rate, dict) else (("*", rate),):
            try:
                _ = method == "*" or method_name(method)
                _ = one is None or Rate.parse(one)
            except LimitError as error:
                found.append((scope, f"REST_FRAMEWORK['DEFAULT_THROTTLE_RATES']: scope {scope!r}: {error}."))
    return found


@register(Tags.urls)
def check_throttles(**kwargs: Any) -> list[CheckMessage]:
    """No throttle of ours lacks its rate, in DRF's settings or on a view: every request would be an error."""
    wanted: dict[tuple[Any, Any], None] = {}
    for path in _default_throttles():
        with suppress(ImproperlyConfigured):  # DRF says it, to whoever imports the first view.
            wanted[callables.find(path, "Throttle") if isinstance(path, str) else path, None] = None
    for view in _views(get_resolver().url_patterns) if getattr(settings, "ROOT_URLCONF", None) else ():
        given = getattr(view, "initkwargs", None) or {}
        drf_view = getattr(view, "cls", None)
        for throttle in given.get("throttle_classes") or getattr(drf_view, "throttle_classes", None) or ():
            attribute = getattr(throttle, "scope_attr", "")
            wanted[throttle, given.get(attribute) or getattr(drf_view, attribute, None)] = None
    said = {scope for scope, _ in _bad_throttle_rates()}
    problems = {_throttle_problem(throttle, scope, said) for throttle, scope in wanted}
    hint = "Name the scope in REST_FRAMEWORK['DEFAULT_THROTTLE_RATES'], with None for no limit."
    return [Error(f"{problem}.", hint=hint, id=BAD_THROTTLE) for problem in sorted(problems - {""})]


def _throttle_problem(throttle: Any, scope: Any, said: Collection[Any]) -> str:
    """Why a request could not be throttled so; empty where it could, where it is not ours, and where it is `said`."""
    throttling = sys.modules.get(f"{__package__}.throttling")  # Where nobody has imported it, none is ours.
    if throttling is None or not isinstance(throttle, type) or not issubclass(throttle, throttling.SimpleRateThrottle):
        return ""
    if (scope or getattr(throttle, "scope", None)) in said:
        return ""
    try:
        made = throttle()  # As DRF makes one for each request.
        if issubclass(throttle, throttling.ScopedRateThrottle) and scope:
            made.scope = scope
            made.rate = made.get_rate()
        for rate in made.rate.values() if isinstance(made.rate, Mapping) else (made.rate,):
            _ = rate == () or made.parse_rate(rate)  # A throttle that learns its rate from the view has none yet.
    except ImproperlyConfigured as error:
        return str(error)
    except Exception:
        return ""  # A throttle of the project's own, which asks for more than is here.
    return ""


@register(Tags.caches)
def check_paths(**kwargs: Any) -> list[CheckMessage]:
    """Every key, rate and cost given by a dotted path can be imported."""
    found: list[CheckMessage] = []
    if getattr(settings, "ROOT_URLCONF", None):
        list(_views(get_resolver().url_patterns))  # What views name is known when they are imported.
    with suppress(ImproperlyConfigured):  # `check_rules` says it.
        settings_rules()  # What rules name is known when they are read; nobody may have done that yet.
    for path, purpose in list(callables.known.items()):  # Importing may make more of them known.
        try:
            callables.find(path, purpose)
        except ImproperlyConfigured as error:
            found.append(Error(f"{error}.", hint="Name a callable that takes (group, request).", id=BAD_PATH))
    return found


@register(Tags.caches, deploy=True)
def check_proxies(**kwargs: Any) -> list[CheckMessage]:
    """It is said whether a proxy stands before the site: if one does and is not trusted, all visitors share a count."""
    try:
        if conf.TRUSTED_PROXIES is not None or conf.IP_META_KEY is not None:
            return []
    except ImproperlyConfigured:
        return []  # `check_settings` says it.
    signs = ("SECURE_PROXY_SSL_HEADER", "USE_X_FORWARDED_HOST", "USE_X_FORWARDED_PORT")
    told = [name for name in signs if getattr(settings, name, None)]
    why = f" ({', '.join(told)} says that one stands before this site)" if told else ""
    hint = "Set it to the networks of your proxies or to their number, or to 0 where none stands before this site."
    message = f"RATELIMIT_TRUSTED_PROXIES is not set: all who come through one proxy share one count{why}."
    return [Warning(message, hint=hint, id=NO_PROXIES)]


@register(Tags.caches)
def check_script_name(**kwargs: Any) -> list[CheckMessage]:
    """No rule's path begins with `FORCE_SCRIPT_NAME`, which is no part of the path that rules and URLs match."""
    script = str(getattr(settings, "FORCE_SCRIPT_NAME", None) or "").rstrip("/")
    try:
        rules = settings_rules() if script else ()
    except ImproperlyConfigured:
        return []  # Which is said already.
    below = [rule.name for rule in rules if any(path.startswith(f"{script}/") for path in rule.paths)]
    if not below:
        return []
    hint = f"Write the paths as the URLconf has them, without {script}."
    message = f"Rules have paths that begin with FORCE_SCRIPT_NAME, and so match nothing: {', '.join(below)}."
    return [Warning(message, hint=hint, id=SCRIPT_NAME)]


@register(Tags.database)
def check_migrated(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """The tables of rules are there. As every check that asks a database, only where one is named: `--database`."""
    if not databases or primary() not in databases or not (problem := migration_problem()):
        return []
    return [
        Warning(problem, hint="Without the app in INSTALLED_APPS, only rules of the settings apply.", id=NOT_MIGRATED)
    ]


@register(Tags.database)
def check_published(databases: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """What is published is of this database, and whoever overrides are about is found by the keys that are known.

    With `manage.py check --database default`, and before migrations. Says nothing where a server does not answer.
    """
    using = primary()
    if using not in (databases or ()):
        return []
    found: list[CheckMessage] = []
    try:
        own = RateLimitRevision.read(using).database
        by_key = values_by_key(using)
        owner = published_at(provider.rules_key()).database
    except (DatabaseError, StoreError, ImproperlyConfigured):
        return []  # Not migrated yet, or not there: others say so.
    if owner not in ("", own):
        prefix, whose = conf.CACHE_PREFIX.decode(), f"of the database {owner}, ours is {own or 'new'}"
        message = f"The rules under RATELIMIT_CACHE_PREFIX {prefix!r} are {whose}."
        found.append(Warning(message, hint=provider.REMEDY, id=OTHER_SITE))
    known = secrets_by_id()
    lost = sum(count for key, count in by_key.items() if key not in known)
    if lost:
        message = f"{lost} overrides for values of fields find nobody: the key of their digests is not known any more."
        hint = "Put it into SECRET_KEY_FALLBACKS or RATELIMIT_KEY_SECRET_FALLBACKS, or enter the values anew."
        found.append(Warning(message, hint=hint, id=LOST_VALUES))
    earlier = sum(count for key, count in by_key.items() if key in known)
    if earlier:
        message = f"{earlier} overrides for values of fields are found by an earlier key alone."
        hint = "Enter their values anew before it is taken out of the fallbacks."
        found.append(Info(message, hint=hint, id=EARLIER_KEY))
    return found
