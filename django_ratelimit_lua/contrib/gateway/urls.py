"""The URLs of the gateway.

`path("ratelimit/", include("django_ratelimit_lua.contrib.gateway.urls"))` includes them.
"""

from __future__ import annotations

from django.urls import path, re_path

from . import views

urlpatterns = [
    path("check", views.check, name="ratelimit-check"),
    # Envoy appends the path of the client's request, whatever it contains.
    re_path(r"^check(?:\*|/[\s\S]*)\Z", views.check),
    path("json", views.json, name="ratelimit-json"),
    path("health", views.health, name="ratelimit-health"),
]
