"""Users of the admin with their forms, and requests of a user."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser
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
    """Serve the views of `urlconf` under the middleware, with an admin without limits.

    No address is exempt from bans.
    """
    settings.ROOT_URLCONF = urlconf
    settings.RATELIMIT_NEVER_BAN = []
    settings.MIDDLEWARE = [*ADMIN_MIDDLEWARE, "django_ratelimit_lua.middleware.RateLimitMiddleware"]
    settings.RATELIMIT_RULES = [{"name": "admin", "path": "/admin/", "exempt": True}]


def staff(*permissions: str, name: str = "staff") -> Client:
    """Return a client of a new user of the admin with these permissions."""
    user = User.objects.create_user(name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client(REMOTE_ADDR=OPERATOR)
    client.force_login(user)
    return client


def user_from_header(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Middleware that takes the user from the header `X-User`."""

    def middleware(request: HttpRequest) -> HttpResponse:
        pk = request.headers.get("X-User")
        request.user = User(pk=int(pk)) if pk else AnonymousUser()
        return get_response(request)

    return middleware


class _Form(HTMLParser):
    """The values of the fields of a form, without those in templates."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.values: dict[str, list[str]] = {}
        self._open: dict[str, Any] = {}
        self._templates = 0
        self._text = ""
        self.feed(html)

    def _add(self, name: str | None, value: str | None) -> None:
        if name and not self._templates:
            self.values.setdefault(name, []).append(value or "")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self._templates += tag == "template"
        if tag == "input" and given.get("type") in ("checkbox", "radio"):
            if "checked" in given:
                self._add(given.get("name"), given.get("value", "on"))
        elif tag == "input" and given.get("type") != "submit":
            self._add(given.get("name"), given.get("value"))
        elif tag in ("select", "textarea"):
            self._open = {"name": given.get("name"), "chosen": None}
            self._text = ""
        elif tag == "option" and (self._open.get("chosen") is None or "selected" in given):
            self._open["chosen"] = given.get("value") or ""

    def handle_data(self, data: str) -> None:
        self._text += data

    def handle_endtag(self, tag: str) -> None:
        self._templates -= tag == "template"
        if tag == "select":
            self._add(self._open["name"], self._open["chosen"])
        elif tag == "textarea":
            self._add(self._open["name"], self._text.removeprefix("\n").replace("\n", "\r\n"))


def form_data(page: Any, form: str = "_form") -> dict[str, list[str]]:
    """Return the data that a browser sends for a form, found by the end of its id.

    The data of buttons is not included.
    """
    html = page.content.decode()
    start = html.index(f'{form}"')
    return _Form(html[start : html.index("</form>", start)]).values
