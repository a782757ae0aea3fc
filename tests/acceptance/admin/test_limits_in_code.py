"""The list and the page of limits in the code, and new rules that start with their values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib.auth.models import Group
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from django_ratelimit_lua import RateLimiter, ratelimit
from django_ratelimit_lua.identity.names import name_words
from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule
from django_ratelimit_lua.operations.known_limits import place_words
from django_ratelimit_lua.views.call_sites import known_call_sites
from tests.acceptance.admin import test_admin
from tests.acceptance.admin.test_admin import OVERRIDES, RULES, errors, given
from tests.support.limits import add_tier
from tests.support.users import form_data, staff

pytestmark = pytest.mark.django_db(transaction=True)


@ratelimit("looks", ("ip", "get:q"), ["10/s", "500/h"])
def looks(request: HttpRequest) -> HttpResponse:
    limits = request.ratelimit.limits
    return HttpResponse(" ".join(f"{state.name}={state.limit}" for state in limits))


@ratelimit("signs in", ("ip", "get:user"), "5/15m")
@ratelimit("signs in", "ip", "30/15m")
@ratelimit("signs in", "get:user", "50/h")
def signs_in(request: HttpRequest) -> HttpResponse:
    return HttpResponse("in")


@ratelimit("posts", "ip", "9/h", method="POST")
def posts(request: HttpRequest) -> HttpResponse:
    return HttpResponse("posted")


@method_decorator(ratelimit(key="ip", rate="7/h"), name="dispatch")
class Desk(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


urlpatterns = [
    *test_admin.urlpatterns,
    path("looks", looks),
    path("signs-in", signs_in),
    path("posts", posts),
    path("desk", Desk.as_view()),
]
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
def limits(settings: Any, admin_site: None) -> None:
    """Declare more limits, and a group for tiers."""
    settings.RATELIMIT_RULES = [*settings.RATELIMIT_RULES, SETTINGS]
    RateLimiter("parcels in code", "4/s")
    Group.objects.create(name="pro")


def row_of(page: str, name: str) -> str:
    """Return the rows of the list with the links of a limit, without marks for line breaks."""
    rows = [row for row in page.replace("<wbr>", "").split("<tr") if f"name={name}" in row]
    return "".join(rows)


def test_the_list_has_all_limits_in_the_code_and_the_settings(operator: Client) -> None:
    """Each row has one sentence, and links to new rules."""
    page = operator.get(RULES).content.decode()
    assert "10 per second and 500 per hour per address and get:q" in row_of(page, "looks")
    assert re.search(r"looks, line \d+", row_of(page, "looks"))
    assert f'href="{RULES}add/?beside=looks&amp;which=0">Add a limit here' in row_of(page, "looks")
    assert f'href="{RULES}add/?instead=looks&amp;which=0">Replace this limit' in page
    assert "4 per second per identity in the code" in row_of(page, "parcels+in+code")
    assert "90 per minute and 900 per hour per address and path" in row_of(page, "everything")
    assert "in the settings" in row_of(page, "everything")
    RateLimitRule.objects.create(name="looks", rate="3/s, 500/h")
    page = operator.get(RULES).content.decode()
    assert "3 per second and 500 per hour per address and get:q" in row_of(page, "looks")
    assert "instead=looks" not in page
    for query, names in (("q=parcels", ["parcels in code"]), ("mode__exact=enforce", [])):
        others = operator.get(f"{RULES}?{query}").context["cl"].others
        assert [limit.name for limit, *_ in others] == names
    watcher = staff("view_ratelimitrule", name="watcher").get(RULES).content.decode()
    assert ("parcels in code" in watcher, "?instead=" in watcher) == (True, False)
    assert staff(name="nobody").get(RULES).status_code == 403


def test_a_view_names_its_limit_by_its_line() -> None:
    """This holds for functions, classes, methods and inherited methods. Other names stay."""
    place = f"{__name__}.Desk"
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    desk = lines.index('@method_decorator(ratelimit(key="ip", rate="7/h"), name="dispatch")') + 1
    assert place_words(place) == f"Desk, line {desk}"
    assert place_words(f"{place}.dispatch") == f"Desk.dispatch, line {desk}"
    assert place_words(f"{place}.get") == f"Desk.get, line {desk + 2}"
    for name in ("looks", "no.such.place", f"{__name__}.nothing", "a b", "", ".", f"{__name__}."):
        assert place_words(name) == name_words(name)


def test_overrides_name_a_limit_by_its_place_too(operator: Client) -> None:
    """The form offers it so, and the list shows it so."""
    name = f"{__name__}.Desk.dispatch"
    known_call_sites.add_name(name)
    form = operator.get(f"{OVERRIDES}add/").content.decode()
    assert f'<option value="{name}">{place_words(name)}</option>' in form
    RateLimitOverride.objects.create(network="203.0.113.9", rule=name, effect="exempt")
    listed = operator.get(OVERRIDES).content.decode()
    assert f'field-of_rule">{place_words(name)}</td>' in listed


def test_the_page_of_a_limit_has_its_sentence_and_links(operator: Client) -> None:
    """It finds clients, lists overrides, and shows the count that all clients share."""
    url = f"{RULES}limit/"

    def page(name: str) -> str:
        return operator.get(url, {"name": name}).content.decode().replace("<wbr>", "")

    assert "10 per second and 500 per hour per address and get:q" in page("looks")
    assert f'href="{RULES}add/?instead=looks&amp;which=0"' in page("looks")
    assert '<input type="hidden" name="name" value="looks">' in page("looks")
    rule = RateLimitRule.objects.create(name="site", path="/looks", key="all", rate="5/h")
    RateLimitOverride.objects.create(network="203.0.113.9", rule="site", effect="exempt")
    assert [Client().get("/looks").status_code for _ in range(2)] == [200] * 2
    text = page("site")
    assert "5 per hour for all clients together, on /looks" in text
    assert "Used by all clients together: 2 of 5." in text
    assert f'href="{RULES}{rule.pk}/change/"' in text
    assert "203.0.113.9</a>: exempt: no limit" in text
    assert operator.get(url, {"name": "nothing"}).status_code == 404
    assert operator.get(url, {"name": "nu\0l"}).status_code == 404
    watcher = staff("view_ratelimitrule", name="watcher")
    text = watcher.get(url, {"name": "site"}).content.decode()
    assert ("203.0.113.9</a>" in text, "/change/" in text) == (False, False)
    assert staff(name="nobody").get(url, {"name": "site"}).status_code == 403


def test_a_rule_of_the_settings_is_copied_with_all_fields(operator: Client) -> None:
    """Saving the copied values changes no limit."""
    assert f'href="{RULES}add/?settings=everything"' in operator.get(RULES).content.decode()
    form = form_data(operator.get(f"{RULES}add/?settings=everything"))
    answer = operator.post(f"{RULES}add/", form)
    assert answer.status_code == 302, errors(answer)
    found = RateLimitRule.objects.get().spec
    assert found == {**SETTINGS, "key": ["ip", "path"], "method": ["GET", "POST"]}
    assert "settings=everything" not in operator.get(RULES).content.decode()


def test_a_limit_that_cannot_be_copied_is_reported(operator: Client, settings: Any) -> None:
    """The rule uses a callable, or does not exist."""
    settings.RATELIMIT_RULES = [
        {"name": "code", "path": "/", "key": f"{__name__}.looks", "rate": "5/m"}
    ]
    page = operator.get(f"{RULES}add/?settings=code").content.decode()
    assert "This rule of the settings cannot be taken over" in page
    assert "there is no rule" in operator.get(f"{RULES}add/?settings=nothing").content.decode()


def test_a_new_rule_starts_with_the_values_of_the_call_site(operator: Client) -> None:
    """A rule that replaces the call site has all its rates, so it needs no confirmation."""
    form = form_data(operator.get(f"{RULES}add/?instead=looks"))
    answer = operator.post(f"{RULES}add/", form)
    assert answer.status_code == 302, errors(answer)
    assert RateLimitRule.objects.get().spec == {"name": "looks", "rate": ["10/s", "500/h"]}
    form = form_data(operator.get(f"{RULES}add/?beside=looks"))
    operator.post(f"{RULES}add/", {**form, "rate": "2/s"})
    beside = RateLimitRule.objects.get(group="looks")
    assert (beside.name, beside.rate, beside.key) == ("looks, slower", "2/s", "ip+get:q")
    assert [Client().get("/looks").status_code for _ in range(3)] == [200, 200, 429]


def test_a_rule_beside_a_call_site_counts_the_same_methods(operator: Client) -> None:
    """Otherwise the page of a form would be refused after a few views of it."""
    form = form_data(operator.get(f"{RULES}add/?beside=posts"))
    assert operator.post(f"{RULES}add/", {**form, "rate": "1/h"}).status_code == 302
    assert RateLimitRule.objects.get(group="posts").spec["method"] == ["POST"]
    visitor = Client()
    assert [visitor.get("/posts").status_code for _ in range(3)] == [200] * 3
    assert [visitor.post("/posts").status_code for _ in range(2)] == [200, 429]


def test_a_new_rule_starts_with_the_key_of_the_chosen_limit(operator: Client) -> None:
    """Each of several limits with one name has a row of its own."""
    page = operator.get(RULES).content.decode()
    for number, words in enumerate(
        ("5 per 15 minutes per address", "30 per 15 minutes", "50 per hour per get:<wbr>user")
    ):
        assert page.index(words) < page.index(f"?beside=signs%20in&amp;which={number}")
        assert f"?instead=signs%20in&amp;which={number}" in page
    values = [("5/15m", "ip+get:user"), ("30/15m", "ip"), ("50/h", "get:user")]
    for way in ("instead", "beside"):
        pages = [operator.get(f"{RULES}add/?{way}=signs+in&which={number}") for number in range(3)]
        initial = [each.context["adminform"].form.initial for each in pages]
        assert [(each["rate"], each["key"]) for each in initial] == values
    form = form_data(operator.get(f"{RULES}add/?instead=signs+in&which=1"))
    shown = operator.post(f"{RULES}preview/", form).content.decode().replace("<wbr>", "")
    assert "5 per 15 minutes per address and get:user" in shown
    assert "50 per hour per get:user" in shown
    assert operator.post(f"{RULES}add/", form).status_code == 302
    for odd in ("9", "-1", "x", "9" * 30):
        assert operator.get(f"{RULES}add/?instead=signs+in&which={odd}").status_code == 200


def test_a_rule_without_a_key_has_the_key_in_the_code_on_every_page(operator: Client) -> None:
    """This is the key of the outermost limit, or that of the limiter, and no page leaves it out."""
    RateLimitRule.objects.create(
        name="signs in", rate="1/15m", options={"tiers": [{"group": "pro", "rate": "9/15m"}]}
    )
    RateLimitRule.objects.create(name="parcels in code", rate="2/h")
    for words, name in (
        ("1 per 15 minutes per address and get:user, 9 per 15 minutes for pro", "signs in"),
        ("2 per hour per identity in the code", "parcels in code"),
    ):
        rule = RateLimitRule.objects.get(name=name)
        assert rule.describe().startswith(words)
        for page in (
            *(RULES, f"{RULES}limit/?name={quote(name)}", f"{RULES}{rule.pk}/history/"),
            RULES.replace("ratelimitrule", "ratelimitchange"),
        ):
            text = operator.get(page).content.decode().replace("<wbr>", "")
            assert words in text, page
            assert "key in the code" not in text
    assert [Client().get(f"/signs-in?user={user}").status_code for user in "aab"] == [200, 429, 200]


def test_all_rates_of_a_rule_replace_those_of_a_call_site(operator: Client) -> None:
    """A request is refused if any of the rates is used up."""
    operator.post(f"{RULES}add/", given(name="looks", rate="100/s, 500/h, 3/d"))
    assert RateLimitRule.objects.get().rate == "100/s, 500/h, 3/d"
    answers = [Client().get("/looks") for _ in range(4)]
    assert b"looks:s=100 looks:h=500 looks=3" in answers[0].content
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert "100 per second and 500 per hour and 3 per day" in operator.get(RULES).content.decode()


def test_the_form_shows_the_limits_that_a_name_replaces(operator: Client) -> None:
    """It shows the rates, the key and the place in the code, and suggests a similar name."""

    def shown(**fields: Any) -> str:
        page = operator.post(f"{RULES}preview/", given(**{"rate": "3/h", **fields}))
        return page.content.decode().replace("<wbr>", "")

    replaces = "Replaces: 10 per second and 500 per hour per address and get:q (looks, line "
    assert replaces in shown(name="looks")
    assert "7 per hour per address" in shown(name=f"{__name__}.Desk.dispatch")
    assert "Did you mean “looks”?" in shown(name="lookz", key="ip")
    assert "Replaces" not in shown(name="looks", path="/looks", key="ip")
    rule = RateLimitRule.objects.create(name="looks", rate="3/s, 500/h")
    for url in (f"{RULES}{rule.pk}/change/", f"{RULES}limit/?name=looks"):
        assert "Replaces: 10 per second" in operator.get(url).content.decode()


def test_a_rule_is_saved_as_a_new_one_with_its_tiers(operator: Client) -> None:
    """The new rule has the entered name, and the original is unchanged. The name has to differ."""
    one = RateLimitRule.objects.create(
        name="site", path="/ok\n/no", key="ip", rate="5/m, 9/d", method="GET", mode="shadow"
    )
    add_tier(one, "pro", "50/m")
    url = f"{RULES}{one.pk}/change/"
    form = {**form_data(operator.get(url)), "_saveasnew": "Save as new"}
    assert "Rule with this Name already exists." in errors(operator.post(url, form))
    answer = operator.post(url, {**form, "name": "site, copy"})
    assert answer.status_code == 302, errors(answer)
    copy = RateLimitRule.objects.get(name="site, copy")
    original = RateLimitRule.objects.get(name="site")
    assert copy.spec == {**original.spec, "name": "site, copy"}
    for odd in ("settings=x", "instead=nothing", "beside="):
        assert operator.get(f"{RULES}add/?{odd}").status_code == 200
