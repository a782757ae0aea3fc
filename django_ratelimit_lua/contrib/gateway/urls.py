"""What proxies and other servers ask: `path("ratelimit/",
include("django_ratelimit_lua.contrib.gateway.urls"))`.
"""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured
from django.urls import path, re_path

from ...extension import install, is_installed

if not is_installed("gateway"):
    raise ImproperlyConfigured(
        f"{__name__} is included, but the app is not installed. {install('gateway')}."
    )

from .check import check
from .decide import decide
from .health import health
from .openapi import openapi

urlpatterns = [
    path("check", check, name="ratelimit-check"),
    re_path(
        r"^check(?:\*|/[\s\S]*)\Z", check
    ),  # Envoy adds the path that it asks about, whatever is in it.
    path("health", health, name="ratelimit-health"),
    path("decide", decide, name="ratelimit-decide"),
    path("openapi.json", openapi, name="ratelimit-openapi"),
]
