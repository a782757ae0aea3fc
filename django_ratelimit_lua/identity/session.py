"""The session as an identity, if its store contains it and the client has sent its key.

A client can invent a session cookie, or omit it and get a new session. Neither may create a new
count.
"""

from __future__ import annotations

import re

from django.conf import settings
from django.contrib.sessions.backends import signed_cookies
from django.contrib.sessions.backends.base import SessionBase
from django.http import HttpRequest

_POSSIBLE = "[!-~]{1,128}"


def session_key(request: HttpRequest) -> str | None:
    """Return the key of the client's session, or None.

    None if the client has sent no key, or if the store does not contain the session, or if it is
    empty. If the client has sent a key, the session is loaded, as a view that uses it would do.
    """
    session, brought = _brought(request)
    is_known = session is not None and bool(session.keys()) and session.session_key == brought
    return brought if is_known else None


async def aload(request: HttpRequest) -> None:
    """Load the session without blocking the event loop, so that `session_key` need not load it."""
    session, _ = _brought(request)
    if session is not None:
        await session.akeys()


def drop_impossible(request: HttpRequest) -> None:
    """Replace the session by a new one if no store can contain the key that the client has sent.

    PostgreSQL and memcached reject such a key, for example with a NUL, with an error. A client
    could cause that error to lift the limits that need the session or the user.
    """
    session = getattr(request, "session", None)
    if not isinstance(session, SessionBase) or isinstance(session, signed_cookies.SessionStore):
        return
    if session.session_key and not re.fullmatch(_POSSIBLE, session.session_key):
        session._session_key = None  # As Django does with a short key.


def _brought(request: HttpRequest) -> tuple[SessionBase | None, str | None]:
    """Return the session that the client's cookie names, not loaded yet, and its key.

    None if sessions are stored in the cookie itself. Their keys do not last: every change makes a
    new one, and earlier ones stay valid, so a client could have any number of them.
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
