"""Views that return the revision of the rules by which their request was decided."""

from __future__ import annotations

import os

from django.http import HttpRequest, JsonResponse
from django.urls import path


def revision(request: HttpRequest) -> JsonResponse:
    decision = request.ratelimit
    return JsonResponse(
        {"revision": decision.revision, "limit": decision.limits[0].limit, "process": os.getpid()}
    )


async def arevision(request: HttpRequest) -> JsonResponse:
    return revision(request)


urlpatterns = [path("sync", revision), path("async", arevision)]
