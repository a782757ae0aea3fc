"""Builds a request from a description, and finds users."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from http.cookies import CookieError
from importlib import import_module
from typing import Any
from urllib.parse import unquote_to_bytes, urlencode

from django.apps import apps
from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import ValidationError
from django.http import HttpRequest

from ..conf import conf
from ..identity.body import URLENCODED
from ..identity.keys import registered_keys
from ..identity.request_state import request_state
from ..limits.rate import LimitError

Fields = Sequence[tuple[str, str]]
"""Values that a client sends, in headers, cookies, the query and the body, and values of registered
keys: `[("header:X-API-Key", "k"), ("get:q", "x"), ("post:username", "ada"), ("tenant", "acme")]`.
"""


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
        address: Its address.
        user: The signed-in user.
        host: Its host.
        fields: Its values, as pairs of a field and a value.

    Raises:
        LimitError: The request is impossible.
    """
    from django.test import RequestFactory  # Which imports Django's test cases.

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
    path, _mark, query = path.partition("?")
    query = "&".join(filter(None, (query, urlencode(sent["get"]))))
    # As a server hands it over: a path need not be one that a URL can be made of.
    meta: dict[str, Any] = {
        "PATH_INFO": unquote_to_bytes(path.encode(errors="replace")).decode("latin-1"),
        "QUERY_STRING": query.encode(errors="replace").decode("latin-1"),
    }
    if host is not None:
        meta["HTTP_HOST"] = host
    if address is not None:
        meta["REMOTE_ADDR"] = address
        if isinstance(conf.IP_META_KEY, str):
            meta[conf.IP_META_KEY] = address
    factory = RequestFactory(headers=dict(sent["header"]))
    for name, value in sent["cookie"]:
        try:
            factory.cookies[name] = value
        except CookieError as error:
            raise LimitError(f"cookie {name!r}: {error}") from error
    request: HttpRequest = factory.generic(method, "/", *_body(sent["post"], sent["json"]), **meta)
    session_key = None
    if apps.is_installed("django.contrib.sessions"):  # Otherwise there may be no table of sessions.
        session_key = request.COOKIES.get(settings.SESSION_COOKIE_NAME)
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    request.user = user or AnonymousUser()
    request_state(request).key_values |= key_values
    return request


def _body(posted: Fields, in_json: Fields) -> tuple[bytes, str]:
    """Return the body and its content type."""
    if not in_json:
        return urlencode(posted).encode(), URLENCODED
    body: dict[str, Any] = {}
    for path, value in in_json:
        *outer, name = path.split(".")
        place = body
        for part in outer:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise LimitError(f"json:{path}: another field sets {part} to text")
        place[name] = value
    return json.dumps(body).encode(), "application/json"


def find_user(name: str) -> User | None:
    """Return the user of that name or primary key, or None."""
    model = get_user_model()
    for field in (model.USERNAME_FIELD, "pk"):
        # Not every text can be a primary key, or is accepted by every database.
        with suppress(ValueError, OverflowError, TypeError, ValidationError):
            user = model._default_manager.filter(**{field: name}).first()
            if user is not None:
                return user
    return None
