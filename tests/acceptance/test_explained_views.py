"""Why a request was refused is found out for views of every kind: what is explained is what is counted."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache

from django_ratelimit_lua import ratelimit
from django_ratelimit_lua.operations.explain import build_request, explain

TWO, FIVE, NINE = (ratelimit(key="ip", rate=rate) for rate in ("2/h", "5/h", "9/h"))


class Plain(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("fine")


@method_decorator(TWO, name="dispatch")
class OnClass(Plain):
    pass


@method_decorator([FIVE, never_cache, TWO], name="dispatch")
class Between(Plain):
    pass


@method_decorator(FIVE, name="dispatch")
@method_decorator(TWO, name="dispatch")
class Twice(Plain):
    pass


class OnMethod(View):
    @method_decorator([TWO, FIVE])
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("fine")


@method_decorator(NINE, name="dispatch")
class OnBoth(OnMethod):
    pass


@FIVE
@never_cache
@TWO
def function(request: HttpRequest) -> HttpResponse:
    return HttpResponse("fine")


VIEWS = {
    "class": (OnClass.as_view(), 1),
    "between": (Between.as_view(), 2),
    "twice": (Twice.as_view(), 2),
    "method": (OnMethod.as_view(), 2),
    "both": (OnBoth.as_view(), 3),
    "around": (FIVE(OnClass.as_view()), 2),
    "function": (function, 2),
    "plain": (Plain.as_view(), 0),
}
urlpatterns = [path(f"{name}/", view) for name, (view, _) in VIEWS.items()]


@pytest.mark.django_db
@pytest.mark.parametrize("name", VIEWS)
def test_what_is_explained_is_what_is_counted(name: str, settings: Any) -> None:
    """Each limit of the view with the units it has counted, and the refusal with the limit that refuses."""
    settings.ROOT_URLCONF = __name__
    settings.RATELIMIT_ON_STORE_ERROR = "closed"
    client, count = Client(), VIEWS[name][1]
    statuses = [client.get(f"/{name}/").status_code for _ in range(3)]
    explanation = explain(build_request(f"/{name}/", address="127.0.0.1"))
    used = sorted(limit.state.used for limit in explanation.met if limit.state is not None)
    assert len(used) == count
    if not count:
        assert (statuses, explanation.decision.allowed) == ([200] * 3, True)
        return
    assert statuses == [200, 200, 429]
    assert not explanation.decision.allowed
    assert min(used) >= 2
    assert [limit.charge.limit.rate.limit for limit in explanation.met if not limit.state.allowed] == [2]
    assert explain(build_request(f"/{name}/", "POST", address="127.0.0.1")).notes == ()
