"""Keys: how the identity of a client is read from a request.

Every key is a `Key`: the built-in ones (`BUILT_IN`), those that a site registers in
`RATELIMIT_KEYS`, and those of fields that a client sends (`FIELDS`, such as `header:X-API-Key`).

A missing value (no such header, no signed-in user) is an identity of its own for each key, shared
by all requests without the value. An unknown value (a body that is not read, a session that does
not exist) counts as the client's address, so it neither creates a new count nor uses up the count
of all other clients.

The identity of all clients together is `None`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, NamedTuple, Union
from uuid import UUID

from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.module_loading import import_string
from django.utils.translation import gettext_lazy, gettext_noop

from ..conf import conf, on_change
from ..conf.values import accepts, dotted_name, import_lazily
from ..limits.rate import LimitError
from . import Identity
from .address import client_address, read_ip, subnet
from .fields import (
    UNREAD,
    Value,
    cookie_value,
    data_value,
    form_value,
    header_value,
    json_value,
    normalize_number,
    normalize_text,
    query_value,
)
from .request_state import known_match, request_state, resolve_route
from .session import session_key

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser, User

KeyFunction = Callable[[str, HttpRequest], Identity | Awaitable[Identity]]
KeyLike = Union[str, KeyFunction, Sequence["KeyLike"]]  # noqa: UP007

ALL_CALLERS = "all"
"""The key that counts all clients together."""
EXACT = "exact:"
"""Prefix of a field to compare exactly: its value is not normalized."""
INT = "int:"
"""Prefix of a field that is a whole number: all spellings of a number are one value."""
BOOLEAN_NUMBERS = {"true": "1", "false": "0"}
"""What Python's `int` makes of the booleans of JSON."""
PREFIXES = (EXACT, INT)


@dataclass(frozen=True, slots=True)
class Key:
    """One way to identify a client.

    >>> tenant = Key("tenant", lambda request: request.get_host().partition(".")[0], label="tenant")

    Attributes:
        name: Its name at call sites, in rules and in files.
        read: For a key in `RATELIMIT_KEYS`: a function `read(request)`, or `read(request, user)`
            with `needs_user`. It returns text, an integer, a UUID, or None if the request has no
            value. The `read` of other keys is called with the group of the call site, the request
            and the user, and returns an identity.
        label: Its name for operators.
        mask: A function that shortens a value for pages on which identities are masked. Default:
            the first letters.
        needs_user: Whether it needs `request.user`.
        blocks: Whether it may block, for example by a query. Then it runs in a thread under `async
            def`.
        known_to_proxies: Whether it can be read from a request that only has a method, a host, a
            path, headers and an address, such as those that proxies send to the gateway and those
            in access logs.
        needs_session: Whether it needs `request.session`.
        needs_route: Whether it needs the resolved URL pattern.
        needs_body: Whether it reads the body.
        lumps_strangers: Whether it has one identity for all requests without a signed-in user.
        functions: The names of the functions of the project that it calls.
    """

    name: str
    read: Callable[..., Any]
    label: str | Promise = ""
    mask: Callable[[str], str] | None = None
    needs_user: bool = False
    blocks: bool = False
    known_to_proxies: bool = False
    needs_session: bool = False
    needs_route: bool = False
    needs_body: bool = False
    lumps_strangers: bool = False
    functions: tuple[str, ...] = ()


def _read_kwarg(request: HttpRequest, name: str) -> Value:
    """Return a part of the URL as text; None if the route has no such part."""
    match = known_match(request)
    if match is None or match.kwargs.get(name) is None:
        return None
    return str(match.kwargs[name])


def _read_user(group: str, request: HttpRequest, user: User | AnonymousUser) -> Identity:
    if not user.is_authenticated:
        return ("user", None)
    return ("user", str(user.pk))


def _read_subnet(group: str, request: HttpRequest, user: object) -> Identity:
    address = client_address(request).address
    return ("subnet", None if address is None else subnet(address))


def _read_session(group: str, request: HttpRequest, user: object) -> Identity:
    """Return the session, or the address if the session is unknown."""
    key = session_key(request)
    if key is None:
        return read_ip(group, request, user)
    return ("session", key)


def _read_user_or_ip(group: str, request: HttpRequest, user: User | AnonymousUser) -> Identity:
    if not user.is_authenticated:
        return read_ip(group, request, user)
    return _read_user(group, request, user)


def _read_path(group: str, request: HttpRequest, user: object) -> Identity:
    return ("path", request.path_info)


def _read_route(group: str, request: HttpRequest, user: object) -> Identity:
    return ("route", getattr(known_match(request), "route", None))


