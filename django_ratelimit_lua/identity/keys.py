"""What a `key` means: how an identity is read from a request.

A value that is not there (no such header, nobody logged in) is an identity of its own, apart from the empty value and
from every other key's; all who lack it share it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Union, cast

from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest

from ..dotted import lazily
from ..limits.rate import LimitError
from ..routes import known_match
from . import Identity
from .address import client_address
from .body import data_field, json_field

KeyFunction = Callable[[str, HttpRequest], Identity | Awaitable[Identity]]
KeyLike = Union[str, KeyFunction, Sequence["KeyLike"]]  # noqa: UP007

ACCEPTED = (
    "ip, user, user_or_ip, session, path, route, get:NAME, post:NAME, header:NAME, cookie:NAME, json:NAME, data:NAME, "
    "kwarg:NAME, a callable (group, request), its dotted path, or a tuple of these"
)


@dataclass(frozen=True, slots=True)
class Key:
    """A way to read an identity from a request.

    `read(group, request, user)` returns an identity or an awaitable of one; `user` is given where `needs_user` is true,
    and the request is resolved where `needs_route` is.
    """

    name: str
    read: Callable[[str, HttpRequest, Any], Any]
    needs_user: bool = False
    needs_route: bool = False


def _session(request: HttpRequest) -> str | None:
    session = getattr(request, "session", None)
    if session is None:
        raise ImproperlyConfigured(
            "The key 'session' needs request.session: add "
            "django.contrib.sessions.middleware.SessionMiddleware to MIDDLEWARE"
        )
    return cast("str | None", session.session_key)


def _route(request: HttpRequest) -> str | None:
    match = known_match(request)
    return match.route if match is not None else None


def _kwarg(request: HttpRequest, name: str) -> str | None:
    match = known_match(request)
    value = match.kwargs.get(name) if match is not None else None
    return None if value is None else str(value)


def _user(group: str, request: HttpRequest, user: Any) -> Identity:
    return ("user", str(user.pk) if user.is_authenticated else None)


def _ip(group: str, request: HttpRequest, user: Any) -> Identity:
    return ("ip", client_address(request).network)


def _user_or_ip(group: str, request: HttpRequest, user: Any) -> Identity:
    return _user(group, request, user) if user.is_authenticated else _ip(group, request, user)


_SIMPLE = {
    "ip": Key("ip", _ip),
    "user": Key("user", _user, needs_user=True),
    "user_or_ip": Key("user_or_ip", _user_or_ip, needs_user=True),
    "session": Key("session", lambda group, request, user: ("session", _session(request))),
    "path": Key("path", lambda group, request, user: ("path", request.path_info)),
    "route": Key("route", lambda group, request, user: ("route", _route(request)), needs_route=True),
}
_FIELDS: dict[str, Callable[[HttpRequest, str], str | None]] = {
    "get": lambda request, name: request.GET.get(name),
    "post": lambda request, name: request.POST.get(name),
    "header": lambda request, name: request.headers.get(name),
    "cookie": lambda request, name: request.COOKIES.get(name),
    "json": json_field,
    "data": data_field,
    "kwarg": lambda request, name: _kwarg(request, name),
}


def _field(kind: str, name: str) -> Key:
    get = _FIELDS[kind]
    return Key(
        f"{kind}:{name}",
        lambda group, request, user: (kind, name, get(request, name)),
        needs_route=kind == "kwarg",
    )


def _called(function: Callable[..., Any], name: str) -> Key:
    return Key(name, lambda group, request, user: function(group, request))


async def _gathered(values: list[Any]) -> tuple[Any, ...]:
    return tuple([await value if isinstance(value, Awaitable) else value for value in values])


def _joined(keys: tuple[Key, ...]) -> Key:
    def read(group: str, request: HttpRequest, user: Any) -> Any:
        values = [key.read(group, request, user) for key in keys]
        return _gathered(values) if any(isinstance(value, Awaitable) for value in values) else tuple(values)

    return Key(
        "+".join(key.name for key in keys),
        read,
        needs_user=any(key.needs_user for key in keys),
        needs_route=any(key.needs_route for key in keys),
    )


def compile_key(key: KeyLike) -> Key:
    """What a key means. Raises `LimitError` with the accepted forms.

    >>> compile_key(("ip", "post:username")).name
    'ip+post:username'
    >>> compile_key("id")
    Traceback (most recent call last):
    ...
    django_ratelimit_lua.limits.rate.LimitError: Unknown key 'id'; use ip, user, ...
    """
    if callable(key):
        name = getattr(key, "__qualname__", type(key).__qualname__)
        return _called(key, f"{getattr(key, '__module__', type(key).__module__)}.{name}")
    if isinstance(key, str):
        if key in _SIMPLE:
            return _SIMPLE[key]
        kind, colon, name = key.partition(":")
        if colon and kind in _FIELDS and name:
            return _field(kind, name)
        if not colon and "." in key:
            return _called(lazily(key, "Key"), key)
    elif isinstance(key, (tuple, list)) and key:
        return _joined(tuple(map(compile_key, key)))
    raise LimitError(f"Unknown key {key!r}; use {ACCEPTED}", "key")


def user_missing() -> ImproperlyConfigured:
    """The error for a key that needs the user where no middleware sets it."""
    return ImproperlyConfigured(
        "This key needs request.user: add django.contrib.auth.middleware.AuthenticationMiddleware to MIDDLEWARE, "
        "or use the key 'ip'"
    )
