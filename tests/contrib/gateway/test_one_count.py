"""One count for all ways of limiting, in Django and in the gateway."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.test import Client, RequestFactory
from django.urls import path as url
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_ratelimit_lua import ratelimit
from django_ratelimit_lua.contrib.gateway import protocol
from django_ratelimit_lua.throttling import SimpleRateThrottle
from tests.contrib.gateway.grpc_gateway import Gateway
from tests.contrib.gateway.proxies import SECRET, Site, ask, needs
from tests.urls import LIMITS, ok

UNITS = 100
RULE = {"name": "shared", "path": "/shared/", "key": "all", "rate": f"{UNITS}/h"}
RULE["descriptor"] = ["generic_key=shared"]


decorated = ratelimit(group="shared", key="ip", rate="1000/m")(ok)


class Shared(SimpleRateThrottle):
    scope = "shared"
    rate = "1000/m"

    def get_cache_key(self, request: Request, view: Any) -> str:
        return self.get_ident(request)


class Throttled(APIView):
    throttle_classes = (Shared,)
    authentication_classes = ()
    permission_classes = ()

    def get(self, request: Request) -> Response:
        return Response("ok")


urlpatterns = [url("shared/", ok)]


def is_admitted(port: int) -> bool:
    """Return whether the gateway admits the request of a service."""
    entries = [{"key": "generic_key", "value": "shared"}]
    body = json.dumps({"domain": "site", "descriptors": [{"entries": entries}]})
    found = ask(port, "/json", "POST", body.encode(), X_RateLimit_Secret=SECRET)
    assert found.status in (200, 429)
    return found.status == 200


@pytest.mark.parametrize("proxy", [needs("nginx")])
def test_all_ways_use_the_same_count(
    proxy: str, tmp_path: Path, prefix: str, settings: Any
) -> None:
    """Sixteen clients use all ways at once, which admit exactly the limit of the rule."""
    given = {"RATELIMIT_CACHE_PREFIX": prefix, "RATELIMIT_TRUSTED_PROXIES": 1}
    with (
        Site(tmp_path, [RULE], RATELIMIT_GATEWAY_DIALECT=proxy, **given) as site,
        site.behind(proxy) as port,
    ):
        shared = {name: site.settings[name] for name in ("DATABASES", "CACHES")}
        settings.CACHES, settings.RATELIMIT_RULES = site.settings["CACHES"], [RULE]
        settings.RATELIMIT_TIMEOUT = 5
        settings.ROOT_URLCONF, settings.MIDDLEWARE = __name__, [LIMITS]
        factory = RequestFactory()
        with Gateway(tmp_path, [RULE], **given, **shared) as envoy, envoy.client() as grpc_client:
            view = Throttled.as_view()

            faces: list[Callable[[], bool]] = [
                lambda: decorated(factory.get("/shared/")).status_code == 200,
                lambda: Client().get("/shared/").status_code == 200,
                lambda: view(factory.get("/shared/")).status_code == 200,
                lambda: ask(port, "/shared/").status == 200,
                lambda: grpc_client.code([("generic_key", "shared")]) == protocol.OK,
                lambda: is_admitted(site.port),
            ]

            def client(_: int) -> int:
                return sum(face() for face in faces * 2)

            assert [face() for face in faces] == [True] * len(faces)
            with ThreadPoolExecutor(16) as pool:
                admitted = sum(pool.map(client, range(16)))
            assert admitted == UNITS - len(faces)
            assert [face() for face in faces] == [False] * len(faces)