BUILT_IN = {
    key.name: replace(key, known_to_proxies=True)  # As far as the other attributes allow.
    for key in (
        Key(ALL_CALLERS, lambda group, request, user: None, gettext_lazy("all clients together")),
        Key("ip", read_ip, gettext_lazy("address")),
        Key("subnet", _read_subnet, gettext_lazy("subnet")),
        Key("user", _read_user, gettext_lazy("user"), needs_user=True, lumps_strangers=True),
        Key("user_or_ip", _read_user_or_ip, gettext_lazy("user or address"), needs_user=True),
        Key("session", _read_session, gettext_lazy("session"), needs_session=True),
        Key("path", _read_path, gettext_lazy("path"), lumps_strangers=True),
        Key("route", _read_route, gettext_lazy("route"), needs_route=True, lumps_strangers=True),
    )
}
"""The keys that need no name of a field."""


class FieldKind(NamedTuple):
    """A kind of fields, such as `header:NAME`.

    - `read`: returns the value of a field;
    - `label`: its name for operators, with `%s` for the name of the field;
    - `in_body`: whether the field is in the body;
    - `is_exact`: whether its values are never normalized.
    """

    read: Callable[[HttpRequest, str], Value]
    label: Any
    in_body: bool = False
    is_exact: bool = False


FIELDS: Mapping[str, FieldKind] = {
    "header": FieldKind(header_value, gettext_lazy("header %s")),
    # The site has written a cookie, and only the site reads it.
    "cookie": FieldKind(cookie_value, gettext_lazy("cookie %s"), is_exact=True),
    "get": FieldKind(query_value, gettext_lazy("query parameter %s")),
    "post": FieldKind(form_value, gettext_lazy("form field %s"), in_body=True),
    "json": FieldKind(json_value, gettext_lazy("JSON field %s"), in_body=True),
    "data": FieldKind(data_value, gettext_lazy("form or JSON field %s"), in_body=True),
    "device": FieldKind(data_value, gettext_lazy("account in %s or its browser"), in_body=True),
    "kwarg": FieldKind(_read_kwarg, gettext_lazy("part of the URL %s")),
}
FIELD_FORMS = tuple(f"{kind}:NAME" for kind in FIELDS)
RESERVED = frozenset({*BUILT_IN, *FIELDS, "exact", "int", "digest", "entry", "network"})
"""Names that a registered key cannot have: other identities begin with them."""


@cache
def registered_keys() -> Mapping[str, Key]:
    """Return the keys of `RATELIMIT_KEYS` by name. Raises `ImproperlyConfigured`."""
    return {name: _compile_registered(name, source) for name, source in conf.KEYS.items()}


on_change(("RATELIMIT_KEYS",), registered_keys.cache_clear)


def _compile_registered(name: str, source: Any) -> Key:
    """Return the key for an entry of `RATELIMIT_KEYS`. Raises `ImproperlyConfigured`."""
    setting = f"RATELIMIT_KEYS[{name!r}]"
    if name in RESERVED:
        raise ImproperlyConfigured(f"{setting}: this name is reserved; choose another one")
    key = _load_registered(name, source, setting)
    _raise_if_uncallable(setting, key)

    def read(group: str, request: HttpRequest, user: object) -> Identity:
        supplied = request_state(request).key_values
        if name in supplied:
            value = supplied[name]
        elif key.needs_user:
            value = key.read(request, user)
        else:
            value = key.read(request)
        return registered_identity(name, value)

    return replace(key, name=name, read=read, label=key.label or name.replace("_", " "))


def _load_registered(name: str, source: Any, setting: str) -> Key:
    """Return the key that is a value of a setting: a function, a `Key`, or a path of one."""
    target = source
    if isinstance(source, str):
        try:
            target = import_string(source)
        except Exception as error:  # An import runs code, which may raise anything.
            raise ImproperlyConfigured(
                f"{setting}: {source!r} cannot be imported: {error}"
            ) from error
    key = target if isinstance(target, Key) else Key(name, target)
    if not callable(key.read):
        raise ImproperlyConfigured(
            f"{setting} is {target!r}; use a function (request), a Key, or a dotted path of one"
        )
    return key


def _raise_if_uncallable(setting: str, key: Key) -> None:
    """Raise `ImproperlyConfigured` if a function in `RATELIMIT_KEYS` cannot be called."""
    if iscoroutinefunction(key.read):
        raise ImproperlyConfigured(
            f"{setting} is a coroutine function; use a plain one, and register it as Key(..., "
            "blocks=True) if it queries the database"
        )
    arguments = ["request"]
    if key.needs_user:
        arguments.append("user")
    if not accepts(key.read, *arguments):
        form = ", ".join(arguments)
        raise ImproperlyConfigured(f"{setting}: {dotted_name(key.read)} must accept ({form})")


