"""The keys of this site, named in `RATELIMIT_KEYS`."""

from __future__ import annotations

from django.http import HttpRequest

PLANS = {"acme": "pro"}


def tenant(request: HttpRequest) -> str | None:
    """Return the tenant of a request. A real site reads the host name, or the user who is logged
    in.
    """
    return request.GET.get("tenant")


def plan(request: HttpRequest) -> str:
    """Return the plan that the tenant pays for."""
    return PLANS.get(tenant(request) or "", "free")
