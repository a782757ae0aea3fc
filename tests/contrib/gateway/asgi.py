"""Requests to an ASGI application in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from asgiref.sync import async_to_sync

from tests.contrib.gateway.proxies import Answer

Pairs = Iterable[tuple[bytes, bytes]]


async def aask(
    application: Callable[..., Awaitable[None]],
    path: str,
    headers: Pairs,
    method: str = "GET",
    *,
    body: Iterable[bytes] = (b"",),
    peer: str = "127.0.0.1",
) -> Answer:
    """Send a request, whose body has these parts. Without a last part, the client waits."""
    parts = list(body)
    sent: list[Any] = []

    async def receive() -> Any:
        if not parts:
            await asyncio.sleep(3600)
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "query_string": b""}
    scope |= {"headers": list(headers), "client": (peer, 50_000)}
    await application(scope, receive, send)
    start, *rest = sent
    pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in start["headers"]]
    found = {name.lower(): value for name, value in pairs}
    return Answer(start["status"], found, b"".join(message.get("body", b"") for message in rest))


ask = async_to_sync(aask)
