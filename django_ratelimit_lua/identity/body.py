"""Fields of a request's body, read without taking the body from the view.

A JSON body that is not there, not of its kind, malformed, too large or already read as a stream has no fields: the
identity is the missing one, which all such requests share. So a broken body buys nobody a count of its own. A broken
form is Django's to refuse, as it does when the view reads it.
"""

from __future__ import annotations

import json
from typing import Any

from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, RawPostDataException, UnreadablePostError

LARGEST = 64 * 1024
"""Bytes of a body that are read for a key."""


def json_field(request: HttpRequest, path: str) -> str | None:
    """A field of a JSON object, by its name or by names joined with dots; text as it is, anything else as JSON.

    >>> from django.test import RequestFactory
    >>> request = RequestFactory().post("/", {"user": {"name": "ada"}}, content_type="application/json")
    >>> json_field(request, "user.name"), json_field(request, "user"), json_field(request, "age")
    ('ada', '{"name":"ada"}', None)
    """
    if request.content_type != "application/json" and not str(request.content_type).endswith("+json"):
        return None
    return _at(_parsed(request), path)


def data_field(request: HttpRequest, path: str) -> str | None:
    """A field of the body as Django REST framework parses it: of a form or of a JSON object."""
    if "json" in str(request.content_type):
        return json_field(request, path)
    value = request.POST.get(path)
    return None if value is None else str(value)


def _parsed(request: HttpRequest) -> Any:
    try:
        if int(request.META.get("CONTENT_LENGTH") or 0) > LARGEST:
            return None
        body = request.body  # Django keeps it: the view can read it, or its stream, again.
        return json.loads(body) if len(body) <= LARGEST else None
    except (ValueError, RecursionError, RawPostDataException, UnreadablePostError, RequestDataTooBig):
        return None


def _at(value: Any, path: str) -> str | None:
    for name in path.split("."):
        if not isinstance(value, dict) or name not in value:
            return None
        value = value[name]
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
