"""The panel of Django Debug Toolbar, in a project with it."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.project import Project

pytestmark = pytest.mark.skipif(
    find_spec("debug_toolbar") is None, reason="NO TOOLBAR TEST: pip install django-debug-toolbar"
)
SETTINGS = """
DEBUG = True
INTERNAL_IPS = ["127.0.0.1"]
INSTALLED_APPS += ["debug_toolbar"]
MIDDLEWARE = ["debug_toolbar.middleware.DebugToolbarMiddleware", *MIDDLEWARE]
DEBUG_TOOLBAR_PANELS = ["django_ratelimit_lua.debug_panel.RateLimitPanel"]
RATELIMIT_RULES = [
    {"name": "pages", "path": "/", "key": "ip", "rate": "2/m"},
    {"name": "watched", "path": "/", "key": "ip", "rate": "1/h", "mode": "shadow"},
]
"""
URLS = """
from debug_toolbar.toolbar import debug_toolbar_urls
from django.http import HttpResponse
from django.urls import path
from django_ratelimit_lua import RateLimiter, ratelimit

mails = RateLimiter("mails", "100/h")

@ratelimit("searches", key="ip", rate="5/15m")
def search(request):
    mails.hit(request.user.pk)
    return HttpResponse("<html><body>found</body></html>")

async def idle(request):
    await mails.ahit("x")
    return HttpResponse("<html><body>idle</body></html>")

urlpatterns = [path("", search), path("idle/", idle), *debug_toolbar_urls()]
"""
ASK = """
import json
from asgiref.sync import async_to_sync
from django.test import AsyncClient, Client
from debug_toolbar.store import get_store
from django_ratelimit_lua.debug_panel import RateLimitPanel

def found():
    store = get_store()
    ids = list(store.request_ids())
    stats = store.panel(ids[-1], "RateLimitPanel")
    return [
        [[e.get("name"), e.get("allowed"), e.get("remaining")] for e in decision["limits"]]
        + [decision["source"], decision["microseconds"] > 0]
        for decision in stats["decisions"]
    ]

client = Client()
answers = []
for _ in range(4):
    page = client.get("/", headers={"Accept": "text/html"}).content.decode()
    answers.append(found())
asynchronous = async_to_sync(AsyncClient().get)("/idle/", REMOTE_ADDR="127.0.0.1")
from debug_toolbar.toolbar import DebugToolbar
stored = DebugToolbar.fetch(list(get_store().request_ids())[0], "RateLimitPanel")
panel = stored.get_panel_by_id("RateLimitPanel")
print(json.dumps([answers, "Rate limits" in page, panel.content, str(panel.nav_subtitle)]))
"""


def test_the_panel_shows_each_decision_of_a_request(tmp_path: Path) -> None:
    """Rules, decorators and limiters are listed with what is left, the source and microseconds."""
    project = Project(tmp_path, settings=SETTINGS, urls=URLS)
    project.manage("migrate")
    answers, is_shown, content, subtitle = json.loads(project.execute(ASK))
    assert is_shown
    first, second, third, fourth = answers
    assert first == [
        [["pages", True, 1], ["watched", True, 0], "Redis", True],
        [["searches", True, 4], "Redis", True],
        [["mails", True, 99], "Redis", True],
    ]
    assert second[0][:2] == [["pages", True, 0], ["watched", False, 0]]
    assert third == [[["pages", False, 0], ["watched", False, 0], "Redis", True]]
    assert fourth[0][2] == "memory: a refusal of the last second"
    assert subtitle == "3 decisions"
    for text in ("2 per minute", "shadow mode", "100 per hour", "5 per 15 minutes", "µs"):
        assert text in content
