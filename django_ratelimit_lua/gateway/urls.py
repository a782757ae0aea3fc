"""What proxies and other servers ask: `path("ratelimit/", include("django_ratelimit_lua.gateway.urls"))`."""

from __future__ import annotations

from django.urls import path

from .check import check

urlpatterns = [
    path("check", check, name="ratelimit-check"),
    path("check/<path:below>", check),
]
