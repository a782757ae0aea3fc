"""The user that a proxy reports, without a session, and perhaps without a user table."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ImproperlyConfigured, ObjectDoesNotExist, ValidationError
from django.db import DatabaseError, close_old_connections

from .secrets import log_once

MAX_USER_LENGTH = 255


class VouchedUser:
    """The user that a proxy reports, without further data.

    - `pk`: the primary key in the database's form, so that a user has the same identity as in
      Django's views; a value that is not a valid primary key stays a string. Without one, no user
      is signed in.
    """

    is_staff = False

    def __init__(self, text: str) -> None:
        self.is_authenticated = self.is_active = bool(text)
        self.is_anonymous = not text
        self.pk: Any = None
        if text:
            self.pk = text[:MAX_USER_LENGTH]
            with suppress(ValidationError, ValueError, ImproperlyConfigured):
                self.pk = get_user_model()._meta.pk.to_python(self.pk)

    def __str__(self) -> str:
        return str(self.pk)


def log_in(request: Any, user: VouchedUser) -> None:
    """Set the user of a request, as Django's middleware does."""

    async def auser() -> Any:
        return request.user

    request.user, request.auser = user, auser


def load_user(request: Any) -> None:
    """Load the reported user from the database, because a rule uses the user's groups.

    An unknown user has no groups, and no user is signed in while the database is unavailable. This
    function blocks.
    """
    if not isinstance(request.user, VouchedUser) or request.user.is_anonymous:
        return
    # The gateway's own server sends no signal with a request, by which Django does so.
    close_old_connections()
    try:
        request.user = get_user_model()._default_manager.get(pk=request.user.pk)
    except (ObjectDoesNotExist, ValidationError, ValueError, OverflowError, ImproperlyConfigured):
        pass
    except DatabaseError as error:
        text = "The groups of a user that a proxy reports cannot be read: %s."
        log_once(text, logging.ERROR, text, error)
