"""The URLs of a site that Prometheus scrapes, with several processes."""

from __future__ import annotations

import os

from django.http import HttpRequest, HttpResponse
from django.urls import include, path

from django_ratelimit_lua import ratelimit


@ratelimit(group="search", key="get:who", rate="3/h")
def search(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(os.getpid()))


urlpatterns = [
    path("search/", search),
    path("ratelimit/", include("django_ratelimit_lua.contrib.statistics.urls")),
]
