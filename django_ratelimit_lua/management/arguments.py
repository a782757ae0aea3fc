"""Arguments of commands that describe a request, or the subject of an override."""

from __future__ import annotations

import datetime
import json
from argparse import Action, ArgumentError, ArgumentParser, Namespace
from collections import defaultdict
from collections.abc import Callable, Sequence
from http.cookies import CookieError
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes, urlencode

from django.apps import apps
from django.conf import settings
from django.contrib.auth.models import AnonymousUser, User
from django.core.management.base import CommandError
from django.http import HttpRequest

from ..conf import conf
from ..identity.address import parse_address, parse_network
from ..identity.fields import URLENCODED
from ..identity.keys import registered_keys
from ..identity.request_state import request_state
from ..limits.rate import SECOND, LimitError, duration, time_us
from ..operations.explain import Explanation
from ..operations.formatting import local_moment
from ..operations.subjects import Subject, find_user
from .verbs import VerbOptions

if TYPE_CHECKING:
    from django.test import RequestFactory

_FIELDS = {
    "header": ("header", ":", "may be repeated"),
    "cookie": ("cookie", "=", "may be repeated"),
    "query": ("get", "=", "a parameter of the query; may be repeated"),
    "field": ("post", "=", "a field of a form; may be repeated"),
    "json": ("json", "=", "a field of a JSON body (user.name: a nested one); may be repeated"),
    "key": ("", "=", "a key of RATELIMIT_KEYS; may be repeated"),
}
"""By option: the kind of the field in a key (empty: it is a key), the separator of name and value,
and the help.
"""

Fields = Sequence[tuple[str, str]]
"""Values that a client sends, in headers, cookies, the query and the body, and values of registered
keys: `[("header:X-API-Key", "k"), ("get:q", "x"), ("post:username", "ada"), ("tenant", "acme")]`.
"""


class StoreOnce(Action):
    """Stores a value, like argparse's `store`. A repeated option is an error."""

    is_given = False
    """Whether the value was given. A parser parses only one command line."""

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: Any, option: str | None = None
    ) -> None:
        if option is not None and self.is_given:
            raise ArgumentError(self, "is given twice; give it once")
        self.is_given = True
        setattr(namespace, self.dest, values)


def add_subject(parser: ArgumentParser) -> None:
    """Add the options that name the subject."""
    group = parser.add_argument_group("client", "Options that name the client.")
    group.add_argument("--user", help="name or primary key")
    group.add_argument("--ip", help="address or network")
    group.add_argument(
        "--digest", help="digest of a client, as on pages and in the log: 32 hexadecimal digits"
    )
    _add_fields(group.add_argument)


def _add_fields(add: Callable[..., object]) -> None:
    """Add an option for each kind of field, by argparse's `add_argument`."""
    for option, (_kind, mark, text) in _FIELDS.items():
        add(f"--{option}", action="append", default=[], metavar=f"NAME{mark}VALUE", help=text)


def add_request(parser: ArgumentParser) -> None:
    """Add the options that describe a request."""
    parser.add_argument("--path", help="path and query, for example /api/?q=x (/)")
    parser.add_argument("--method", default="GET", type=str.upper)
    parser.add_argument("--host", help="host name")
    parser.add_argument("--user", help="name or primary key; default: no user is signed in")
    parser.add_argument("--ip", help="client address (127.0.0.1)")
    _add_fields(parser.add_argument)


def add_length(parser: ArgumentParser) -> None:
    """Add the length of a ban or an override, or its absence."""
    group = parser.add_mutually_exclusive_group()
    text = "30m, 1h, 7d … (default: %(default)s)"
    group.add_argument("--for", dest="period", default="1h", metavar="TIME", help=text)
    group.add_argument("--for-good", action="store_true", help="without an end")


def parse_seconds(option: str, period: str) -> int:
    """Return the seconds of a duration such as 30m.

    Raises:
        CommandError: The duration is invalid. The message begins with the option.
    """
    try:
        return time_us(duration(period)) // SECOND
    except LimitError as error:
        raise CommandError(f"{option} {error}") from None


def format_moment(moment: datetime.datetime | None) -> str:
    """Return a moment in the current time zone, with the zone's name; empty for None."""
    if moment is None:
        return ""
    return f"{local_moment(moment):%Y-%m-%d %H:%M:%S %Z}".rstrip()


def require_urlconf() -> None:
    """Raise `CommandError` if the settings have no `ROOT_URLCONF`."""
    if not getattr(settings, "ROOT_URLCONF", None):
        raise CommandError("set ROOT_URLCONF: this command needs the URLs of the site")


def parse_request(options: VerbOptions) -> HttpRequest:
    """Return the request that the options describe. Raises `CommandError`."""
    address = options["ip"]
    if address is not None and parse_address(address) is None:
        raise CommandError(f"--ip {address!r} is not an address")
    try:
        return build_request(
            options["path"] or "/",
            options["method"],
            address,
            _parse_user(options["user"]),
            host=options["host"],
            fields=_parse_fields(options),
        )
    except LimitError as error:
        raise CommandError(str(error)) from error


def parse_subject(options: VerbOptions) -> Subject:
    """Return the one subject that the options name. Raises `CommandError`."""
    subjects = [Subject(field=field, value=value) for field, value in _parse_fields(options)]
    address = options["ip"]
    if address is not None:
        try:
            parse_network(address)
        except ValueError:
            raise CommandError(f"--ip {address!r} is not an address or network") from None
        subjects.append(Subject(address=address))
    if options["user"] is not None:
        subjects.append(Subject(_parse_user(options["user"])))
    if options["digest"]:
        subjects.append(Subject(digest=options["digest"]))
    if len(subjects) != 1:
        names = ", ".join(("--user", "--ip", "--digest", *(f"--{option}" for option in _FIELDS)))
        raise CommandError(
            f"name exactly one subject, with one of {names}; make one override for each"
        )
    return subjects[0]


