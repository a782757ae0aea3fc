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

_POSSIBLE_KEY = "[!-~]{1,128}"


def session_key(request: HttpRequest) -> str | None:
    """Return the key of the client's session, or None.

    None if the client has sent no key, or if the store does not contain the session, or if it is
    empty. If the client has sent a key, the session is loaded, as a view that uses it would do.
    """
    session = _stored_session(request)
    if session is None or not session.keys():
        return None
    sent_key = request.COOKIES[settings.SESSION_COOKIE_NAME]
    return sent_key if session.session_key == sent_key else None


async def aload_session(request: HttpRequest) -> None:
    """Load the session without blocking the event loop, so that `session_key` need not load it."""
    session = _stored_session(request)
    if session is not None:
        await session.akeys()


def drop_impossible_key(request: HttpRequest) -> None:
    """Replace the session by a new one if no store can contain the key that the client has sent.

    PostgreSQL and memcached reject such a key, for example with a NUL, with an error. A client
    could cause that error to lift the limits that need the session or the user.
    """
    session = _server_session(request)
    if session is None:
        return
    if session.session_key and not re.fullmatch(_POSSIBLE_KEY, session.session_key):
        session._session_key = None  # As Django does with a short key.


def _stored_session(request: HttpRequest) -> SessionBase | None:
    """Return the session, not loaded yet, or None if the client has sent no key of a session."""
    if not request.COOKIES.get(settings.SESSION_COOKIE_NAME):
        return None
    return _server_session(request)


def _server_session(request: HttpRequest) -> SessionBase | None:
    """Return the session of a request, or None if it is stored in the cookie itself.

    The keys of such sessions do not last: every change makes a new one, and earlier ones stay
    valid, so a client could have any number of them.
    """
    session = getattr(request, "session", None)
    if isinstance(session, SessionBase) and not isinstance(session, signed_cookies.SessionStore):
        return session
    return None
