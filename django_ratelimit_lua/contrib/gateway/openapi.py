"""The OpenAPI document of `decide` (https://spec.openapis.org/oas/v3.1.0).

`openapi.json` is the only declaration of valid requests: it is served, and bodies are validated by
its schemas.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from ...version import __version__
from .answer import Answer, ProblemError

Schema = Mapping[str, Any]
MAX_NAME = 200
"""Maximum number of characters of a member's name."""
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
    """Return the document with the version of the package."""
    text = Path(__file__).with_name("openapi.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    found["info"]["version"] = __version__
    return found


def schema_of(name: str) -> Schema:
    """Return a schema of the document, by its name or a reference to it."""
    schema: Schema = document()["components"]["schemas"][name.rpartition("/")[2]]
    return schema


def check(value: Any, schema: Schema, where: str = "The body") -> None:
    """Validate a value by a schema of the document.

    Args:
        value: A value of JSON.
        schema: A schema with the keywords that `openapi.json` uses for requests.
        where: The place of the value in the body, for the error.

    Raises:
        ProblemError: The value does not match. The error contains its place, and the valid values.
    """
    schema = _resolve(schema)
    expected = schema.get("description", "")
    kind = _KINDS[type(value)][0]
    for choice in map(_resolve, schema.get("oneOf", ())):
        if choice["type"] == kind:
            schema = choice
    if not _matches(value, schema):
        shown = json.dumps(value)[:100]
        if kind in ("array", "object"):
            shown = f"an {kind}"
        refuse(f"{where} is {shown}. {expected}")
    if "items" in schema:
        for number, item in enumerate(value):
            check(item, schema["items"], f"{where}[{number}]")
    if "additionalProperties" in schema:
        _check_members(value, schema, where)


def _resolve(schema: Schema) -> Schema:
    return schema_of(schema["$ref"]) if "$ref" in schema else schema


def _matches(value: object, schema: Schema) -> bool:
    """Return whether the type and the size of a value are right."""
    if "enum" in schema:
        return value in schema["enum"]
    kind, low, high = _KINDS[type(value)]
    kinds = schema.get("type", kind)
    if "oneOf" in schema or (kind not in kinds and (kind, kinds) != ("integer", "number")):
        return False
    if not low:
        return True
    size = len(value) if isinstance(value, (str, list, dict)) else value
    return bool(schema.get(low, size) <= size <= schema.get(high, size))


def _check_members(members: Mapping[str, object], schema: Schema, where: str) -> None:
    known = schema.get("properties", {})
    others = schema["additionalProperties"]
    names = f"known members: {', '.join(sorted(known))}"
    for name in schema.get("required", ()):
        if name not in members:
            refuse(f"{where} needs {name}; {names}")
    for name in members:
        if len(name) > MAX_NAME or not known.get(name, others):
            refuse(f"{where} has the unknown {name[:MAX_NAME]!r}; {names}")
    for name, value in members.items():
        check(value, known.get(name, others), f"{where}.{name}".removeprefix("The body."))


def refuse(problem: str) -> NoReturn:
    """Raise the error for an invalid part of the body."""
    raise ProblemError(422, f"{problem.rstrip('.')}.")


def answer_openapi() -> Answer:
    """Return the document, which is public: it reveals nothing about the site."""
    body = json.dumps(document(), indent=1).encode()
    return Answer(200, {"Content-Type": "application/json"}, body)
