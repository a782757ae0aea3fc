"""The views that `tests.tools.faults` asks."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_ratelimit_lua import ratelimit
from tests.tools.faults import LIMIT, PERIOD


def everyone(group: str, request: HttpRequest) -> str:
    return "everyone"


@ratelimit("closed", key=everyone, rate=f"{LIMIT}/{PERIOD}", on_store_error="closed")
def closed(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


@ratelimit("local", key=everyone, rate=f"{LIMIT}/{PERIOD}", on_store_error="local")
def local(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


@ratelimit("warm", key=everyone, rate="1000/s")
def warm(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


urlpatterns = [path("closed", closed), path("local", local), path("warm", warm)]
