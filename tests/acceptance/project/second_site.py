"""A project with two admin sites: the second one has every model and page of the first one."""

from __future__ import annotations

import json
import re
import time
from html import unescape
from urllib.parse import parse_qsl, urljoin

from django.contrib import admin
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

from django_ratelimit_lua import ratelimit
from django_ratelimit_lua.contrib.breakers import CircuitBreaker
from django_ratelimit_lua.contrib.breakers.models import RateLimitBreaker
from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule

second = admin.AdminSite("second")
for model, model_admin in admin.site._registry.items():
    second.register(model, type(model_admin))


@ratelimit(key="ip", rate="5/h", group="search")
def search(request: HttpRequest) -> HttpResponse:
    return HttpResponse("found")


urlpatterns = [
    path("first/", admin.site.urls),
    path("second/", second.urls),
    path("search/", search),
]
breaker = CircuitBreaker("mail", failures=1)


def fill() -> User:
    """Create rows, counts and a ban. Return an operator with all permissions."""
    RateLimitRule.objects.create(
        name="all", path="/search/", key="ip", rate="1/h", options={"ban_after": 1, "ban_for": "1h"}
    )
    RateLimitRule.objects.create(
        name="held", path="/held/", key="ip", rate="3", options={"algorithm": "concurrency"}
    )
    RateLimitBreaker.objects.create(name="mail", forced="open")
    RateLimitOverride.objects.create(network="203.0.113.9", effect="block")
    operator = User.objects.create_superuser("ada")
    RateLimitOverride.objects.create(user=operator, effect="exempt")
    for address in ("203.0.113.9", *["203.0.113.10"] * 8):
        Client().get("/search/", REMOTE_ADDR=address)
    time.sleep(2)  # The counts are written once a second.
    return operator


def links(page: str, text: str) -> set[str]:
    """Return the links and forms of a page, without styles and scripts."""
    found = re.findall(r'(?:href|action|formaction|data-[a-z-]*url)="([^"#]+)', text)
    return {urljoin(page, unescape(link)) for link in found if not link.startswith("/static/")}


def kind(page: str) -> tuple[str, ...]:
    """Return what is equal for pages of the same view, about other rows and clients."""
    route, _mark, query = page.partition("?")
    return re.sub("[0-9]+", "1", route), *(name for name, _value in parse_qsl(query))


def crawl() -> None:
    """Follow the links of the second site, and print the pages and the links to the first site."""
    client = Client()
    client.force_login(fill())
    seen = {("/second/logout/",), ("/second/autocomplete/",)}
    todo = ["/second/"]
    outside = []
    while todo:
        page = todo.pop()
        if kind(page) in seen:
            continue
        seen.add(kind(page))
        answer = client.get(page)
        assert answer.status_code in (200, 302, 403, 405), (page, answer.status_code)
        text = "" if answer.streaming else answer.content.decode()
        found = links(page, text) | {answer.headers.get("Location", page)}
        outside += [f"{page} -> {link}" for link in found if link.startswith("/first/")]
        todo += [link for link in found if link.startswith("/second/")]
    print(json.dumps({"pages": sorted(seen), "links to the first site": sorted(outside)}, indent=0))
