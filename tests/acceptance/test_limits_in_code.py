"""The page of all limits in the code, and new rules that start with their values."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

from django_ratelimit_lua import RateLimiter, ratelimit
from django_ratelimit_lua.models import RateLimitRule
from django_ratelimit_lua.rules.callsite import known_call_sites
from tests.acceptance import test_admin
from tests.acceptance.test_admin import NO_TIERS, RULES, errors, staff
from tests.forms import sent_by
from tests.tiers import add_tier

pytestmark = pytest.mark.django_db(transaction=True)
LIMITS = f"{RULES}limits/"


@ratelimit("looks", ("ip", "get:q"), ["10/s", "500/h"])
def looks(request: HttpRequest) -> HttpResponse:
    return HttpResponse("found")


@ratelimit("signs in", ("ip", "get:user"), "5/15m")
@ratelimit("signs in", "ip", "30/15m")
@ratelimit("signs in", "get:user", "50/h")
def signs_in(request: HttpRequest) -> HttpResponse:
    return HttpResponse("in")


urlpatterns = [*test_admin.urlpatterns, path("looks", looks), path("signs-in", signs_in)]
SETTINGS = {
    "name": "everything",
    "path": "/",
    "key": ("ip", "path"),
    "rate": ["90/m", "900/h"],
    "algorithm": "token_bucket",
    "burst": 20,
    "method": ["GET", "POST"],
    "tiers": [{"group": "pro", "rate": "9000/m"}],
    "message": "Slower.",
}


@pytest.fixture(autouse=True)
def site(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    test_admin.site.__wrapped__(settings, monkeypatch)  # type: ignore[attr-defined]
    settings.ROOT_URLCONF = __name__
    settings.RATELIMIT_RULES = [*settings.RATELIMIT_RULES, SETTINGS]
    RateLimiter("parcels in code", "4/s")
    Group.objects.create(name="pro")


def test_the_page_lists_all_limits_in_the_code(operator: Client) -> None:
    """Each limit has its rates, its key, its place in the code, and the rules that replace or
    extend it.
    """
    RateLimitRule.objects.create(name="looks", rate="3/s, 500/h")
    RateLimitRule.objects.create(name="slower", group="looks", key="ip", rate="1/m")
    page = operator.get(LIMITS).content.decode().replace("<wbr>", "")
    assert f"10 per second and 500 per hour per address and get:q, in {__name__}.looks" in page
    assert f"4 per second per key in the code, in {__name__}, line " in page
    assert "90 per minute and 900 per hour per address and path, in RATELIMIT_RULES" in page
    assert re.search(r"replaced by <a [^>]*>looks</a>: 3 per second and 500 per hour", page)
    assert re.search(r"in addition <a [^>]*>slower</a>", page)
    assert f'href="{LIMITS}"' in operator.get(RULES).content.decode()
    assert (
        "parcels in code" in operator.get(f"{RULES}add/").content.decode()
    )  # The name is completed from it.
    watcher = staff("view_ratelimitrule", name="watcher").get(LIMITS).content.decode()
    assert ("looks" in watcher, "Take over" in watcher) == (True, False)
    assert staff(name="nobody").get(LIMITS).status_code == 403


def test_a_rule_of_the_settings_is_copied_with_all_fields(operator: Client) -> None:
    """Saving the copied values changes no limit."""
    assert f'href="{RULES}add/?settings=everything"' in operator.get(LIMITS).content.decode()
    assert f'href="{RULES}add/?settings=everything"' in operator.get(RULES).content.decode()
    form = sent_by(operator.get(f"{RULES}add/?settings=everything"))
    answer = operator.post(f"{RULES}add/", form)
    assert answer.status_code == 302, errors(answer)
    assert RateLimitRule.objects.get().spec == {
        **SETTINGS,
        "key": ["ip", "path"],
        "method": ["GET", "POST"],
    }
    assert "settings=everything" not in operator.get(LIMITS).content.decode()
    page = operator.get(RULES).content.decode()
    assert "settings=everything" not in page
    assert re.search(rf'everything <a href="{RULES}\d+/change/">taken over</a>', page)


def test_a_limit_that_cannot_be_copied_is_reported(operator: Client, settings: Any) -> None:
    """The rule uses a callable, or does not exist."""
    settings.RATELIMIT_RULES = [
        {"name": "code", "path": "/", "key": f"{__name__}.looks", "rate": "5/m"}
    ]
    page = operator.get(f"{RULES}add/?settings=code").content.decode()
    assert "This rule of the settings cannot be taken over" in page
    assert "there is no rule" in operator.get(f"{RULES}add/?settings=nothing").content.decode()


def test_a_new_rule_starts_with_the_values_of_the_call_site(operator: Client) -> None:
    """A rule that replaces the call site has all its rates, so it needs no confirmation. A rule in
    addition has its key.
    """
    form = sent_by(operator.get(f"{RULES}add/?instead=looks"))
    answer = operator.post(f"{RULES}add/", form)
    assert answer.status_code == 302, errors(answer)
    assert RateLimitRule.objects.get().spec == {"name": "looks", "rate": ["10/s", "500/h"]}
    form = sent_by(operator.get(f"{RULES}add/?beside=looks"))
    operator.post(f"{RULES}add/", {**form, "rate": "2/s"})
    beside = RateLimitRule.objects.get(group="looks")
    assert (beside.name, beside.rate, beside.key) == ("looks, slower", "2/s", "ip+get:q")
    assert [Client().get("/looks").status_code for _ in range(3)] == [200, 200, 429]


def test_a_new_rule_starts_with_the_key_of_the_chosen_limit(operator: Client) -> None:
    """If the rule would replace limits with other keys, the form names them and the way to keep
    them.
    """
    page = operator.get(LIMITS).content.decode()
    for number, words in enumerate(
        ("5 per 15 minutes per address", "30 per 15 minutes", "50 per hour per get:<wbr>user")
    ):
        assert page.index(words) < page.index(f"?beside=signs%20in&amp;which={number}")
        assert f"?instead=signs%20in&amp;which={number}" in page
    values = [(["5/15m"], ["ip+get:user"]), (["30/15m"], ["ip"]), (["50/h"], ["get:user"])]
    for way in ("instead", "beside"):
        forms = [
            sent_by(operator.get(f"{RULES}add/?{way}=signs+in&which={number}"))
            for number in range(3)
        ]
        assert [(form["rate"], form["key"]) for form in forms] == values
    problems = errors(
        operator.post(
            f"{RULES}add/", sent_by(operator.get(f"{RULES}add/?instead=signs+in&which=1"))
        )
    )
    assert "The code has 5 per 15 minutes per address and get:user" in problems
    assert "The code has 50 per hour per get:user" in problems
    assert "fill in “call site” instead: then this rule applies in addition" in problems
    assert "30 per 15 minutes" not in problems
    assert operator.post(f"{RULES}add/", forms[1]).status_code == 302, "beside, nothing is lost"
    assert (
        "A rule counts by one key"
        in operator.get(f"{RULES}call-site/?name=signs+in").content.decode()
    )
    for odd in ("9", "-1", "x", "9" * 30):
        assert operator.get(f"{RULES}add/?instead=signs+in&which={odd}").status_code == 200


def test_a_rule_without_a_key_uses_the_key_in_the_code(operator: Client) -> None:
    """This is the key of the outermost limit. The form names every other limit as lost."""
    form = {"name": "signs in", "rate": "4/15m", "mode": "enforce", "order": 0, **NO_TIERS}
    problems = errors(operator.post(f"{RULES}add/", {**form, "audience": "everyone"}))
    assert "30 per 15 minutes per address (" in problems
    assert "50 per hour per get:user" in problems
    assert "5 per 15 minutes" not in problems
    RateLimitRule.objects.create(name="signs in", rate="1/15m")
    assert "1 per 15 minutes per address and get:user" in operator.get(RULES).content.decode()
    assert [Client().get(f"/signs-in?user={user}").status_code for user in "aab"] == [200, 429, 200]


def test_a_rule_is_saved_as_a_new_one_with_its_tiers(operator: Client) -> None:
    """The new rule has the entered name, and the original is unchanged. The name has to differ."""
    one = RateLimitRule.objects.create(
        name="site", path="/ok\n/no", key="ip", rate="5/m, 9/d", method="GET", mode="shadow"
    )
    add_tier(one, "pro", "50/m")
    url = f"{RULES}{one.pk}/change/"
    form = {**sent_by(operator.get(url)), "_saveasnew": "Save as new"}
    assert "Rule with this Name already exists." in errors(operator.post(url, form))
    answer = operator.post(url, {**form, "name": "site, copy"})
    assert answer.status_code == 302, errors(answer)
    copy = RateLimitRule.objects.get(name="site, copy")
    original = RateLimitRule.objects.get(name="site")
    assert copy.spec == {**original.spec, "name": "site, copy"}
    for odd in ("settings=x", "instead=nothing", "beside="):
        assert operator.get(f"{RULES}add/?{odd}").status_code == 200


def test_a_name_made_at_run_time_is_listed_as_well() -> None:
    """The name is listed as soon as the limiter exists."""
    assert "parcels in code" in known_call_sites.names()
