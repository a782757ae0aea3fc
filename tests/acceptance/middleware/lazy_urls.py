"""URLs that `fresh_urls` imports with the first request for them."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_ratelimit_lua import ratelimit_exempt


@ratelimit_exempt
def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse("fine")


urlpatterns = [path("", view)]
