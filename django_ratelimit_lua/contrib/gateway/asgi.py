"""The gateway as an ASGI application, without Django's handler.

Start it with `uvicorn django_ratelimit_lua.contrib.gateway.asgi:application --no-proxy-headers
--no-access-log`.

Django's own handler does more for a request than the gateway does for its decision: signals,
middleware, and threads for blocking code. None of these is needed here. This application serves the
URLs of `gateway.urls` and nothing else, under whatever path it is mounted. It needs the
`DJANGO_SETTINGS_MODULE` of its site.
"""

from __future__ import annotations

from functools import partial

import django
from django.apps import apps

if not apps.ready:
    django.setup()  # Before anything is imported that knows the models.

from ...asgi import Message, Receive, Send, finish_at_shutdown
from .endpoints import MAX_BODY_BYTES, answer_health, answer_json, answer_scope
from .http import TOO_LARGE, Answer, is_too_large, meta_of


@finish_at_shutdown
async def application(scope: Message, receive: Receive, send: Send) -> None:
    """Serve the gateway as an ASGI application (https://asgi.readthedocs.io/en/latest/specs/www.html)."""
    if scope["type"] == "http":
        await _send_answer(await _answer_request(scope, receive), send)
    elif scope["type"] == "websocket":
        # A proxy has passed on the upgrade of the client's request. Closing it is a 403. Otherwise
        # the server would respond with 500, and a proxy that fails open would admit the request.
        await receive()
        await send({"type": "websocket.close"})


async def _answer_request(scope: Message, receive: Receive) -> Answer:
    """Return the response of the URL that the path of the request ends with."""
    path = str(scope["path"])
    # First, because Envoy appends the path of the client's request.
    if path.endswith(("/check", "/check*")) or "/check/" in path:
        return await answer_scope(scope)
    if is_too_large(scope):
        return TOO_LARGE
    if path.endswith("/json"):
        return await answer_json(meta_of(scope), partial(_read_body, receive))
    if path.endswith("/health"):
        return await answer_health()
    return Answer.text(404, "Not found.")


async def _read_body(receive: Receive) -> bytes:
    """Return the body, or its beginning if it is too large."""
    body = b""
    has_more = True
    while has_more and len(body) <= MAX_BODY_BYTES:
        event = await receive()
        body += event.get("body", b"")
        has_more = event.get("more_body", False)
    return body


async def _send_answer(answer: Answer, send: Send) -> None:
    """Send a response, with its length."""
    headers = [
        (name.lower().encode(), value.encode("latin-1")) for name, value in answer.headers.items()
    ]
    headers.append((b"content-length", b"%d" % len(answer.body)))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
