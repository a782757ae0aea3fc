"""The views that `make bench` compares."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import path
from rest_framework import throttling as drf
from rest_framework.response import Response
from rest_framework.views import APIView

from django_ratelimit_lua import ratelimit
from django_ratelimit_lua.throttling import classes

RATES = {"anon": "100000000/d", "user": "100000000/h", "third": "100000000/m"}
SMALL = {"anon": "1000/s", "user": "1000/s", "third": "1000/s"}


def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


class Plain(APIView):
    authentication_classes = ()

    def get(self, request: object) -> Response:
        return Response()


def throttles(base: type, **attributes: object) -> tuple[type, ...]:
    """Three throttles that count the same visitor under three scopes."""
    return tuple(type(scope, (base,), {"scope": scope, **attributes}) for scope in RATES)


class Theirs(Plain):
    throttle_classes = throttles(drf.UserRateThrottle, THROTTLE_RATES=SMALL)


class Ours(Plain):
    throttle_classes = throttles(classes.UserRateThrottle, THROTTLE_RATES=SMALL)


class OursBucket(Plain):
    throttle_classes = throttles(
        classes.UserRateThrottle, THROTTLE_RATES=RATES, algorithm="token_bucket"
    )


urlpatterns = [
    path("plain", plain),
    path("decorated", ratelimit(key="ip", rate="100000000/h")(plain)),
    path("drf-plain", Plain.as_view()),
    path("drf-theirs", Theirs.as_view()),
    path("drf-ours", Ours.as_view()),
    path("drf-bucket", OursBucket.as_view()),
]
