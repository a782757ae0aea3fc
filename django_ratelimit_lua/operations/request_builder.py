"""A request from a description, and the subjects of overrides in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.cookies import CookieError, SimpleCookie
from importlib import import_module
from typing import Any
from urllib.parse import unquote_to_bytes, urlencode

from django.apps import apps
from django.conf import settings
from django.contrib.auth import get_user, get_user_model
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import ValidationError
from django.http import HttpRequest

from ..conf import conf
from ..identity.body import JSON, URLENCODED
from ..identity.forwarded import parse_network
from ..identity.keys import EXACT, registered_keys
from ..identity.request_state import request_state
from ..limits.rate import LimitError
from ..rules.rule import UNWRITABLE

SENT_KINDS = ("header", "cookie", "get", "post", "json", "data")
"""The kinds of fields that a client sends; `data`: a form field, or a JSON field if there are
others of JSON.
"""
Fields = Sequence[tuple[str, str]]
"""Values that a client sends, and values of registered keys: `[("post:username", "ada"), ("tenant",
"acme")]`.
"""


def build_request(
    path: str = "/",
    method: str = "GET",
    address: str | None = None,
    user: Any = None,
    headers: Mapping[str, str] | None = None,
    *,
    host: str | None = None,
    fields: Fields = (),
) -> HttpRequest:
    """A request like the one described.

    - `address`: its address; of a network, its first address;
    - `user`: the signed-in user; without one, the user of the session in its cookie;
    - `headers`, `fields`: its values; `host`: the host it is for.

    Raises `LimitError` for an impossible request.
    """
    sent: dict[str, list[tuple[str, str]]] = {kind: [] for kind in SENT_KINDS}
    sent["header"] += (headers or {}).items()
    key_values = {field: value for field, value in fields if field in registered_keys()}
    for field, value in fields:
        if field in key_values:
            continue
        kind, _colon, name = field.removeprefix(EXACT).partition(":")
        if kind not in sent or not name:
            raise LimitError(f"{field!r} is not a field of a request; use {_accepted()}")
        sent[kind].append((name, value))
    sent["json" if sent["json"] else "post"] += sent.pop("data")
    if sent["json"] and sent["post"]:
        raise LimitError("A body has either form fields or JSON fields")
    path, _mark, query = path.partition("?")
    query = "&".join(filter(None, (query.partition("#")[0], urlencode(sent["get"]))))
    meta: dict[str, Any] = {} if host is None else {"HTTP_HOST": host}
    if address is not None:
        meta["REMOTE_ADDR"] = first_address(address)
        if isinstance(conf.IP_META_KEY, str):
            meta[conf.IP_META_KEY] = meta["REMOTE_ADDR"]
    # As a server hands it over: a path need not be one that a URL can be made of.
    meta["PATH_INFO"] = unquote_to_bytes(path.encode(errors="replace")).decode("latin-1")
    meta["QUERY_STRING"] = query.encode(errors="replace").decode("latin-1")
    from django.test import RequestFactory  # Which imports Django's test cases.

    request: HttpRequest = RequestFactory(headers=_headers(sent)).generic(
        method, "/", *_body(sent["post"], sent["json"]), **meta
    )
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(
        request.COOKIES.get(settings.SESSION_COOKIE_NAME)
    )
    request.user = user or _user_of_session(request)
    request_state(request).key_values |= key_values
    return request


def _accepted() -> str:
    return ", ".join([*(f"{kind}:NAME" for kind in SENT_KINDS), *registered_keys()])


def first_address(network: str) -> str:
    """An address, or the first of a network, as text."""
    try:
        return str(parse_network(network).network_address)
    except ValueError:
        return network


def _headers(sent: Mapping[str, Fields]) -> dict[str, str]:
    headers = dict(sent["header"])
    cookies = SimpleCookie()
    for name, value in sent["cookie"]:
        try:
            cookies[name] = value
        except CookieError as error:
            raise LimitError(f"cookie {name!r}: {error}") from error
    written = [f"{name}={morsel.coded_value}" for name, morsel in cookies.items()]
    if written:
        given = [name for name in headers if name.lower() == "cookie"]
        headers["Cookie"] = "; ".join([*(headers.pop(name) for name in given), *written])
    return headers


def _body(posted: Fields, in_json: Fields) -> tuple[bytes, str]:
    """The body, and its type."""
    if not in_json:
        return urlencode(posted).encode(), URLENCODED
    body: dict[str, Any] = {}
    for path, value in in_json:
        *outer, name = path.split(".")
        place = body
        for part in outer:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise LimitError(f"json:{path}: another field says that {part} is text")
        place[name] = value
    return json.dumps(body).encode(), JSON


def _user_of_session(request: HttpRequest) -> Any:
    if apps.is_installed("django.contrib.auth") and request.session.session_key:
        return get_user(request)
    return AnonymousUser()


def find_user(name: str) -> Any:
    """Return the user of that name or primary key, or None."""
    if UNWRITABLE.search(name):
        return None
    model = get_user_model()
    for field in (model.USERNAME_FIELD, "pk"):
        # Not every text can be a primary key, or asked of every database.
        with suppress(ValueError, OverflowError, TypeError, ValidationError):
            user = model._default_manager.filter(**{field: name}).first()
            if user is not None:
                return user
    return None
