"""What proxies and other servers ask: `path("ratelimit/", include("django_ratelimit_lua.gateway.urls"))`."""

from __future__ import annotations

from django.urls import path

from .check import check
from .decide import decide
from .openapi import openapi

urlpatterns = [
    path("check", check, name="ratelimit-check"),
    path("check/<path:below>", check),
    path("decide", decide, name="ratelimit-decide"),
    path("openapi.json", openapi, name="ratelimit-openapi"),
]
