"""Views that are exempt in different ways. They are imported by the first request of a process."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import URLResolver, include, path
from django.urls.resolvers import RoutePattern
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_ratelimit_lua import ratelimit, ratelimit_exempt


def limited(request: HttpRequest, **kwargs: Any) -> HttpResponse:
    return HttpResponse(request.path)


@ratelimit_exempt
def function(request: HttpRequest) -> HttpResponse:
    return HttpResponse("fine")


@ratelimit_exempt
async def coroutine(request: HttpRequest) -> HttpResponse:
    return HttpResponse("fine")


class Plain(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("fine")


@ratelimit_exempt
class OnClass(Plain):
    pass


@method_decorator(ratelimit_exempt, name="dispatch")
class OnDispatch(Plain):
    pass


@ratelimit_exempt
class Api(APIView):
    authentication_classes = ()
    permission_classes = ()

    def get(self, request: Any) -> Response:
        return Response({})


@method_decorator(ratelimit_exempt, name="dispatch")
class Things(ViewSet):
    authentication_classes = ()
    permission_classes = ()

    def list(self, request: Any) -> Response:
        return Response([])


def by_hand(request: HttpRequest) -> HttpResponse:
    return HttpResponse("fine")


by_hand.ratelimit_exempt = True  # type: ignore[attr-defined]

urlpatterns = [
    path("misspelt/", ratelimit(key="nowhere.key", rate="5/m")(limited)),
    path("limited/", limited),
    path("api/", limited),
    path("b/", limited),
    path("c/", limited, name="c"),
    path("d/", limited),
    path("function/", function),
    path("coroutine/", coroutine),
    path("decorated/", never_cache(ratelimit("own", "ip", "100/m")(function))),
    path("as-view/", ratelimit_exempt(Plain.as_view())),
    path("on-class/", OnClass.as_view()),
    path("on-dispatch/", OnDispatch.as_view()),
    path("drf-class/", Api.as_view()),
    path("drf-view-set/", Things.as_view({"get": "list"})),
    path("by-hand/", by_hand),
    path("included/", include([path("", function)])),
    # The module is imported when a request has this prefix.
    URLResolver(RoutePattern("lazy/"), "tests.acceptance.middleware.lazy_urls"),
]
