"""The OpenAPI document of `decide` (https://spec.openapis.org/oas/v3.1.0)."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from ..limits.call import MOST_COST
from ..rules.exempt import ratelimit_exempt
from ..version import __version__
from .answer import Answer
from .asked import LONGEST_SLOT, LONGEST_TEXT, MOST_CHARGES, MOST_PARTS, MOST_SECONDS, OPERATIONS

_SECONDS = {"type": ["number", "null"], "minimum": 0}
_PROBLEMS = {
    "400": "The body is no JSON.",
    "401": "The token is missing, or is none.",
    "403": "The client may not ask about a limit, or not give units back.",
    "405": "Only POST is answered.",
    "408": "The body did not come in time.",
    "413": "The body is too large.",
    "422": "A part of the body is wrong, or names a limit that there is not.",
    "429": "Too many wrong tokens came from this address.",
}
IDENTITY = {
    "description": "Who is counted: text, a whole number, null for everybody together, or a list of these; or an "
    "object by the words of keys.",
    "oneOf": [
        {"type": "string", "maxLength": LONGEST_TEXT},
        {"type": "integer"},
        {"type": "null"},
        # Generators of clients make no model of a schema that refers to itself.
        {"type": "array", "minItems": 1, "maxItems": MOST_PARTS, "items": {}},
        {"$ref": "#/components/schemas/NamedIdentity"},
    ],
}
NAMED_IDENTITY = {
    "description": 'The words of keys with their values, such as {"ip": "203.0.113.9", "user": 7}: whom rules count in '
    "requests. What rules charge it goes by the overrides about its user, address and fields.",
    "type": "object",
    "minProperties": 1,
    "maxProperties": MOST_PARTS,
    "additionalProperties": {"type": ["string", "integer"]},
}
CHARGE = {
    "type": "object",
    "required": ["identity"],
    "additionalProperties": False,
    "minProperties": 2,
    "not": {"required": ["limit", "rule"]},  # Generators of clients make no model of a `oneOf` beside `properties`.
    "description": "So many units of one limit, which `limit` or `rule` names, for one identity.",
    "properties": {
        "limit": {"type": "string", "minLength": 1, "maxLength": LONGEST_TEXT, "description": "The name of a limit."},
        "rule": {"type": "string", "minLength": 1, "maxLength": LONGEST_TEXT, "description": "The same, of a rule."},
        "identity": {"$ref": "#/components/schemas/Identity"},
        "cost": {"type": "integer", "minimum": 0, "maximum": MOST_COST, "default": 1},
        "partial": {
            "type": "boolean",
            "default": False,
            "description": "Of hit: take as many of the `cost` units as there are; `granted` is "
            "their number. Together, all charges are partial and have the same cost, or none is.",
        },
    },
}
QUESTION = {
    "type": "object",
    "required": ["charges"],
    "additionalProperties": False,
    "properties": {
        "operation": {
            "enum": list(OPERATIONS),
            "default": "hit",
            "description": "hit: take units; peek: only look; refund: give units back, if the client may; "
            "reserve: take a turn that is at most `timeout` seconds away, and wait for it yourself; acquire: the same, "
            "and the answer comes when it is your turn; slot: hold a slot for `seconds`; release: give a `slot` back.",
        },
        "charges": {
            "type": "array", "minItems": 1, "maxItems": MOST_CHARGES, "items": {"$ref": "#/components/schemas/Charge"},
        },
        "together": {"type": "boolean", "default": True, "description": "All or nothing, or each for itself."},
        # No default: a client that is generated would send it with every operation.
        "timeout": {
            "type": "number", "minimum": 0, "maximum": MOST_SECONDS,
            "description": "Of reserve and acquire: seconds that the turn may be away; 0 without it.",
        },
        "seconds": {
            "type": "number", "minimum": 1, "maximum": LONGEST_SLOT,
            "description": "Of slot: for how long it is held at most.",
        },
        "slot": {"type": "string", "description": "Of release: what was answered when it was taken."},
    },
}  # fmt: skip
DECISION = {
    "type": "object",
    "required": ["limit", "allowed", "granted", "remaining", "retry_after", "reset_after", "wait", "source"],
    "properties": {
        "limit": {"type": "string"},
        "allowed": {"type": "boolean", "description": "The verdict of this limit, whatever the others say."},
        "granted": {"type": "integer", "minimum": 0, "description": "Units taken: `cost`, 0, or a part."},
        "remaining": {"type": ["integer", "null"], "description": "Units that could go now; null: nothing limits it."},
        "retry_after": {
            **_SECONDS,
            "description": "Seconds until the same would be allowed; null: never, or untold.",
        },
        "reset_after": {"type": "number", "minimum": 0},
        "wait": {"type": "number", "minimum": 0, "description": "Seconds until the turn that was reserved."},
        "source": {"enum": ["redis", "deny-cache", "lease", "split", "fallback"]},
        "slot": {"type": "string", "description": "Of the operation slot, each for itself: by which it is released."},
        "block": {
            "type": "object",
            "description": "What refuses, where it is no limit but a block of whom the identity names.",
            "required": ["status", "message"],
            "properties": {
                "status": {"enum": [403, 429], "description": "What to answer. 403: without a time to come back."},
                "message": {"type": "string", "description": "The text for who is blocked; empty: there is none."},
            },
        },
    },
}
ANSWER = {
    "type": "object",
    "required": ["allowed", "decisions"],
    "properties": {
        "allowed": {"type": "boolean"},
        "decisions": {"type": "array", "items": {"$ref": "#/components/schemas/Decision"}},
        "slot": {"type": "string", "description": "Of the operation slot, together: by which it is released."},
    },
}
PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"}, "title": {"type": "string"}, "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
}  # fmt: skip


@lru_cache(maxsize=1)
def document() -> dict[str, Any]:
    """The document."""
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Limits", "version": __version__, "description": "Asks the rate limits of a site."},
        "security": [{"token": []}],
        "paths": {
            "/decide": {
                "post": {
                    "operationId": "decide",
                    "summary": "Decide about limits",
                    "requestBody": {
                        "required": True,
                        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Question"}}},
                    },
                    "responses": {
                        "200": {
                            "description": "The decisions, in the order of the charges; also where they refuse.",
                            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Answer"}}},
                        },
                        **{status: {"description": text, "content": problem} for status, text in _PROBLEMS.items()},
                    },
                }
            }
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Question": QUESTION, "Charge": CHARGE, "Identity": IDENTITY, "NamedIdentity": NAMED_IDENTITY,
                "Answer": ANSWER, "Decision": DECISION, "Problem": PROBLEM,
            },
        },
    }  # fmt: skip


def answer_openapi() -> Answer:
    """The document, for anybody: it tells nothing of the site."""
    return Answer(200, {"Content-Type": "application/json"}, json.dumps(document(), indent=1).encode())


@ratelimit_exempt
@login_not_required
@require_safe
def openapi(request: HttpRequest) -> HttpResponse:
    """`answer_openapi`, for Django."""
    return answer_openapi().response()
