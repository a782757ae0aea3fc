"""The form of a rule reports every invalid value, and asks for a confirmation of rules that would
refuse all requests.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, User
from django.test import Client
from django.utils import translation

from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule
from django_ratelimit_lua.rules import RuleError
from tests.acceptance.admin import test_admin
from tests.acceptance.admin.test_admin import RULES, confirmed, errors, given
from tests.support.users import form_data

pytestmark = pytest.mark.django_db(transaction=True)
BUCKET = {"algorithm": "token_bucket"}
BANS = {"ban_after": 5, "ban_for": "1h"}


@pytest.mark.parametrize(
    ("fields", "field", "problem"),
    [
        ({"rate": "-1/h"}, "rate", "write N/unit"),
        ({"rate": f"{10**13}/h"}, "rate", "at most"),
        ({"rate": "5/h, 5/600w"}, "rate", "600w"),
        ({"rate": "1/h, 500/h, many"}, "rate", "'many': write N/unit"),
        ({"rate": ""}, "rate", "A rule needs a limit, such as 100/m, unless it is exempt."),
        ({"rate": "2/h, 9/60m"}, "rate", "2/h and 9/h are for the same period: keep the smaller"),
        ({"rate": ", ".join(f"{n}/{n}d" for n in range(1, 12))}, "rate", "at most 10 limits"),
        ({"key": "id"}, "key", "Unknown key 'id'; use all, ip, subnet, user"),
        ({"key": "k" * 301}, "key", "at most 300 characters"),
        ({"key": "ip+app.key"}, "key", "callables are only allowed in the settings"),
        ({"key": ""}, "key", "Choose what to count by, for example ip: the client address."),
        ({"path": "/ok\napi/"}, "path", "api/ is no path, which begins with / or **, and no name"),
        ({"path": "ok\nadmin:index"}, "path", "Enter the name of only one URL pattern."),
        ({"path": "/ok?a=1"}, "path", "a prefix or pattern that begins with / or **, without ?"),
        ({"path": "/" + "a*" * 600}, "path", "at most 50 paths, each of at most 1000 characters."),
        ({"path": "", "exempt": "on"}, "exempt", "An exemption needs a path or a route"),
        ({"audience": ["staff", "anonymous"]}, "audience", "is for one audience, or for groups"),
        ({"cost": -1}, "cost", "0"),
        ({"algorithm": "sliding_log", "rate": "1000000/h"}, "rate", "at most 100000"),
        ({"burst": 5}, "burst", "sliding window has no option “Burst”; it is for token bucket."),
        ({"lease": 5}, "lease", "it is for token bucket or fixed window."),
        ({**BUCKET, "max_wait": 1, "lease": 5}, "lease", "“Longest wait” contradict each other"),
        ({"max_wait": 1}, "max_wait", "it is for token bucket or leaky bucket."),
        ({"algorithm": "fixed_window", "align": "day"}, "align", "“each day” needs a rate"),
        ({"ban_after": 5}, "ban_after", "“Ban after” needs “Ban for” as well."),
        ({**BANS, "ban_for": "1h,36500d"}, "ban_for", "'36500d': write a number and a unit"),
        ({**BANS, "key": "all"}, "ban_after", "A limit for all clients together cannot ban"),
        ({"algorithm": "concurrency"}, "rate", "a number of slots, such as 2, not the rate 2/h."),
    ],
)
@pytest.mark.parametrize("name", ["site", "search"])
def test_errors_name_their_field(
    name: str, fields: dict[str, Any], field: str, problem: str, operator: Client
) -> None:
    """The message has labels and bounds, and is at one field, also in place of a call site."""
    form = given(**{"name": name, "path": "/ok", "key": "ip", "rate": "2/h", **fields})
    found = operator.post(f"{RULES}add/", form).context["adminform"].form.errors
    assert list(found) == [field], found
    (text,) = found[field]
    assert problem in text
    assert not re.search("[{}]|None|True|rule '", text)
    assert not RateLimitRule.objects.exists()


def test_tiers_can_have_several_rates(operator: Client) -> None:
    """They work in the form, in the database and for users in the group."""
    Group.objects.create(name="pro")
    tier = {"tiers-TOTAL_FORMS": 1, "tiers-0-group": "pro", "tiers-0-rate": "50/s, 2/h"}
    operator.post(f"{RULES}add/", {**given(path="/ok", key="ip", rate="1/h"), **tier})
    assert RateLimitRule.objects.get().spec["tiers"] == [{"group": "pro", "rate": ["50/s", "2/h"]}]
    ada = User.objects.create(username="ada")
    ada.groups.add(Group.objects.get())
    client = Client(REMOTE_ADDR="203.0.113.9")
    client.force_login(ada)
    assert [client.get("/ok").status_code for _ in range(3)] == [200, 200, 429]


def test_the_browser_gets_the_bounds_of_an_option(operator: Client) -> None:
    """The bounds are those of its check."""
    widget = operator.get(f"{RULES}add/").context["adminform"].form.fields["burst"].widget
    assert (widget.attrs["min"], widget.attrs["max"]) == (1, 10**12)


def test_all_errors_are_reported_together(operator: Client) -> None:
    """Each error is at its field, in the language of the operator."""
    form = given(path="/ok#", key="id", rate="2/h", burst=5)
    answer = operator.post(f"{RULES}add/", form)
    assert sorted(answer.context["adminform"].form.errors) == ["burst", "key", "path"]
    answer = operator.post(f"{RULES}add/", {**form, "name": ""})
    assert sorted(answer.context["adminform"].form.errors) == ["burst", "key", "name", "path"]
    with translation.override("de"):
        params = {"option": "ban_after", "other": "ban_for"}
        problem = RuleError("ban_after", "%(option)s needs %(other)s as well", params)
        assert problem.localized() != str(problem)
        assert "„" in problem.localized() or "“" in problem.localized()


def test_only_the_warnings_that_were_shown_are_confirmed(operator: Client) -> None:
    """A confirmation without the version of the warnings is not accepted."""
    add, form = f"{RULES}add/", given(key="ip", rate="0/h", path="/zzz/")
    answer = operator.post(add, {**form, "confirm": "on"})
    assert "A limit of 0, or one below the cost, refuses every request" in errors(answer)
    box = answer.context["adminform"].form["confirm"]
    shown = box.field.widget.attrs["value"]
    assert f'value="{shown}"' in str(box)
    assert "checked" not in str(box)
    assert operator.post(add, {**form, "confirm": shown}).status_code == 302


def is_folded(answer: Any) -> bool:
    """Return whether the section *Advanced* is collapsed."""
    return any(section.is_collapsible for section in answer.context["adminform"])


def visible(answer: Any) -> list[str]:
    """Return the fields that the page shows without a script, by their names."""
    form = answer.context["adminform"].form
    sections = answer.context["adminform"]
    names = [field.field.name for section in sections for line in section for field in line]
    return [name for name in names if "data-hidden" not in form.fields[name].widget.attrs]


FIELDS = ["name", "mode", "rate", "key", "path", "group", "method", "audience"]
FIELDS += ["user_agent", "waited", "network", "tiers", "message"]
DENIED = "count_denied"
ADVANCED = ["description", "order", "cost", "algorithm", "on_store_error", "ban_after"]


def test_the_form_has_thirteen_fields_and_the_options_of_the_algorithm(operator: Client) -> None:
    """The options that have no effect are hidden, and shown if they have a value."""
    answer = operator.get(f"{RULES}add/")
    assert visible(answer)[: len(FIELDS)] == FIELDS
    assert {*visible(answer)} == {*FIELDS, *ADVANCED, "exempt", "segments", "count_denied"}
    assert is_folded(answer)
    html = answer.content.decode()
    assert 'name="confirm"' not in html
    assert "Envoy" not in html
    assert "descriptor" not in html
    rule = RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="5/d")
    for options, shown in {
        (("algorithm", "token_bucket"),): {"burst", "max_wait", "lease", "split"},
        (("algorithm", "token_bucket"), ("lease", 5)): {"burst", "max_wait", "lease"},
        (("algorithm", "fixed_window"), ("align", "day")): {"align", "time_zone", DENIED, "lease"},
        (("ban_after", 5), ("ban_for", "1h")): {DENIED, "segments", "ban_window", "ban_for"},
        (("algorithm", "concurrency"),): set(),
    }.items():
        RateLimitRule.objects.filter(pk=rule.pk).update(options=dict(options))
        page = operator.get(f"{RULES}{rule.pk}/change/")
        assert {*visible(page)} == {*FIELDS, *ADVANCED, *shown}, options
        assert not is_folded(page)
        assert len(visible(page)) <= 25


def test_without_a_script_a_button_shows_the_fields_of_another_algorithm(operator: Client) -> None:
    """Nothing is saved, no error is shown, and the plot is that of the entered values."""
    page = operator.get(f"{RULES}add/").content.decode()
    assert '<noscript><div class="submit-row ratelimit-redraw"><button type="submit"' in page
    form = given(path="/ok", key="ip", rate="5/m", algorithm="token_bucket", _redraw="1")
    answer = operator.post(f"{RULES}add/", form)
    assert answer.status_code == 200
    assert "burst" in visible(answer)
    assert "Of 10 requests at once, 5 are allowed." in answer.content.decode()
    assert not is_folded(answer)
    answer = operator.post(f"{RULES}add/", {**form, "rate": "much", "burst": "-1"})
    assert "errorlist" not in answer.content.decode()
    assert not RateLimitRule.objects.exists()


def test_an_advanced_field_with_an_error_is_shown(operator: Client) -> None:
    """This holds for an option that the algorithm does not have."""
    for fields in ({"ban_after": 5}, {"burst": "x"}):
        answer = operator.post(f"{RULES}add/", given(path="/ok", key="ip", rate="2/h", **fields))
        assert not is_folded(answer)
        assert {*fields} <= {*visible(answer)}


def test_a_key_is_chosen_from_a_list_or_entered_as_text(operator: Client) -> None:
    """A key that is not in the list is *other*, with its text. A form may also send the text."""
    form = given(path="/ok", key="other", key_other="ip+post:username", rate="2/h")
    assert operator.post(f"{RULES}add/", form).status_code == 302
    rule = RateLimitRule.objects.get()
    assert rule.key == "ip+post:username"
    url = f"{RULES}{rule.pk}/change/"
    sent = form_data(operator.get(url))
    assert (sent["key"], sent["key_other"]) == (["other"], ["ip+post:username"])
    assert operator.post(url, {**sent, "key": "user_or_ip"}).status_code == 302
    rule.refresh_from_db()
    assert rule.key == "user_or_ip"
    assert form_data(operator.get(url))["key_other"] == [""]


def test_a_url_pattern_is_entered_as_a_path(operator: Client) -> None:
    """The rule has a route, and the form shows it among the paths."""
    operator.post(f"{RULES}add/", given(path="ok", key="ip", rate="2/h"))
    rule = RateLimitRule.objects.get()
    assert (rule.path, rule.route) == ("", "ok")
    url = f"{RULES}{rule.pk}/change/"
    sent = form_data(operator.get(url))
    assert sent["path"] == ["ok"]
    operator.post(url, {**sent, "path": "/no/"})
    rule.refresh_from_db()
    assert (rule.path, rule.route) == ("/no/", "")


def test_the_form_shows_what_each_group_of_clients_gets(operator: Client, client: Client) -> None:
    """A tier without a burst of its own has that of the rule, and so has an override."""
    Group.objects.create(name="pro")
    rule = RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="60/m")
    RateLimitOverride.objects.create(network="127.0.0.1", rule="site", effect="limit", rate="90/m")
    form = given(path="/ok", key="ip", rate="60/m", algorithm="token_bucket", burst=2)
    tier = {"tiers-TOTAL_FORMS": 1, "tiers-0-group": "pro", "tiers-0-rate": "600/m"}

    def groups(**fields: Any) -> dict[str, str]:
        url = f"{RULES}preview/?rule={rule.pk}"
        page = operator.post(url, {**form, **tier, **fields}).content.decode()
        rows = re.findall(r'<th scope="row">(.*?)</th><td>(.*?)</td>', page)
        return dict(rows)

    assert groups() == {
        "everyone": "60 per minute, up to 2 at once",
        "pro": "600 per minute, up to 2 at once",
        "127.0.0.1": "90 per minute, up to 2 at once",
    }
    assert groups(**{"tiers-0-burst": 300})["pro"] == "600 per minute, up to 300 at once"
    leaky = {"algorithm": "leaky_bucket", "burst": "", "queue": 4}
    assert groups(**leaky)["everyone"] == "60 per minute, one at a time, and up to 4 wait"
    assert groups(algorithm="", burst="", rate="5/s, 60/m")["everyone"] == (
        "5 per second and 60 per minute"
    )
    assert groups(name="renamed").keys() == {"everyone", "pro", "127.0.0.1"}
    answer = operator.post(f"{RULES}{rule.pk}/change/", {**form, **tier})
    assert answer.status_code == 302, errors(answer)
    assert [client.get("/ok").status_code for _ in range(3)] == [200, 200, 429]


def test_a_confirmation_is_shown_below_the_warning_that_asks_for_it(operator: Client) -> None:
    """Turning a rule off asks as well."""
    rule = RateLimitRule.objects.create(name="site", path="/ok", key="ip", rate="5/h")
    urls = {
        f"{RULES}add/": given(path="/zzz", key="ip", rate="0/h", name="zero"),
        f"{RULES}{rule.pk}/change/": given(path="/ok", key="ip", rate="5/h", mode="off"),
    }
    for url, form in urls.items():
        assert 'name="confirm"' not in operator.get(url).content.decode()
        html = operator.post(url, form).content.decode()
        assert html.count('name="confirm"') == 1, url
        assert html.index("tick “Confirm” below") < html.index('name="confirm"')
        assert confirmed(operator, url, form).status_code == 302
    rule.refresh_from_db()
    assert rule.mode == "off"


EVERYTHING: dict[str, Any] = {
    "name": "site",
    "path": "/ok\n/no",
    "key": "ip+path",
    "rate": "5/m, 9/d",
    "method": "GET, POST",
    "audience": "group:pro\ngroup:staff",
    "mode": "shadow",
    "message": "Slower.",
    "options": {
        **{"algorithm": "token_bucket", "burst": 4, "max_wait": 1.5, "cost": 2},
        **{"on_store_error": "open", "ban_after": 3, "ban_for": "2h"},
        "tiers": [{"group": "pro", "rate": ["50/m", "90/d"], "burst": 40}],
    },
}


def test_a_user_with_view_permission_sees_every_value(operator: Client) -> None:
    """Columns and options are shown in words."""
    rule = RateLimitRule.objects.create(**EVERYTHING)
    looks = test_admin.staff("view_ratelimitrule", name="looks")
    page = looks.get(f"{RULES}{rule.pk}/change/").content.decode()
    shown = re.findall(r'<div class="readonly">(.*?)</div>', page, re.DOTALL)
    for value in (
        *("site", "/ok<br>/no", "ip+path", "5/m, 9/d", "GET, POST", "Slower.", "shadow mode"),
        *("group:pro<br>group:staff", "token bucket: a steady rate with bursts", "4", "1.5"),
        *("2", "allow requests", "3", "2h", "no", "pro: 50 per minute and 90 per day, burst 40"),
    ):
        assert value in shown, (value, shown)


def test_a_save_without_a_change_keeps_everything(operator: Client) -> None:
    """The log of the admin names the changed fields and no others, by their labels."""
    for name in ("pro", "staff"):
        Group.objects.create(name=name)
    rule = RateLimitRule.objects.create(**EVERYTHING)
    before = rule.spec
    url = f"{RULES}{rule.pk}/change/"
    assert operator.post(url, form_data(operator.get(url))).status_code == 302
    rule.refresh_from_db()
    assert rule.spec == before
    assert LogEntry.objects.latest("pk").get_change_message() == "No fields changed."
    changed = {"method": ["GET"], "burst": "3", "tiers-0-burst": "30", "audience": ["staff"]}
    assert operator.post(url, {**form_data(operator.get(url)), **changed}).status_code == 302
    message = LogEntry.objects.latest("pk").get_change_message()
    assert message == "Changed Methods, Audience, Tiers and Burst."
    emptied = {"tiers-0-group": "", "tiers-0-rate": "", "tiers-0-burst": "", "cost": ""}
    assert operator.post(url, {**form_data(operator.get(url)), **emptied}).status_code == 302
    rule.refresh_from_db()
    assert rule.options.keys() == EVERYTHING["options"].keys() - {"tiers", "cost"}


def test_rules_are_filtered_by_mode_and_found_by_audience(operator: Client) -> None:
    """A search finds the names of groups and of rules."""
    for name, fields in {
        "all": {},
        "members": {"audience": "group:pro"},
        "guests": {"audience": "anonymous", "mode": "off"},
    }.items():
        RateLimitRule.objects.create(name=name, path="/ok", key="ip", rate="5/m", **fields)
    for query, names in (
        ("q=group:pro", ["members"]),
        ("mode__exact=off", ["guests"]),
        ("q=guest", ["guests"]),
    ):
        listed = operator.get(f"{RULES}?{query}").context["cl"].result_list
        assert [rule.name for rule in listed] == names, query


def test_errors_of_tiers_are_in_their_rows(operator: Client) -> None:
    """Each row has its own, and the section is open."""
    Group.objects.create(name="pro")
    rows = {"tiers-TOTAL_FORMS": 3, "tiers-0-group": "plan:pro", "tiers-0-rate": "5/m"}
    rows |= {"tiers-1-group": "pro", "tiers-1-rate": "much"}
    form = given(path="/ok", key="ip", rate="2/h")
    page = operator.post(f"{RULES}add/", {**form, **rows})
    first, second = re.findall(
        r'class="ratelimit-tier">(.*?)name="tiers-[01]-burst"', page.content.decode(), re.DOTALL
    )
    assert "&#x27;plan:pro&#x27; is not KEY:VALUE" in first
    assert "Rate &#x27;much&#x27;" in second
