"""A hook for drf-spectacular: adds the 429 to operations that a throttle of this package limits.

Add `"django_ratelimit_lua.throttling.openapi.show_429"` to
`SPECTACULAR_SETTINGS["POSTPROCESSING_HOOKS"]`.
"""

from __future__ import annotations

from typing import Any

from .classes import SimpleRateThrottle

RESPONSE: dict[str, Any] = {
    "description": "Too many requests",
    "headers": {
        "Retry-After": {
            "description": "Seconds to wait",
            "schema": {"type": "integer", "minimum": 0},
        },
        "RateLimit-Reference": {
            "description": "Reference for support",
            "schema": {"type": "string"},
        },
    },
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "properties": {
                    "detail": {"type": "string"},
                    "type": {"type": "string", "format": "uri"},
                    "violated-policies": {"type": "array", "items": {"type": "string"}},
                    "reference": {"type": "string"},
                },
            }
        },
    },
}


def show_429(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """Add the 429 response to each operation whose view has a throttle of this package."""
    for path, _, method, view in generator._get_paths_and_endpoints():
        operation = result["paths"].get(path, {}).get(method.lower())
        if operation and any(
            isinstance(throttle, SimpleRateThrottle) for throttle in view.get_throttles()
        ):
            operation["responses"].setdefault("429", RESPONSE)
    return result
