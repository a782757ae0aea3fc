"""The gateway by itself: `uvicorn django_ratelimit_lua.gateway.asgi:application --no-proxy-headers`.

Django's own handler does more for a request than the gateway does for its answer: signals, middleware, and threads for
what of that blocks. Nothing of it is needed here. This application serves what `gateway.urls` does and nothing else,
under whatever path: the last part says what is meant. It needs `DJANGO_SETTINGS_MODULE`, of which it is a site.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import django
from django.apps import apps
from django.http import HttpResponse

from .check import answer_check

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

if not apps.ready:
    django.setup()


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """An ASGI application (https://asgi.readthedocs.io/en/latest/specs/www.html)."""
    if scope["type"] == "lifespan":
        await _live(receive, send)
    elif scope["type"] == "http":
        await _send(await _answer(scope), send)


async def _live(receive: Receive, send: Send) -> None:
    while True:
        event = (await receive())["type"]
        await send({"type": f"{event}.complete"})
        if event == "lifespan.shutdown":
            return


async def _answer(scope: Scope) -> HttpResponse:
    path = str(scope["path"])
    if path.endswith("/check") or "/check/" in path:
        return await answer_check(_meta(scope))
    return HttpResponse("There is nothing here.\n", status=404, content_type="text/plain; charset=utf-8")


def _meta(scope: Scope) -> dict[str, Any]:
    """The headers, and who asks, as `HttpRequest.META` has them."""
    meta: dict[str, Any] = {}
    for raw, value in scope["headers"]:
        name = raw.decode("latin-1").upper()
        if "_" in name:
            continue  # It would be taken for one with a hyphen.
        name = name.replace("-", "_")
        key = name if name in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{name}"
        text = value.decode("latin-1")
        meta[key] = f"{meta[key]}{'; ' if name == 'COOKIE' else ','}{text}" if key in meta else text
    if scope.get("client"):
        meta["REMOTE_ADDR"] = scope["client"][0]
    return meta


async def _send(response: HttpResponse, send: Send) -> None:
    body = response.content
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.items()]
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": body})
