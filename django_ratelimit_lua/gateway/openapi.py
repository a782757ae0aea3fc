"""The OpenAPI document of `decide` (https://spec.openapis.org/oas/v3.1.0): `openapi.json`, beside this file."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from ..rules.exempt import ratelimit_exempt
from ..version import __version__
from .answer import Answer


@lru_cache(maxsize=1)
def document() -> dict[str, Any]:
    """The document."""
    document: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    document["info"]["version"] = __version__
    return document


def answer_openapi() -> Answer:
    """The document, for anybody: it tells nothing of the site."""
    return Answer(200, {"Content-Type": "application/json"}, json.dumps(document(), indent=1).encode())


@ratelimit_exempt
@login_not_required
@require_safe
def openapi(request: HttpRequest) -> HttpResponse:
    """`answer_openapi`, for Django."""
    return answer_openapi().response()
