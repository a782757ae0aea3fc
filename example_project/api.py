"""A REST framework view. Its throttle classes are DRF's own by name; only the import differs."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_ratelimit_lua.throttling import AnonRateThrottle, UserRateThrottle


class Orders(APIView):
    """Orders, with a limit for anonymous visitors and one for everyone: one decision about both."""

    throttle_classes = (AnonRateThrottle, UserRateThrottle)

    def get(self, request: Request) -> Response:
        return Response({"orders": []})
