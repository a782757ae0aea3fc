"""Who is logged in, as tests say it."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest, HttpResponse


def logged_in(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """A middleware that takes the word of a header for who is logged in."""

    def middleware(request: HttpRequest) -> HttpResponse:
        pk = request.headers.get("X-User")
        request.user = User(pk=int(pk)) if pk else AnonymousUser()
        return get_response(request)

    return middleware
