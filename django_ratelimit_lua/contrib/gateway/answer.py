"""Responses of the gateway, for Django and ASGI; errors are problem documents (RFC 9457)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from django.http import HttpResponse

from ...web.refusal import ErrorDetails
from ...web.responses import PROBLEM


class Answer(NamedTuple):
    """A response: status, headers and body.

    Making Django's response and taking it apart again for ASGI would cost half as much as a
    decision in the process. So the gateway's own server sends this object, and Django's views
    convert it with `response`.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    @classmethod
    def text(cls, status: int, line: str) -> Answer:
        """Return a response with a line of plain text."""
        return cls(status, {"Content-Type": "text/plain; charset=utf-8"}, f"{line}\n".encode())

    def response(self) -> HttpResponse:
        """Return the response as one of Django.

        Django would log every refusal again, under the gateway's path. That is prevented.
        """
        response = HttpResponse(self.body, status=self.status, headers=self.headers)
        if "Content-Type" not in self.headers:
            del response.headers["Content-Type"]
        response.headers["Content-Length"] = str(len(self.body))
        response._has_been_logged = True  # type: ignore[attr-defined]
        return response


class ProblemError(Exception, ErrorDetails):
    """The request cannot be processed. `status` and `text` are those of the response.

    - `more`: further headers of the response.
    """

    def __init__(self, status: int, text: str, retry_after: int | None = None, **more: str) -> None:
        super().__init__(text)
        self.status = status
        self.retry_after = retry_after
        self._more = {name.replace("_", "-"): value for name, value in more.items()}

    def detail(self) -> str:
        return str(self)

    @property
    def answer(self) -> Answer:
        headers = {"Content-Type": PROBLEM, **self.headers(), **self._more}
        return Answer(self.status, headers, json.dumps(self.problem()).encode())
