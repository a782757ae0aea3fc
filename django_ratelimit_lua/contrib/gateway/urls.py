"""The URLs of the gateway.

`path("ratelimit/", include("django_ratelimit_lua.contrib.gateway.urls"))` includes them.
"""

from __future__ import annotations

from django.urls import path, re_path

from . import views

urlpatterns = [
    path("check", views.check, name="ratelimit-check"),
    # Envoy adds the path that it asks about, whatever is in it.
    re_path(r"^check(?:\*|/[\s\S]*)\Z", views.check),
    path("health", views.health, name="ratelimit-health"),
    path("decide", views.decide, name="ratelimit-decide"),
    path("openapi.json", views.openapi, name="ratelimit-openapi"),
]
