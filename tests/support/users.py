"""Who is logged in, as tests say it; and users of the admin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib.auth.models import AnonymousUser, Permission, User
from django.http import HttpRequest, HttpResponse
from django.test import Client

OPERATOR = "198.51.100.1"
ADMIN_MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]


def serve_admin(settings: Any, urlconf: str) -> None:
    """Serve an admin without limits, and the other views of `urlconf` under the middleware. No
    address is exempt from bans.
    """
    settings.ROOT_URLCONF = urlconf
    settings.RATELIMIT_NEVER_BAN = []
    settings.MIDDLEWARE = [*ADMIN_MIDDLEWARE, "django_ratelimit_lua.middleware.RateLimitMiddleware"]
    settings.RATELIMIT_RULES = [{"name": "admin", "path": "/admin/", "exempt": True}]


def staff(*permissions: str, name: str = "staff") -> Client:
    """A user of the admin who has these permissions."""
    user = User.objects.create_user(name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client(REMOTE_ADDR=OPERATOR)
    client.force_login(user)
    return client


def logged_in(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """A middleware that takes the word of a header for who is logged in."""

    def middleware(request: HttpRequest) -> HttpResponse:
        pk = request.headers.get("X-User")
        request.user = User(pk=int(pk)) if pk else AnonymousUser()
        return get_response(request)

    return middleware
