"""Responses of the gateway, for Django and ASGI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from django.http import HttpResponse


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
        response.headers["Content-Length"] = str(len(self.body))
        response._has_been_logged = True  # type: ignore[attr-defined]
        return response
