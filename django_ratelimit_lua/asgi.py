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
    async def finishing(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(application, scope, receive, send)
        else:
            await application(scope, receive, send)

    return finishing


async def _live(application: Application, scope: Message, receive: Receive, send: Send) -> None:
    received = 0
    sent = 0

    async def count_received() -> Message:
        nonlocal received
        event = await receive()
        received += 1
        return event

    async def send_finished(event: Message) -> None:
        nonlocal sent
        sent += 1
        if event["type"].startswith("lifespan.shutdown."):
            await sync_to_async(finish, thread_sensitive=False)()
        await send(event)

    try:
        await application(scope, count_received, send_finished)
    except Exception:
        if sent:
            raise
    # An application without support has raised, or returned, before it answered the first event.
    for event in ("startup", "shutdown") if not sent else ():
        if not received:
            await receive()
        received = 0
        await send_finished({"type": f"lifespan.{event}.complete"})
