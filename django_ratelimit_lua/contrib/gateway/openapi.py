"""The OpenAPI document of `decide` (https://spec.openapis.org/oas/v3.1.0), and the check of
questions by it.

`openapi.json` is the one declaration of what may be asked: it is served, and bodies are checked by
its schemas.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from ...rules.exempt import ratelimit_exempt
from ...version import __version__
from .answer import Answer
from .problems import ProblemError

MAX_NAME = 200
"""Characters of a member's name."""
_KINDS: dict[type, tuple[str, str, str]] = {
    str: ("string", "minLength", "maxLength"),
    bool: ("boolean", "", ""),
    int: ("integer", "minimum", "maximum"),
    float: ("number", "minimum", "maximum"),
    type(None): ("null", "", ""),
    list: ("array", "minItems", "maxItems"),
    dict: ("object", "minProperties", "maxProperties"),
}
"""By the type of a value of JSON the name of its type in schemas, and of the bounds of its size."""


@cache
def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        Path(__file__).with_name("openapi.json").read_text(encoding="utf-8")
    )
    found["info"]["version"] = __version__
    return found


def schema_of(name: str) -> dict[str, Any]:
    """Return a schema of the document, by its name or a reference to it."""
    found: dict[str, Any] = document()["components"]["schemas"][name.rpartition("/")[2]]
    return found


def check(given: Any, schema: dict[str, Any], where: str = "") -> None:
    """Check a value by a schema of the document.

    Args:
        given: A value of JSON.
        schema: With the keywords that `openapi.json` uses for questions.
        where: Its place in the body, for the error.

    Raises:
        ProblemError: The value does not match. The error names its place, and what is right.
    """
    if "$ref" in schema:
        schema = schema_of(schema["$ref"])
    kind, low, high = _KINDS[type(given)]
    expected = schema.get("description", "")
    for choice in schema.get("oneOf", ()):
        choice = schema_of(choice["$ref"]) if "$ref" in choice else choice
        if choice["type"] == kind:
            schema = choice
    kinds = schema.get("type", "" if "oneOf" in schema or "enum" in schema else kind)
    size = len(given) if isinstance(given, (str, list, dict)) else given
    is_right = kind in kinds or (kind == "integer" and kinds == "number")
    if low and is_right:
        is_right = schema.get(low, size) <= size <= schema.get(high, size)
    if not is_right and given not in schema.get("enum", ()):
        shown = f"an {kind}" if kind in ("array", "object") else json.dumps(given)[:100]
        refuse(f"{where or 'The body'} is {shown}. {expected}")
    if kind == "array":
        for number, item in enumerate(given):
            check(item, schema.get("items", {}), f"{where}[{number}]")
    elif kind == "object" and schema.get("type"):
        known = schema.get("properties", {})
        others = schema["additionalProperties"]
        missing = [name for name in schema.get("required", ()) if name not in given]
        unknown = [
            name[:MAX_NAME]
            for name in given
            if (name not in known and not others) or len(name) > MAX_NAME
        ]
        if missing or unknown:
            problem = f"needs {missing[0]}" if missing else f"has the unknown {unknown[0]!r}"
            refuse(f"{where or 'The body'} {problem}; known are {', '.join(sorted(known))}")
        for name, value in given.items():
            check(value, known.get(name, others), f"{where}.{name}".lstrip("."))


def refuse(problem: str) -> NoReturn:
    """Raise the error for a part of the body that is wrong."""
    raise ProblemError(422, f"{problem.rstrip('.')}.")


def answer_openapi() -> Answer:
    """The document, which is public: it reveals nothing about the site."""
    return Answer(
        200, {"Content-Type": "application/json"}, json.dumps(document(), indent=1).encode()
    )


@ratelimit_exempt
@login_not_required
@require_safe
def openapi(request: HttpRequest) -> HttpResponse:
    return answer_openapi().response()
