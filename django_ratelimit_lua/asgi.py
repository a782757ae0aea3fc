"""`finish_at_shutdown`: a clean end of the processes of an ASGI server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from functools import wraps
from typing import Any

from asgiref.sync import sync_to_async

from .process.tasks import finish

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


def finish_at_shutdown(application: Application) -> Application:
    """Write statistics, release slots and return leased units before the server ends.

    uvicorn ends a worker by SIGTERM when it has served the last request, and Python runs no exit
    functions then. The shutdown event of the ASGI lifespan protocol comes before that. An
    application that supports the protocol gets its events as before; for one that does not, such as
    Django's, they are answered here.

    >>> from django.core.asgi import get_asgi_application
    >>> application = finish_at_shutdown(get_asgi_application())

    Args:
        application: An ASGI 3 application.

    Returns:
        The application with a clean end. It must be the one that the server runs, not one that
            another application includes.
    """

    @wraps(application, updated=())
    async def call_application(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _call_lifespan(application, scope, receive, send)
        else:
            await application(scope, receive, send)

    return call_application


async def _call_lifespan(
    application: Application, scope: Message, receive: Receive, send: Send
) -> None:
    """Call an application for its lifespan, or answer the events if it does not support them."""
    has_received = False
    has_sent = False

    async def receive_event() -> Message:
        nonlocal has_received
        event = await receive()
        has_received = True
        return event

    async def send_event(event: Message) -> None:
        nonlocal has_sent
        has_sent = True
        if event["type"].startswith("lifespan.shutdown."):
            await sync_to_async(finish, thread_sensitive=False)()
        await send(event)

    try:
        await application(scope, receive_event, send_event)
    except Exception:
        if has_sent:
            raise
    if has_sent:
        return
    # An application without support has raised or returned before it answered the first event.
    if not has_received:
        await receive()
    await send_event({"type": "lifespan.startup.complete"})
    await receive()
    await send_event({"type": "lifespan.shutdown.complete"})