def registered_identity(name: str, value: object) -> tuple[str, str | None]:
    """Return the identity for a value of a registered key: its name, and the value as text.

    The value is None if it is missing or empty. Raises `LimitError` if the value has another type.
    """
    if value is None or value == "":
        return (name, None)
    if not isinstance(value, (str, int, UUID, Promise)):
        kind = type(value).__name__
        raise LimitError(
            f"RATELIMIT_KEYS[{name!r}] returned a {kind}; return text, an integer, a UUID or None",
            "key",
        )
    return (name, str(value))


def split_prefix(field: str) -> tuple[str, str]:
    """Split a field into one of `PREFIXES`, or an empty text, and the field without it.

    >>> split_prefix("int:post:account"), split_prefix("post:name")
    (('int:', 'post:account'), ('', 'post:name'))
    """
    prefix = next(filter(field.startswith, PREFIXES), "")
    return prefix, field.removeprefix(prefix)


def split_field(field: str) -> tuple[str, str] | None:
    """Split a field into its kind and its name.

    Return None if the text is not a field. For a registered key, the kind is the key and the name
    is empty.

    >>> split_field("header:X-API-Key"), split_field("exact:post:name"), split_field("ip")
    (('header', 'X-API-Key'), ('post', 'name'), None)
    """
    if field in registered_keys():
        return field, ""
    _prefix, field = split_prefix(field)
    kind, _, name = field.partition(":")
    if kind not in FIELDS or not name:
        return None
    return kind, name


def field_identity(field: str, value: str | None) -> tuple[str | None, ...]:
    """Return the identity for a value of a field: its kind, its name, and the normalized value.

    The value is None if it is missing or blank. Raises `LimitError` for an invalid field.

    >>> field_identity("post:name", " Ada "), field_identity("exact:post:name", "Ada")
    (('post', 'name', 'ada'), ('post', 'name', 'Ada'))
    >>> field_identity("int:post:account", "007"), field_identity("int:post:account", "seven")
    (('post', 'account', '7'), ('post', 'account', 'INVALID'))
    """
    parts = split_field(field)
    if parts is None:
        raise _unknown_field_error(field)
    kind, name = parts
    prefix, _ = split_prefix(field)
    if not name:
        return registered_identity(kind, value)
    if value is None:
        return (kind, name, None)
    if prefix == INT:
        return (kind, name, _number_value(kind, value))
    if prefix == EXACT or FIELDS[kind].is_exact:
        return (kind, name, value)
    return (kind, name, normalize_text(value) or None)


def _number_value(kind: str, value: str) -> str | None:
    """Return the one spelling of a number in a field of this kind; None if the field is blank."""
    if not value.strip():
        return None
    if kind in ("json", "data"):
        value = BOOLEAN_NUMBERS.get(value, value)
    return normalize_number(value)


def _field_key(field: str, kind: str, name: str) -> Key:
    """Return the key of a field, which consists of this kind and this name."""
    field_kind = FIELDS[kind]
    is_kwarg = kind == "kwarg"
    is_device = kind == "device"
    if is_device:
        # Imported here, because it needs django.contrib.auth, and from then on sets cookies.
        from .device import find_device

    def read(group: str, request: HttpRequest, user: object) -> Identity:
        value = field_kind.read(request, name)
        if value is UNREAD:
            return read_ip(group, request, user)
        identity = field_identity(field, value)
        if is_device and value is not None:
            account_and_device = find_device(request, value)
            if account_and_device:
                return (kind, name, *account_and_device)
        return identity

    return Key(
        field,
        read,
        field_kind.label % name,
        blocks=is_device,
        known_to_proxies=True,
        needs_route=is_kwarg,
        needs_body=field_kind.in_body,
        lumps_strangers=is_kwarg,
    )


def read_fields(field: str, request: HttpRequest) -> list[tuple[str | None, ...]]:
    """Return the identity of a request by a field; an empty list if it is missing or was not read.

    Raises `LimitError` for an invalid field. Blocks if it is a registered key whose
    function blocks.
    """
    parts = split_field(field)
    if parts is None:
        raise _unknown_field_error(field)
    kind, name = parts
    if not name:
        key = registered_keys()[kind]
        user = getattr(request, "user", None)
        if key.needs_user and user is None:
            raise user_missing_error()
        return drop_missing(key.read("", request, user))
    if kind == "kwarg":
        resolve_route(request)  # `_read_kwarg` reads the result.
    value = FIELDS[kind].read(request, name)
    if value is UNREAD:
        return []
    return drop_missing(field_identity(field, value))


def drop_missing(*identities: tuple[str | None, ...]) -> list[tuple[str | None, ...]]:
    """Return the identities that have a value, which is their last item."""
    return [identity for identity in identities if identity[-1] is not None]