def _parse_fields(options: VerbOptions) -> list[tuple[str, str]]:
    """Return the fields that the options name, each with its value. Raises `CommandError`."""
    fields = []
    for option, (kind, mark, _help) in _FIELDS.items():
        for text in options[option]:
            name, _mark, value = map(str.strip, text.partition(mark))
            if not name or mark not in text:
                raise CommandError(f"--{option} {text!r}: use NAME{mark}VALUE")
            if not kind and name not in registered_keys():
                raise CommandError(
                    f"--key {name!r} is not in RATELIMIT_KEYS; known keys: "
                    f"{', '.join(registered_keys()) or 'none'}"
                )
            fields.append((f"{kind}:{name}".removeprefix(":"), value))
    return fields


def _parse_user(name: str | None) -> User | None:
    """Return the user that `--user` names; None without the option. Raises `CommandError`."""
    if name is None:
        return None
    user = find_user(name) if name else None
    if user is None:
        raise CommandError(f"--user {name!r}: no user has this name or primary key")
    return user


def require_confirmation(options: VerbOptions, warnings: Sequence[str]) -> None:
    """Raise `CommandError` if there are warnings, unless `--confirm` is given."""
    if warnings and not options["confirm"]:
        raise CommandError(
            "\n".join([*warnings, "Nothing was changed. Use --confirm to change it anyway."])
        )


def describe_decision(explanation: Explanation) -> str:
    """Return the decision about the next request like an explained one, in a sentence."""
    if not explanation.decision.allowed:
        return "The next request like this would be refused."
    if explanation.notes:
        return "The next request like this would be allowed, as far as known."
    return "The next request like this would be allowed."


def build_request(
    path: str = "/",
    method: str = "GET",
    address: str | None = None,
    user: User | None = None,
    *,
    host: str | None = None,
    fields: Fields = (),
) -> HttpRequest:
    """Return a request that matches a description.

    Args:
        path: Its path, with a query.
        method: Its HTTP method.
        address: Its address; None: that of a test request.
        user: The signed-in user.
        host: Its host; None: that of a test request.
        fields: The values that the client sends.

    Raises:
        LimitError: The request is impossible.
    """
    sent: dict[str, list[tuple[str, str]]] = defaultdict(list)
    key_values = {}
    for field, value in fields:
        kind, _colon, name = field.partition(":")
        if field in registered_keys():
            key_values[field] = value
        else:
            sent[kind].append((name, value))
    if sent["json"] and sent["post"]:
        raise LimitError("A body cannot have both form fields and JSON fields")
    factory = _make_factory(sent["header"], sent["cookie"])
    body, content_type = _make_body(sent["post"], sent["json"])
    meta = _make_meta(path, sent["get"], address, host)
    request: HttpRequest = factory.generic(method, "/", body, content_type, **meta)
    request.session = _open_session(request)
    request.user = user or AnonymousUser()
    request_state(request).key_values |= key_values
    return request


def _open_session(request: HttpRequest) -> Any:
    """Return the session that the cookie of a request names, or a new one."""
    key = None
    if apps.is_installed("django.contrib.sessions"):  # Otherwise there may be no table of sessions.
        key = request.COOKIES.get(settings.SESSION_COOKIE_NAME)
    return import_module(settings.SESSION_ENGINE).SessionStore(key)


def _make_factory(headers: Fields, cookies: Fields) -> RequestFactory:
    """Return a factory of requests with these headers and cookies. May raise `LimitError`."""
    from django.test import RequestFactory  # Which imports Django's test cases.

    factory = RequestFactory(headers=dict(headers))
    for name, value in cookies:
        try:
            factory.cookies[name] = value
        except CookieError as error:
            raise LimitError(f"cookie {name!r}: {error}") from error
    return factory


def _make_meta(
    path: str, parameters: Fields, address: str | None, host: str | None
) -> dict[str, Any]:
    """Return `META` of a request, as a server sets it: a path may be one that no URL can have."""
    bare_path, _mark, query = path.partition("?")
    queries = [text for text in (query, urlencode(parameters)) if text]
    meta: dict[str, Any] = {
        "PATH_INFO": unquote_to_bytes(bare_path.encode(errors="replace")).decode("latin-1"),
        "QUERY_STRING": "&".join(queries).encode(errors="replace").decode("latin-1"),
    }
    if host is not None:
        meta["HTTP_HOST"] = host
    if address is not None:
        meta["REMOTE_ADDR"] = address
        if isinstance(conf.IP_META_KEY, str):
            meta[conf.IP_META_KEY] = address
    return meta


def _make_body(form_fields: Fields, json_fields: Fields) -> tuple[bytes, str]:
    """Return the body and its content type. Raises `LimitError` if JSON fields contradict."""
    if not json_fields:
        return urlencode(form_fields).encode(), URLENCODED
    body: dict[str, Any] = {}
    for path, value in json_fields:
        *outer, name = path.split(".")
        parent = body
        for part in outer:
            parent = parent.setdefault(part, {})
            if not isinstance(parent, dict):
                raise LimitError(f"json:{path}: another field sets {part} to text")
        parent[name] = value
    return json.dumps(body).encode(), "application/json"
