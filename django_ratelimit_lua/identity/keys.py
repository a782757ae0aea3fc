"""Keys: how an identity is read from a request.

A missing value (no such header, no signed-in user) is an identity of its own for each key, shared by all requests that
lack the value. An unknown value (a body that is not read, a session that does not exist) counts as the client's
address, so it neither creates a new count nor uses up that of all others.

The identity of all callers together is `None`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Union

from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.utils.translation import gettext_noop as _

from ..conf.callables import lazily, name_of
from ..limits.rate import LimitError
from . import Identity
from .address import client_address
from .body import UNREAD, Unread, Values, data_field, data_values, form_field, form_values, json_field, json_values
from .routes import known_match, resolved
from .sent import cookie_value, cookie_values, header_value, header_values, query_value, query_values
from .session import session_key
from .text import normalised

KeyFunction = Callable[[str, HttpRequest], Identity | Awaitable[Identity]]
KeyLike = Union[str, KeyFunction, Sequence["KeyLike"]]  # noqa: UP007

ALL_CALLERS = "all"
"""The key that counts every caller together."""
ACCEPTED = (
    "all, ip, user, user_or_ip, session, path, route, get:NAME, post:NAME, header:NAME, cookie:NAME, json:NAME, "
    "data:NAME, kwarg:NAME (with exact: in front: letter by letter), a callable (group, request), its dotted path, or "
    "a tuple of these"
)


@dataclass(frozen=True, slots=True)
class Key:
    """A way to read an identity from a request.

    `read(group, request, user)` returns an identity or an awaitable of one. `user` is passed if `needs_user` is true,
    the session is loaded if `needs_session` is, and the request is resolved if `needs_route` is. `needs_body`: it reads
    a field of the body. `lumps_strangers`: it has one identity for all requests without a signed-in user; `functions`:
    the names of the project's functions that it calls.
    """

    name: str
    read: Callable[[str, HttpRequest, Any], Any]
    needs_user: bool = False
    needs_session: bool = False
    needs_route: bool = False
    needs_body: bool = False
    lumps_strangers: bool = False
    functions: tuple[str, ...] = ()


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


def _session(group: str, request: HttpRequest, user: Any) -> Identity:
    key = session_key(request)
    return _ip(group, request, user) if key is None else ("session", key)


def _user_or_ip(group: str, request: HttpRequest, user: Any) -> Identity:
    return _user(group, request, user) if user.is_authenticated else _ip(group, request, user)


_SIMPLE = {
    ALL_CALLERS: Key(ALL_CALLERS, lambda group, request, user: None),
    "ip": Key("ip", _ip),
    "user": Key("user", _user, needs_user=True, lumps_strangers=True),
    "user_or_ip": Key("user_or_ip", _user_or_ip, needs_user=True),
    "session": Key("session", _session, needs_session=True),
    "path": Key("path", lambda group, request, user: ("path", request.path_info), lumps_strangers=True),
    "route": Key(
        "route", lambda group, request, user: ("route", _route(request)), needs_route=True, lumps_strangers=True
    ),
}
_FIELDS: dict[str, Callable[[HttpRequest, str], str | Unread | None]] = {
    "header": header_value,
    "cookie": cookie_value,
    "get": query_value,
    "post": form_field,
    "json": json_field,
    "data": data_field,
    "kwarg": lambda request, name: _kwarg(request, name),
}
_BODY_KINDS = ("post", "json", "data")
_VALUES: dict[str, Callable[[HttpRequest, str], Values]] = {
    "header": header_values,
    "cookie": cookie_values,
    "get": query_values,
    "post": form_values,
    "json": json_values,
    "data": data_values,
    "kwarg": lambda request, name: (_kwarg(request, name),),
}


EXACT = "exact:"
"""In front of a field: its value counts letter by letter."""
FIELD_KINDS = tuple(_FIELDS)
_ALWAYS_EXACT = ("cookie",)  # The site itself has written it, and only the site can read it.


def split_field(field: str) -> tuple[str, str, bool] | None:
    """Kind, name and whether the value counts letter by letter; None for what is no field.

    >>> split_field("header:X-API-Key"), split_field("exact:post:name"), split_field("ip")
    (('header', 'X-API-Key', False), ('post', 'name', True), None)
    """
    kind, _, name = field.removeprefix(EXACT).partition(":")
    if kind not in _FIELDS or not name:
        return None
    return kind, name, field.startswith(EXACT) or kind in _ALWAYS_EXACT


def field_identity(field: str, value: str | None) -> tuple[str, str, str | None]:
    """The identity by a value of a field. Raises `LimitError` for an invalid field.

    >>> field_identity("post:name", " Ada ") == field_identity("post:name", "ada") == ("post", "name", "ada")
    True
    """
    parts = split_field(field)
    if parts is None:
        raise _no_field(field)
    kind, name, is_exact = parts
    if is_exact or value is None:
        return (kind, name, value)
    return (kind, name, normalised(value) or None)


def _field(field: str, kind: str, name: str) -> Key:
    get = _FIELDS[kind]

    def read(group: str, request: HttpRequest, user: Any) -> Identity:
        value = get(request, name)
        return _ip(group, request, user) if value is UNREAD else field_identity(field, value)

    is_kwarg = kind == "kwarg"
    return Key(field, read, needs_route=is_kwarg, needs_body=kind in _BODY_KINDS, lumps_strangers=is_kwarg)


def read_fields(field: str, request: HttpRequest) -> list[tuple[str, str, str | None]]:
    """The identities of a request by a field: more than one if views may read it in more than one way, none if the
    field is missing or was not read.

    Raises `LimitError` for an invalid field.
    """
    parts = split_field(field)
    if parts is None:
        raise _no_field(field)
    kind, name, _ = parts
    if kind == "kwarg":
        resolved(request)
    values = _VALUES[kind](request, name)
    identities = [field_identity(field, value) for value in values if value is not UNREAD]
    return [identity for identity in identities if identity[-1] is not None]


def _no_field(field: str) -> LimitError:
    return LimitError(f"Unknown field {field!r}; use {', '.join(f'{kind}:NAME' for kind in _FIELDS)}", "field")


def _called(function: Callable[..., Any], name: str) -> Key:
    return Key(name, lambda group, request, user: function(group, request), functions=(name,))


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
        needs_session=any(key.needs_session for key in keys),
        needs_route=any(key.needs_route for key in keys),
        needs_body=any(key.needs_body for key in keys),
        lumps_strangers=all(key.lumps_strangers for key in keys),
        functions=tuple([name for key in keys for name in key.functions]),
    )


def compile_key(key: KeyLike) -> Key:
    """The key of a declaration. Raises `LimitError` with the accepted forms.

    >>> compile_key(("ip", "post:username")).name
    'ip+post:username'
    >>> compile_key("id")
    Traceback (most recent call last):
    ...
    django_ratelimit_lua.limits.rate.LimitError: Unknown key 'id'; use all, ip, user, ...
    """
    if callable(key):
        return _called(key, name_of(key))
    if isinstance(key, str):
        if key in _SIMPLE:
            return _SIMPLE[key]
        field = split_field(key)
        if field is not None:
            return _field(key, field[0], field[1])
        if ":" not in key and "." in key:
            return _called(lazily(key, "Key"), key)
    elif isinstance(key, (tuple, list)) and key:
        keys = tuple(map(compile_key, key))
        if len(keys) > 1 and any(part.name == ALL_CALLERS for part in keys):
            text = _("Key %(key)r: all counts every caller together; use it alone, or leave it out")
            raise LimitError(text, "key", key=key)
        return keys[0] if keys[0].name == ALL_CALLERS else _joined(keys)
    raise LimitError(_("Unknown key %(key)r; use %(accepted)s"), "key", key=key, accepted=ACCEPTED)


def user_missing() -> ImproperlyConfigured:
    """The error for a key that needs the user if no middleware sets it."""
    return ImproperlyConfigured(
        "This key needs request.user: add django.contrib.auth.middleware.AuthenticationMiddleware to MIDDLEWARE, "
        "or use the key 'ip'"
    )
