"""Browsers that signed in before: the key `device:NAME` of login forms, by a signed cookie.

Attempts at an account by a browser that signed in to it before are counted by the browser. All
other attempts at the account are counted together, so guesses from anywhere do not lock out its
owner. These are the device cookies of OWASP:
https://owasp.org/www-community/Slow_Down_Online_Guessing_Attacks_with_Device_Cookies
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from django.conf import settings
from django.contrib.auth import SESSION_KEY, get_user_model
from django.contrib.auth.signals import user_logged_in
from django.core.signing import BadSignature, Signer
from django.db import DatabaseError
from django.db.models import Q
from django.dispatch import receiver
from django.http import HttpRequest
from django.utils.crypto import salted_hmac

from .fields import MAX_TEXT_LENGTH, cookie_value
from .request_state import request_state

if TYPE_CHECKING:
    from django.contrib.auth.models import User

COOKIE = "__Host-ratelimit-device"
"""The name of the cookie. Browsers accept this prefix only from the host itself, over HTTPS."""
MAX_AGE = 180 * 86_400
"""The seconds for which an entry of the cookie is valid after a login."""
MAX_ACCOUNTS = 5
"""The number of entries in a cookie, one for each account."""
SALT = "django_ratelimit_lua.device"


class Entry(NamedTuple):
    """What the cookie holds about an account that signed in.

    - `account`: the digest of the account;
    - `password`: the digest of the account and its password;
    - `device`: the random id of the browser for this account;
    - `signed_in_at`: when it signed in, in seconds since 1970.
    """

    account: str
    password: str
    device: str
    signed_in_at: float


def find_device(request: HttpRequest, name: str) -> tuple[str, ...]:
    """Return the user name and the id of the browser if it signed in to the account of that name.

    Otherwise return an empty tuple. The user name is that of the account, so that its e-mail
    address does not have a second count. The database is queried only if the cookie is valid.
    """
    entries = _read_entries(cookie_value(request, COOKIE))
    if not entries or len(name) > MAX_TEXT_LENGTH:
        return ()
    user = _find_account(name)
    if user is None:
        return ()
    passwords = _password_digests(user)
    for entry in entries:
        if entry.password in passwords:
            return (str(user.get_username()), entry.device)
    return ()


@receiver(user_logged_in)
def compose_cookie(sender: object, request: Any, user: User, **kwargs: object) -> None:
    """Compose the cookie after a login, for `RateLimitMiddleware`.

    A login without a session, such as one by a token, gets no cookie.
    """
    if getattr(request, "session", {}).get(SESSION_KEY) != str(user.pk):
        return
    accounts = _digests(f"{user.pk}")
    passwords = _password_digests(user)
    device = secrets.token_urlsafe(16)
    earlier = _read_entries(request.COOKIES.get(COOKIE))
    for entry in earlier:
        if entry.password in passwords:
            device = entry.device
    others = [entry for entry in earlier if entry.account not in accounts]
    entries = [Entry(accounts[0], passwords[0], device, time.time()), *others]
    request_state(request).device_cookie = {
        "key": COOKIE,
        "value": Signer(salt=SALT).sign_object(entries[:MAX_ACCOUNTS]),
        "max_age": MAX_AGE,
        "secure": True,
        "httponly": True,
        "samesite": "Lax",
    }


def _read_entries(cookie: str | None) -> list[Entry]:
    """Return the entries of a cookie, the last login first; none if the cookie was altered."""
    try:
        entries = [Entry(*each) for each in Signer(salt=SALT).unsign_object(cookie or "")]
    except (BadSignature, ValueError, TypeError):
        return []
    return [entry for entry in entries if entry.signed_in_at > time.time() - MAX_AGE]


def _find_account(name: str) -> User | None:
    """Return the account with that user name or e-mail address; None if there are several.

    An attacker may have chosen the address of another account as user name.
    """
    model = get_user_model()
    username = model.normalize_username(name.strip())
    email = model.get_email_field_name()
    matches = Q(**{model.USERNAME_FIELD: username})
    if "@" in username and hasattr(model, email) and email != model.USERNAME_FIELD:
        matches |= Q(**{f"{email}__iexact": username})
    try:
        users = list(model._default_manager.filter(matches)[:2])
    except (ValueError, DatabaseError):  # The text has characters that no user name can have.
        return None
    return users[0] if len(users) == 1 else None


def _password_digests(user: User) -> list[str]:
    """Return the digests of an account and its password: see `_digests`."""
    return _digests(f"{user.pk} {user.password}")


def _digests(value: str) -> list[str]:
    """Return the digests of a value by all secret keys of Django, the present one first.

    They are compared with signed values only, so the time of a comparison reveals nothing.
    """
    keys = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    return [salted_hmac(SALT, value, key, algorithm="sha256").hexdigest()[:32] for key in keys]
