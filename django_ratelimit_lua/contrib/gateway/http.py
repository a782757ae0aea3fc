"""HTTP requests and responses of the gateway, independent of Django's handlers and of ASGI."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from django.http import HttpHeaders, HttpRequest, HttpResponse

from ...conf import conf
from ...web.headers import limit_headers
from ...web.refusal import Refusal, language_of
from ...web.responses import PROBLEM, accepted_form

Meta = Mapping[str, Any]
"""The headers of a request and its peer, as `HttpRequest.META` has them."""
MAX_HEADERS = 256
"""Maximum number of header lines of a request; common servers take 100."""
MAX_HEADER_BYTES = 64 * 1024
"""Maximum size of all of them; common servers take 8 to 64 KiB."""
TEXT = "text/plain; charset=utf-8"
_SEPARATORS = {"HTTP_COOKIE": "; "}


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
        return cls(status, {"Content-Type": TEXT}, f"{line}\n".encode())

    def response(self) -> HttpResponse:
        """Return the response as one of Django.

        Django would log every refusal again, under the gateway's path. That is prevented.
        """
        response = HttpResponse(self.body, status=self.status, headers=self.headers)
        response.headers["Content-Length"] = str(len(self.body))
        response._has_been_logged = True  # type: ignore[attr-defined]
        return response


def compose_refusal(request: HttpRequest, refusal: Refusal) -> Answer:
    """Return the response to a refused request of another server, with rate-limit headers.

    It is a problem document or plain text, as the client accepts. The project's pages are not used,
    because they are not for that server.
    """
    with language_of(request):
        if accepted_form(request) == "problem":
            content_type = PROBLEM
            body = json.dumps(refusal.problem())
        else:
            content_type = TEXT
            body = "".join(f"{line}\n" for line in refusal.lines())
    headers = {
        "Content-Type": content_type,
        **refusal.headers(),
        **limit_headers(refusal.decision, conf.HEADERS or "ietf"),
    }
    return Answer(refusal.status, headers, body.encode())


TOO_LARGE = Answer.text(
    431,
    f"The request has more than {MAX_HEADERS} header lines, or more than "
    f"{MAX_HEADER_BYTES} bytes of headers.",
)


def is_too_large(scope: Mapping[str, Any]) -> bool:
    """Return whether an ASGI scope has more than `MAX_HEADERS` lines or `MAX_HEADER_BYTES`."""
    headers = scope["headers"]
    size = sum([len(name) + len(value) for name, value in headers])
    return len(headers) > MAX_HEADERS or size > MAX_HEADER_BYTES


def meta_of(scope: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers and the peer of an ASGI scope."""
    meta: dict[str, Any] = {}
    for name, value in scope["headers"]:
        # One with an underscore could be taken for one with a hyphen.
        if b"_" in name:
            continue
        key = HttpHeaders.to_wsgi_name(name.decode("latin-1"))
        text = value.decode("latin-1")
        if key in meta:
            text = f"{meta[key]}{_SEPARATORS.get(key, ',')}{text}"
        meta[key] = text
    if scope.get("client"):
        meta["REMOTE_ADDR"] = scope["client"][0]
    return meta
