"""The session as an identity: only one that its store knows, and that the client has sent.

A client can send a made-up session cookie, or leave it out and get a new session. Neither may
create a count of its own.
"""

from __future__ import annotations

from django.conf import settings
from django.contrib.sessions.backends import signed_cookies
from django.contrib.sessions.backends.base import SessionBase
from django.http import HttpRequest


def session_key(request: HttpRequest) -> str | None:
    """The key of the session that the client has sent, if its store knows it and it is not empty.

    Otherwise None.

    Loads the session, as a view that uses it does, but not if the client has sent none.
    """
    session, brought = _brought(request)
    is_known = session is not None and bool(session.keys()) and session.session_key == brought
    return brought if is_known else None


async def aload(request: HttpRequest) -> None:
    """Load the session without blocking the event loop, so that `session_key` does not have to."""
    session, _ = _brought(request)
    if session is not None:
        await session.akeys()


def _brought(request: HttpRequest) -> tuple[SessionBase | None, str | None]:
    """The session that the client names in its cookie, not loaded yet.

    None where sessions are kept in the cookie itself: these have no key that lasts. Every change
    makes another, and those before stay good, so a client could have as many as it likes.
    """
    session = getattr(request, "session", None)
    key = request.COOKIES.get(settings.SESSION_COOKIE_NAME)
    if (
        not key
        or not isinstance(session, SessionBase)
        or isinstance(session, signed_cookies.SessionStore)
    ):
        return None, None
    return session, key