def _unknown_field_error(field: str) -> LimitError:
    names = ", ".join([*FIELD_FORMS, *registered_keys()])
    return LimitError(f"Unknown field {field!r}; use {names}", "field")


def operator_label(name: str) -> str:
    """Return the name of a key for operators. A field is returned unchanged.

    >>> operator_label("ip"), operator_label("post:username")
    ('address', 'post:username')
    """
    key = BUILT_IN.get(name) or registered_keys().get(name)
    if key is None:
        return name
    return str(key.label)


def _function_key(function: Callable[..., object], name: str) -> Key:
    """Return the key whose identity is what a function of the project returns."""

    def read(group: str, request: HttpRequest, user: object) -> object:
        return function(group, request)

    return Key(name, read, name, known_to_proxies=True, functions=(name,))


async def _await_values(values: list[object]) -> tuple[object, ...]:
    """Return the values, of which some may be awaitable."""
    return tuple([await value if isinstance(value, Awaitable) else value for value in values])


def _join_keys(keys: tuple[Key, ...]) -> Key:
    """Return the key whose identity consists of those of several keys."""

    def read(group: str, request: HttpRequest, user: object) -> object:
        values = [key.read(group, request, user) for key in keys]
        if any(isinstance(value, Awaitable) for value in values):
            return _await_values(values)
        return tuple(values)

    return Key(
        "+".join(key.name for key in keys),
        read,
        needs_user=any(key.needs_user for key in keys),
        blocks=any(key.blocks for key in keys),
        known_to_proxies=all(key.known_to_proxies for key in keys),
        needs_session=any(key.needs_session for key in keys),
        needs_route=any(key.needs_route for key in keys),
        needs_body=any(key.needs_body for key in keys),
        lumps_strangers=all(key.lumps_strangers for key in keys),
        functions=tuple([name for key in keys for name in key.functions]),
    )


def compile_key(key: KeyLike) -> Key:
    """Return the key of a declaration. Raises `LimitError` with the accepted forms.

    >>> compile_key(("ip", "post:username")).name
    'ip+post:username'
    >>> compile_key("id")
    Traceback (most recent call last):
    ...
    django_ratelimit_lua.limits.rate.LimitError: Unknown key 'id'; use all, ip, subnet, ...
    """
    if callable(key):
        name = dotted_name(key)
        if not accepts(key, "group", "request"):
            raise LimitError(gettext_noop("Key %(key)s must accept (group, request)"), key=name)
        return _function_key(key, name)
    compiled = None
    if isinstance(key, str):
        compiled = _find_named_key(key)
    elif isinstance(key, (tuple, list)) and key:
        compiled = _compile_tuple(key)
    if compiled is None:
        raise _unknown_key_error(key)
    return compiled


def _find_named_key(name: str) -> Key | None:
    """Return the key of a name, a field or a dotted path; None for other text."""
    key = BUILT_IN.get(name) or registered_keys().get(name)
    if key is not None:
        return key
    field = split_field(name)
    if field is not None:
        return _field_key(name, *field)
    if ":" not in name and "." in name:
        return _function_key(import_lazily(name, "Key"), name)
    return None


def _compile_tuple(parts: Sequence[KeyLike]) -> Key:
    """Return the key of a tuple. Raises `LimitError` if 'all' is one of several keys."""
    keys = tuple(map(compile_key, parts))
    if len(keys) == 1 and keys[0].name == ALL_CALLERS:
        return keys[0]
    if any(key.name == ALL_CALLERS for key in keys):
        text = gettext_noop(
            "Key %(key)r: 'all' counts all clients together; use it alone, or remove it"
        )
        raise LimitError(text, "key", key=parts)
    return _join_keys(keys)


def _unknown_key_error(key: object) -> LimitError:
    """Return the error for a key that does not exist, with the accepted forms."""
    names = ", ".join([*BUILT_IN, *FIELD_FORMS])
    site = ", ".join(registered_keys()) or "none yet"
    accepted = (
        f"{names} (with the prefix exact: case-sensitive, with int: a whole number), a key of "
        f"RATELIMIT_KEYS ({site}), a callable (group, request), its dotted path, or a tuple of "
        "these"
    )
    text = gettext_noop("Unknown key %(key)r; use %(accepted)s")
    return LimitError(text, "key", key=key, accepted=accepted)


def user_missing_error() -> ImproperlyConfigured:
    """Return the error for a key that needs the user, if no middleware sets the user."""
    return ImproperlyConfigured(
        "This key needs request.user: add django.contrib.auth.middleware.AuthenticationMiddleware "
        "to MIDDLEWARE, or use the key 'ip'"
    )
