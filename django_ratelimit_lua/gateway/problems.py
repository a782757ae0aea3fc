"""Errors as problem documents (RFC 9457)."""

from __future__ import annotations

import json
from http import HTTPStatus

from django.http import HttpResponse

from ..web.responses import PROBLEM


class ProblemError(Exception):
    """What is asked cannot be answered: with that `status`, because of `detail`; `headers`: more of the answer's."""

    def __init__(self, status: int, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def response(self) -> HttpResponse:
        """The answer."""
        title = HTTPStatus(self.status).phrase
        body = {"type": "about:blank", "title": title, "status": self.status, "detail": self.detail}
        headers = {"Cache-Control": "no-store", **self.headers}
        return HttpResponse(json.dumps(body), status=self.status, content_type=PROBLEM, headers=headers)
