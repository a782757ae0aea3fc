"""Effects of a rule that its author may not expect and has to confirm."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.urls import include, path

from django_ratelimit_lua import ALL
from django_ratelimit_lua.limits.rate import Rate
from django_ratelimit_lua.models import RateLimitRule
from django_ratelimit_lua.operations.confirmations import (
    changed_confirmations,
    confirmations,
    notices,
)
from django_ratelimit_lua.operations.rules_yaml import apply, plan
from django_ratelimit_lua.rules.callsite import CallSite, call_site, known_call_sites
from django_ratelimit_lua.rules.places import meant_by, route_names


def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


urlpatterns = [
    path("api/", include(([path("things/", view, name="things")], "api"), namespace="v1")),
    path("", view),
]
RULE: dict[str, Any] = {"name": "api", "path": "/api/", "key": "ip", "rate": "5/m"}
SEARCH = CallSite("@ratelimit", "app.search", (Rate.parse("10/s"), Rate.parse("500/h")), "ip")
IN_PLACE = {"path": "", "name": "search", "key": ""}


def rule(**fields: Any) -> RateLimitRule:
    return RateLimitRule.from_spec({**RULE, **fields})


@pytest.fixture(autouse=True)
def site(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site whose code has two limits with one name, and one limit that counts all clients
    together.
    """
    settings.ROOT_URLCONF = __name__
    everybody = CallSite("@ratelimit", "app.all", (Rate.parse("10/s"),), "all")
    monkeypatch.setattr(
        known_call_sites, "_by_name", {"search": (SEARCH,), "together": (everybody,)}
    )


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ({}, []),
        ({"path": "/"}, []),
        ({"path": "/", "exempt": True}, ["path"]),
        ({"path": "/api/", "exempt": True}, []),
        ({"rate": "0/m"}, ["rate"]),
        ({"rate": "0/m", "mode": "off"}, []),
        ({"rate": ["5/m", "0/h"]}, ["rate"]),
        ({"cost": 6}, ["cost"]),
        ({"cost": 5}, []),
        ({"cost": 6, "algorithm": "token_bucket", "burst": 6}, []),
        ({"cost": 6, "algorithm": "token_bucket", "burst": 5}, ["cost"]),
        ({"cost": 6, "algorithm": "leaky_bucket", "queue": 5}, []),
        ({"cost": 6, "algorithm": "leaky_bucket", "queue": 4}, ["cost"]),
        ({**IN_PLACE, "rate": ["5/s", "500/h"]}, []),
        ({**IN_PLACE, "rate": ["11/s", "500/h"]}, []),
        ({**IN_PLACE, "rate": "5/s"}, ["rate"]),
        ({**IN_PLACE, "rate": ["5/s", "500/h"], "key": "path"}, ["rate", "rate"]),
        ({**IN_PLACE, "rate": ["5/s", "500/h"], "mode": "off"}, ["rate", "rate"]),
        ({"path": "", "name": "slow", "group": "search"}, []),
    ],
)
def test_rules_that_refuse_or_admit_all_clients_have_to_be_confirmed(
    words: dict[str, Any], fields: list[str]
) -> None:
    """The confirmation is shown at the field that causes it. Rules without such an effect need
    none.
    """
    assert [field for field, _ in confirmations(rule(**words))] == fields


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("words", "notice"),
    [
        ({}, ""),
        ({"route": "v1:things"}, ""),
        ({"route": "things"}, "No URL pattern has the name “things”"),
        ({"path": ""}, "No imported limit has the name “api”"),
        ({"group": "serach"}, "Did you mean “search”?"),
        ({"key": "user"}, "All clients that are not logged in share one count."),
        ({"key": "user+path", "audience": "anonymous"}, "All clients that are not logged in"),
        ({"key": "user", "audience": "authenticated"}, ""),
        ({"key": "user", "path": "/x", "exempt": True}, ""),
        (
            {"path": "", "name": "together", "key": "", "ban_after": 5, "ban_for": "1h"},
            "the rule never bans",
        ),
        ({"path": "", "name": "together", "key": "ip", "ban_after": 5, "ban_for": "1h"}, ""),
    ],
)
def test_rules_without_effect_get_a_notice(words: dict[str, Any], notice: str) -> None:
    """The notice says why the rule has no effect, or an unexpected one. It does not have to be
    confirmed.
    """
    found = " ".join(notices(rule(**words), None))
    assert found.startswith(notice) if notice[:2] == "No" else notice in found
    assert bool(found) is bool(notice)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("before", "after", "restarts"),
    [
        ({}, {"rate": "9/m"}, False),
        ({}, {"rate": "5/h"}, False),
        ({}, {"key": "user_or_ip"}, True),
        ({}, {"algorithm": "fixed_window"}, True),
        ({"key": "path"}, {"key": "path", "algorithm": "sliding_window"}, False),
        ({}, {"algorithm": "fixed_window", "mode": "off"}, False),
        (None, {}, False),
        (None, {**IN_PLACE, "rate": "100/h"}, False),
        (None, {**IN_PLACE, "rate": "100/h", "key": "path"}, True),
        (None, {**IN_PLACE, "rate": "100/h", "algorithm": "fixed_window"}, True),
    ],
)
def test_counts_that_start_again_are_reported_in_a_notice(
    before: dict[str, Any] | None,
    after: dict[str, Any],
    restarts: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The counts start again if a rule is changed to another key or algorithm, or replaces a limit
    of the code that has another key or algorithm.
    """
    site = call_site("search", "ip", "500/h", ALL, 1, {})
    monkeypatch.setattr(known_call_sites, "_by_name", {"search": (CallSite.of(site, "search"),)})
    was = None if before is None else rule(**before)
    found = notices(rule(**after), was)
    assert any("the counts of this limit start again" in text for text in found) is restarts, found


def test_routes_are_listed_with_their_namespaces() -> None:
    """Routes without a name are not listed."""
    assert route_names() == {"v1:things"}


def test_a_name_close_to_a_call_site_gets_a_suggestion() -> None:
    """The suggestion is the most similar name. There is none if the name is that of a call site or
    similar to none.
    """
    assert [meant_by(name) for name in ("serach", "search", "orders", "")] == ["search", "", "", ""]


@pytest.mark.django_db
def test_a_change_reports_only_the_problems_that_it_causes(settings: Any) -> None:
    """A rule that limits the admin has to be confirmed, unless the same file exempts the admin's
    paths. An exemption that the file deletes does not count.
    """
    settings.ROOT_URLCONF = "tests.acceptance.test_admin"
    text = (
        "- {name: all, path: /**, mode: 'off', key: ip, rate: 5/m}\n- {name: admin, path: "
        "/admin/, exempt: true}"
    )
    assert changed_confirmations(plan(text)) == {}
    apply(plan(text))
    on = text.replace("mode: 'off', ", "")
    assert changed_confirmations(plan(on)) == {}
    lost = changed_confirmations(plan(on.splitlines()[0]))
    assert [len(problems) for problems in lost.values()] == [1]
    assert "limits this admin" in lost["all"][0]
