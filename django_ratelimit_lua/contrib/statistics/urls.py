"""The endpoint that Prometheus scrapes.

Include it with `path("ratelimit/", include("django_ratelimit_lua.contrib.statistics.urls"))`. Only
clients with `RATELIMIT_METRICS_TOKEN`, and signed-in users who may view rules, get the metrics.
"""

from __future__ import annotations

from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from ...extension import install_hint, is_installed
from .conf import settings as statistics_settings
from .metrics import Collector

PERMISSION = "django_ratelimit_lua.view_ratelimitrule"


@login_not_required  # It has its own check.
@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Return the metrics of all processes, as text for Prometheus or as OpenMetrics."""
    user = getattr(request, "user", None)
    if not (_has_token(request) or (user is not None and user.has_perm(PERMISSION))):
        return HttpResponse(
            f"Send Authorization: Bearer <RATELIMIT_METRICS_TOKEN>, or sign in with the "
            f"permission {PERMISSION}.",
            status=401,
            headers={"WWW-Authenticate": "Bearer"},
        )
    try:
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import choose_encoder
    except ImportError:
        raise ImproperlyConfigured(
            "Metrics need prometheus-client: install django-ratelimit-lua[prometheus]"
        ) from None
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    registry = CollectorRegistry()
    registry.register(Collector())
    return HttpResponse(encode(registry), content_type=content_type)


def _has_token(request: HttpRequest) -> bool:
    """Return whether a request has `RATELIMIT_METRICS_TOKEN`. Without the setting, none has."""
    token = statistics_settings.METRICS_TOKEN
    scheme, _, text = request.headers.get("Authorization", "").partition(" ")
    return (
        token is not None
        and scheme.lower() == "bearer"
        and constant_time_compare(text.strip(), token)
    )


if not is_installed("statistics"):
    raise ImproperlyConfigured(
        f"{__name__} is included, but the app is not installed. {install_hint('statistics')}."
    )
urlpatterns = [path("metrics", metrics, name="ratelimit-metrics")]
