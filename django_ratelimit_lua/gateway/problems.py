"""Errors as problem documents (RFC 9457)."""

from __future__ import annotations

import json
from http import HTTPStatus

from ..web.responses import PROBLEM
from .answer import Answer


class ProblemError(Exception):
    """What is asked cannot be answered: with that `status`, because of `detail`; `headers`: more of the answer's."""

    def __init__(self, status: int, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    @property
    def answer(self) -> Answer:
        """What is answered."""
        title = HTTPStatus(self.status).phrase
        body = {"type": "about:blank", "title": title, "status": self.status, "detail": self.detail}
        headers = {"Content-Type": PROBLEM, "Cache-Control": "no-store", **self.headers}
        return Answer(self.status, headers, json.dumps(body).encode())
