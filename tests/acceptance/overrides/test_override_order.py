"""The precedence of overrides is the same for rules of every mode and without a rule."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client
from django.urls import path

from django_ratelimit_lua import ratelimit
from django_ratelimit_lua.management.arguments import build_request
from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule
from django_ratelimit_lua.operations.explain import explain
from tests.acceptance.commands.test_command import said

pytestmark = pytest.mark.django_db(transaction=True)
SUBJECTS = ("user", "value", "address", "network")
"""The most particular first, as docs/reference/rules.rst has them."""
EFFECTS = ("block", "exempt", "limit")
"""Which goes first, where all else is the same."""


def limits(request: HttpRequest) -> HttpResponse:
    found = getattr(request, "ratelimit", None)
    return JsonResponse(
        {state.name: state.limit for state in (found.limits if found is not None else ())}
    )


@ratelimit("site", "ip", "5/h")
def at_a_call_site(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


urlpatterns = [
    path("enforced/", limits),
    path("shadow/", limits),
    path("free/", limits),
    path("site/", at_a_call_site),
]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = [
        "tests.support.users.user_from_header",
        "django_ratelimit_lua.middleware.RateLimitMiddleware",
    ]


@dataclass(frozen=True)
class Said:
    """An override of the model: its subject, whether it names the rule, and its effect."""

    subject: str
    names_rule: bool
    effect: str

    def rank(self) -> tuple[int, bool, int]:
        return (SUBJECTS.index(self.subject), not self.names_rule, EFFECTS.index(self.effect))


def counts(said: Sequence[Said]) -> str | None:
    """Return the effect of the override with the highest precedence."""
    return min(said, key=Said.rank).effect if said else None


def row(said: Said, number: int, rule: RateLimitRule) -> RateLimitOverride:
    """Return the override for the visitor of this number, who shares no subject with any other."""
    made = RateLimitOverride(effect=said.effect, rule=rule.name if said.names_rule else "")
    if said.effect == "limit":
        made.rate = "77/h"
    if said.subject == "user":
        made.user_id = number
    elif said.subject == "value":
        made.field = "header:X-API-Key"
        made.set_value(f"key {number}")
    else:
        made.network = (
            f"10.{number // 256}.{number % 256}.{'7' if said.subject == 'address' else '0/24'}"
        )
    return made


def test_override_precedence_is_as_documented() -> None:
    """A more specific subject comes first, then an override that names the rule."""
    rules = {
        mode: RateLimitRule.objects.create(
            name=mode, path=f"/{mode}/", key="ip", rate="5/h", mode=mode_of
        )
        for mode, mode_of in (("enforced", "enforce"), ("shadow", "shadow"))
    }
    every = [Said(*one) for one in itertools.product(SUBJECTS, (True, False), EFFECTS)]
    every = [one for one in every if one.names_rule or one.effect != "limit"]
    cases = [
        (where, pair)
        for pair in itertools.combinations(every, 2)
        for where in ("enforced", "shadow")
        if where == "enforced" or not all(one.effect == "limit" for one in pair)
    ]
    User.objects.bulk_create(
        [User(pk=number, username=f"user {number}") for number in range(1, len(cases) + 1)]
    )
    RateLimitOverride.objects.bulk_create(
        [
            row(one, number, rules[where])
            for number, (where, pair) in enumerate(cases, 1)
            for one in pair
        ]
    )
    client = Client()
    for number, (where, pair) in enumerate(cases, 1):
        for place in (where, "free"):
            general = counts([one for one in pair if not one.names_rule])
            refuses = (counts(pair) if place == "enforced" else general) == "block"
            meta = {"X-User": str(number), "X-API-Key": f"key {number}"}
            address = f"10.{number // 256}.{number % 256}.7"
            response = client.get(f"/{place}/", headers=meta, REMOTE_ADDR=address)
            assert response.status_code == (429 if refuses else 200), (place, pair)
            if place == "enforced" and not refuses:
                expected = {"exempt": {}, "limit": {"enforced": 77}}[str(counts(pair))]
                assert response.json() == expected, pair
            if number % 5 == 0:
                fields = [(f"header:{name}", value) for name, value in meta.items()]
                user = User(pk=number)
                found = explain(build_request(f"/{place}/", "GET", address, user, fields=fields))
                assert found.decision.allowed is not refuses, (place, pair)


def test_a_rule_named_block_is_not_a_block() -> None:
    """A block for all rules is recognized by its effect, and not by the name of a rule."""
    RateLimitRule.objects.create(name="block", path="/free/", key="ip", rate="5/h")
    RateLimitOverride.objects.create(network="10.0.0.7", effect="exempt", rule="block")
    RateLimitOverride.objects.create(network="10.0.0.8", rule="block", rate="3/h")
    for address in ("10.0.0.6", "10.0.0.7", "10.0.0.8"):
        found = explain(build_request("/free/", address=address))
        assert found.block is None
        assert [met.name for met in found.limits] == ["block"]
    blocked = RateLimitOverride.objects.create(network="10.0.0.9", effect="block")
    assert explain(build_request("/enforced/", address="10.0.0.9")).block == blocked


@pytest.mark.parametrize("effect", ["exempt", "limit"])
def test_an_override_of_a_call_site_lifts_no_block_for_all_rules(effect: str) -> None:
    """The middleware refuses before the view is called, and the explanation shows it."""
    rule = RateLimitRule.objects.create(name="site", key="ip", rate="5/h")
    RateLimitOverride.objects.create(network="10.0.0.0/8", effect="block")
    RateLimitOverride.objects.create(rule=rule.name, network="10.0.0.7", effect=effect, rate="3/m")
    assert Client(REMOTE_ADDR="10.0.0.7").get("/site/").status_code == 429
    found = explain(build_request("/site/", address="10.0.0.7"))
    assert not found.decision.allowed
    assert found.block is not None
    assert [met.override.effect for met in found.limits] == [effect]


def test_an_override_that_does_not_fit_a_limit_is_shown_as_skipped() -> None:
    """A limit per minute does not fit calendar windows, which have a fixed period."""
    for name, fields in (
        ("day", {"rate": "5/d", "options": {"algorithm": "fixed_window", "align": "day"}}),
        ("minute", {"rate": "5/m"}),
    ):
        RateLimitRule.objects.create(name=name, path="/", key="ip", **fields)
    for name in ("day", "minute"):
        RateLimitOverride.objects.create(network="10.0.0.7", rule=name, rate="3/m")
    assert Client(REMOTE_ADDR="10.0.0.7").get("/free/").json() == {"day": 5, "minute": 3}
    found = explain(build_request("/free/", address="10.0.0.7"))
    assert {met.name: met.is_skipped for met in found.limits} == {"day": True, "minute": False}
    assert (
        said("explain", "--path", "/free/", "--ip", "10.0.0.7").count("skipped, as it does not fit")
        == 1
    )
