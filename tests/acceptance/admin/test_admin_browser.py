"""The admin in a real browser. A real request verifies the effect of each step."""

from __future__ import annotations

import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.utils import translation
from django.utils.translation import gettext
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.support.wait import WebDriverWait

from tests.support.demo import (
    await_page,
    axe_violations,
    fill,
    log_in,
    run_in,
    screenshot,
    script_errors,
    set_screen,
    sign_in,
    start,
)

RULES, OVERRIDES = (
    "admin/django_ratelimit_lua/ratelimitrule/",
    "admin/django_ratelimit_lua/ratelimitoverride/",
)
PAGES = {
    "overview": "admin/django_ratelimit_lua/overview/",
    "rules": RULES,
    "rule": f"{RULES}1/change/",
    "rule-new": f"{RULES}add/",
    "rule-history": f"{RULES}2/history/",
    "overrides": OVERRIDES,
    "override-new": f"{OVERRIDES}add/",
    "limit": f"{RULES}limit/?name=api&period=day",
    "limit-code": f"{RULES}limit/?name=example_project.views.Login.dispatch",
    "client": "admin/django_ratelimit_lua/client/?q=ada+203.0.113.9",
    "client-network": "admin/django_ratelimit_lua/client/?q=203.0.113.0/24",
    "client-reference": "admin/django_ratelimit_lua/client/?q=7ZK4-0MQ2-1AB3",
    "client-one": f"admin/django_ratelimit_lua/client/?digest={'0' * 32}&ask=block",
    "bans": "admin/django_ratelimit_lua/bans/",
    "processes": "admin/django_ratelimit_lua/processes/",
    "breakers": "admin/ratelimit_breakers/ratelimitbreaker/",
    "changes": "admin/django_ratelimit_lua/ratelimitchange/",
    "change": "admin/django_ratelimit_lua/ratelimitchange/1/change/",
}


def status(address: str, **headers: str) -> int:
    """Return the status of a request."""
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers)) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def unfold(browser: Any) -> None:
    """Open all collapsed sections."""
    browser.execute_script(
        "document.querySelectorAll('details').forEach(each => { each.open = true })"
    )


def previewed(browser: Any) -> str:
    """Return the sentence about the plot when it has appeared."""

    def words(page: Any) -> str:
        return str(page.find_element("id", "ratelimit-plot-words").text)

    # The script replaces the plot while it is read.
    missing = [NoSuchElementException, StaleElementReferenceException]
    return WebDriverWait(browser, 20, ignored_exceptions=missing).until(words)


def test_the_rule_form_shows_the_fields_of_the_algorithm(browser: Any, demo: str) -> None:
    """A text for the key is shown only for *other*."""
    sign_in(browser, demo)
    browser.get(f"{demo}{RULES}add/")
    unfold(browser)
    waiting = WebDriverWait(browser, 20)
    pane = browser.find_element("css selector", "[data-preview-into]")
    waiting.until(lambda page: "Enter a limit" in pane.text)
    assert pane.find_elements("css selector", ".ratelimit-problems") == []
    fill(browser, name="search", rate="5/m")
    waiting.until(lambda page: "10 per second and 500 per hour" in pane.text)
    other = browser.find_element("name", "key_other")
    assert not other.is_displayed()
    fill(browser, key="other", key_other="ip+post:username")
    assert other.is_displayed()
    fill(browser, key="ip")
    assert not other.is_displayed()

    def shown() -> set[str]:
        rows = browser.find_elements("css selector", "#ratelimitrule_form .form-row")
        names = [row.get_attribute("class").split()[1] for row in rows if row.is_displayed()]
        return {name.removeprefix("field-") for name in names}

    options = {"burst", "queue", "segments", "align", "time_zone", "lease", "ban_for"}
    for algorithm, offered in {
        "": {"segments"},
        "token_bucket": {"burst", "lease"},
        "leaky_bucket": {"queue"},
        "fixed_window": {"align", "lease"},
        "sliding_log": set(),
        "concurrency": set(),
    }.items():
        for rate in ("", "5/m"):
            fill(browser, algorithm=algorithm, rate=rate)
            assert shown() & options == offered, algorithm
            assert len(shown() - {"tiers"}) <= 25, algorithm
    fill(browser, algorithm="token_bucket", burst="5")
    fill(browser, algorithm="fixed_window", align="day", ban_after="3")
    assert shown() & options == {"burst", "align", "time_zone", "ban_for"}
    browser.find_element("name", "burst").clear()
    assert len(shown() - {"tiers"}) <= 25
    assert script_errors(browser) == []


def test_a_plot_for_logged_out_users_is_labelled(browser: Any, demo: str) -> None:
    """A message replaces the plot, and the input is kept."""
    log_in(browser, demo)
    browser.get(f"{demo}{RULES}add/")
    fill(browser, name="typed", rate="3/m", key="ip", path="/x/")
    assert "Of 6 requests at once, 3 are allowed." in previewed(browser)
    browser.execute_cdp_cmd("Network.deleteCookies", {"name": "sessionid", "url": demo})
    fill(browser, rate="4/m")
    pane = browser.find_element("css selector", "[data-preview-into]")
    WebDriverWait(browser, 20).until(lambda page: "You are logged out" in pane.text)
    assert pane.find_elements("css selector", "form, input") == []
    assert browser.find_element("name", "name").get_attribute("value") == "typed"
    assert script_errors(browser) == []


TIER = ("group", "rate", "burst")


def test_the_form_of_a_rule_shows_its_fields_next_to_the_preview(browser: Any, demo: str) -> None:
    """At 1280 pixels, no field is below the preview."""
    browser.set_window_size(1280, 1000)
    sign_in(browser, demo)
    browser.get(f"{demo}{RULES}add/")
    fields = "#content .ratelimit-columns > div :is(select, input:not([type=hidden]), textarea)"
    shown = [
        field for field in browser.find_elements("css selector", fields) if field.is_displayed()
    ]
    preview = browser.find_element("css selector", ".ratelimit-preview").rect["x"]
    assert [
        one.get_attribute("name") for one in shown if one.rect["x"] + one.rect["width"] > preview
    ] == []
    fill(browser, **{"tiers-0-group": "pro"})
    browser.find_element("css selector", ".ratelimit-tiers button").click()
    assert browser.find_element("name", "tiers-1-group") == browser.switch_to.active_element
    for algorithm in ("", "fixed_window", "token_bucket", "leaky_bucket", "sliding_log"):
        fill(browser, algorithm=algorithm)
        section = browser.find_element("css selector", "details:has(#id_algorithm)")
        names = {
            one.get_attribute("name")
            for one in section.find_elements("css selector", "select, input, textarea")
            if one.is_displayed()
        }
        helps = section.find_elements("css selector", ".help[id]")
        told = {str(one.get_attribute("id"))[3:-9] for one in helps if one.is_displayed()}
        assert told == names, algorithm
    assert script_errors(browser) == []


SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
CUT_FIELDS = """
const fields = [...document.querySelectorAll('form :is(input, select, textarea)')];
return fields.filter(field => !field.closest('.results, .inline-group') &&
  field.getBoundingClientRect().right > window.innerWidth).map(field => field.name)
"""


def opened(browser: Any, demo: str, name: str) -> None:
    """Open a page, and complete the steps that show its content."""
    browser.get(demo + PAGES[name])
    if name in ("rule", "rule-new"):
        WebDriverWait(browser, 20).until(
            lambda shown: shown.find_elements("css selector", "[data-shown] *")
        )


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_accessible_in_every_size_and_color_scheme(
    name: str, browser: Any, demo: str
) -> None:
    """axe finds no problem, the browser blocks nothing, and a phone does not scroll sideways."""
    sign_in(browser, demo)
    opened(browser, demo, name)
    for width, height in SIZES.values():
        set_screen(browser, width, height)
        assert axe_violations(browser) == [], width
        assert browser.execute_script(BROKEN_WORDS, "#content :is(button, .button)") == [], width
        screenshot(browser, f"admin-{name}-{width}-light")
        set_screen(browser, width, height, "dark")
        assert axe_violations(browser, "color-contrast") == [], (
            width
        )  # All else is as in the light.
        screenshot(browser, f"admin-{name}-{width}-dark")
        if name == "rules":
            # Dotted names break after dots, and headings do not break.
            assert browser.execute_script(BROKEN_WORDS, "#result_list :is(th, td)") == [], width
    assert browser.execute_script(OVERFLOWING) == []
    assert browser.execute_script(CUT_FIELDS) == []
    assert script_errors(browser) == []


LONG = "a rule whose name is as long as names become where teams write whole sentences 1"
DOTTED = "shop.checkout.views.PaymentMethodsOfCustomersView.dispatch:POST:ip+post:username"
assert len(LONG) == len(DOTTED) == 80
FURNISH = f"""
import datetime
from django.db import transaction
transaction.set_autocommit(False)  # One change, which is published once.
from django.contrib.auth.models import Group, User
from django.utils import timezone
from django_ratelimit_lua.models import RateLimitOverride as Override, RateLimitRule as Rule
user, group = User.objects.create(username="u" * 80), Group.objects.create(name="g" * 80)
tomorrow = timezone.now() + datetime.timedelta(days=1)
for number, name in enumerate(({LONG!r}, {DOTTED!r}, *(f"rule number {{n}}" for n in range(120)))):
    rule = Rule.objects.create(
        name=name, rate="100/m, 500/h, 5000/d", key="ip+post:username", path=f"/{{'p' * 80}}/{{number}}/",
        description="why " * 20, audience=f"group:{{group.name}}",
    )
    if number == 0:
        rule.options = {{"tiers": [{{"group": group.name, "rate": ["5/m", "50/h"]}}]}}
        rule.save()
        Override.objects.create(user=user, rule=rule, effect="limit", rate="9/m", ends=tomorrow, reason="r" * 80)
        keyed = Override(field="header:X-" + "K" * 78, rule=rule, effect="block", created_by="c" * 80, reason="y " * 40)
        keyed.set_value("hush")
        keyed.save()
        rule.rate, rule.description = "50/m", "d" * 80
        rule.save()
for number in range(110):
    Override.objects.create(network=f"10.{{number}}.0.0/16", effect="block", ends=tomorrow)
Override.objects.create(network="2001:db8:1234:5678:9abc:def0:1234:0/112", effect="exempt", starts=tomorrow)
transaction.commit()
print(keyed.subject)
"""  # noqa: E501
EMPTY = """
from django_ratelimit_lua import models
for model in (models.RateLimitRule, models.RateLimitOverride, models.RateLimitChange):
    model.objects.all().delete()
models.RateLimitChange.objects.all().delete()
"""
OVERFLOWING = """
const width = window.innerWidth, beyond = document.documentElement.scrollWidth - width;
if (beyond <= 0) return [];
const outside = [...document.querySelectorAll("body *")].filter(one => one.getBoundingClientRect().right > width + 1);
return [`${beyond} px`, ...outside.map(one => one.outerHTML.slice(0, 200))];
"""  # noqa: E501
CUT_OFF = """
const places = document.querySelectorAll(".results, .ratelimit-scroll, .inline-group, #content");
const scrolled = [...places].filter(place => place.scrollWidth > place.clientWidth).map(place => place.className);
const parts = document.querySelectorAll("#content :is(td, th, button, input, select, textarea, a)");
const outside = [...parts].filter(one => {
  const box = one.getBoundingClientRect();
  return box.width > 1 && !one.closest(".visually-hidden") && (box.left < 0 || box.right > document.documentElement.clientWidth + 1);
}).map(one => one.outerHTML.slice(0, 200));
const wide = document.documentElement.scrollWidth > document.documentElement.clientWidth;
return [...(wide ? ["page"] : []), ...scrolled, ...outside];
"""  # noqa: E501


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], tuple[str, str]]]:
    """Yield a function that starts a demo with data from code, once: its address and its output."""
    started: dict[str, tuple[tuple[Any, str, str], str]] = {}

    def demo_with(code: str) -> tuple[str, str]:
        if code not in started:
            database = tmp_path_factory.mktemp("demo") / "db.sqlite3"
            process = start(EXAMPLE_DATABASE=str(database))
            started[code] = (process, run_in(database, process[2], code))
        process, printed = started[code]
        return process[1], printed

    yield demo_with
    for (process, _address, _redis), _printed in started.values():
        process.terminate()
        process.communicate(timeout=20)


LONG_PAGES = {
    "rules": RULES,
    "overrides": OVERRIDES,
    "changes": "admin/django_ratelimit_lua/ratelimitchange/",
    "client": "admin/django_ratelimit_lua/client/?q=10.1.0.0/16",
    "override": f"{OVERRIDES}2/change/",
    **{name: f"{RULES}5/{name}/" for name in ("history", "change", "delete")},
    **{"add": f"{RULES}add/", "limit": f"{RULES}limit/?name=rule+number+3"},
}


TOPS = """
const top = name => document.getElementsByName(name)[0].getBoundingClientRect().top;
return arguments[0].map(top);
"""


@pytest.mark.parametrize("name", LONG_PAGES)
def test_no_column_is_cut_off_at_any_width(name: str, browser: Any, places: Any) -> None:
    """With long names and lists, every cell and button is on the screen."""
    address, digest = places(FURNISH)
    sign_in(browser, address)
    browser.get(address + LONG_PAGES[name])
    text = browser.find_element("id", "content").text
    assert digest[:8] not in text
    assert not re.search(r"\d{4}-\d\d-\d\dT|[ap]\.m\.", text)
    for size in SIZES.values():
        set_screen(browser, *size)
        screenshot(browser, f"admin-long-{name}-{size[0]}")
        assert browser.execute_script(CUT_OFF) == [], size
        assert (
            browser.execute_script(BROKEN_WORDS, "#content :is(button, .button, .ratelimit-badge)")
            == []
        ), size
        if name == "change" and size[0] > 500:
            # In one call: the page moves while its preview is loaded.
            tops = browser.execute_script(TOPS, [f"tiers-0-{part}" for part in TIER])
            assert len(set(tops)) == 1
        if name in ("rules", "overrides", "changes", "history"):
            row, cell = "#content tbody tr", "#content tbody td:not(.action-checkbox)"
            shown = [
                browser.execute_script(
                    "return getComputedStyle(document.querySelector(arguments[0])).display", one
                )
                for one in (row, cell)
            ]
            assert shown == (["block", "block"] if size[0] < 500 else ["table-row", "table-cell"])
            named = (
                "return getComputedStyle(document.querySelector(arguments[0]), '::before').content"
            )
            assert (browser.execute_script(named, cell) != "none") == (size[0] < 500)


AS_IT_BEGINS = "pass"
NAMES = {"user", "username", "exports of a day", "reports at once", "ratelimit rules import"}
NAMES |= {"Tried out before it refuses anybody.", "That is enough for today."}
NAMES |= {"More for those who pay."}
"""What the demo has called its own rules and scopes, and the command that has made them."""
DJANGOS_OWN = re.compile(r"- Select an option -|Note: Enter times in the ")
"""What Django 6.1 has not translated itself."""
WORDS = """
const read = [];
const walker = document.createTreeWalker(document.getElementById("content"), NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode;
  if (!node.parentElement.closest("script, style, code, datalist")) read.push(node.data);
}
for (const one of document.querySelectorAll("#content [aria-label]")) read.push(one.ariaLabel);
for (const one of document.querySelectorAll("#content [placeholder]")) read.push(one.placeholder);
for (const one of document.querySelectorAll("#content input[type=submit]")) read.push(one.value);
return [...new Set(read.map(text => text.replace(/\\s+/g, " ").trim()))];
"""


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_translated_to_german(name: str, browser: Any, places: Any) -> None:
    """For a German browser, the page has no English text, and no text is cut off on a phone."""
    demo, _printed = places(AS_IT_BEGINS)
    sign_in(browser, demo)
    opened(browser, demo, name)
    english = set(browser.execute_script(WORDS))
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd("Network.setExtraHTTPHeaders", {"headers": {"Accept-Language": "de"}})
    opened(browser, demo, name)
    german = set(browser.execute_script(WORDS))
    with translation.override("de"):
        assert [text for text in german - NAMES if text and gettext(text) != text] == []
    same = [
        text
        for text in german & english - NAMES
        if re.search(r"^[^_]*[a-z]{2,} [a-z]{2,}[^_]*$", text)
    ]
    assert [text for text in same if not DJANGOS_OWN.match(text)] == []
    for width, height in SIZES.values():
        set_screen(browser, width, height)
        screenshot(browser, f"admin-{name}-{width}-german")
        assert browser.execute_script(CUT_OFF) == [], width


BROKEN_WORDS = """
const broken = [];
for (const cell of document.querySelectorAll(arguments[0])) {
  const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    for (const word of walker.currentNode.data.matchAll(/\\S+/g)) {
      const range = document.createRange();
      range.setStart(walker.currentNode, word.index);
      range.setEnd(walker.currentNode, word.index + word[0].length);
      if (range.getClientRects().length > 1) broken.push(word[0]);
    }
  }
}
return broken;
"""


def test_an_empty_list_links_to_the_first_step(browser: Any, places: Any) -> None:
    """An empty list has a link, and is not a search without results."""
    address, _printed = places(EMPTY)
    sign_in(browser, address)
    for page, words, link, leads_to in (
        (OVERRIDES, "No overrides yet", "Find a client", "admin/django_ratelimit_lua/client/"),
        (PAGES["changes"], "No changes yet", "View rules", RULES),
    ):
        browser.get(address + page)
        assert words in browser.find_element("css selector", ".ratelimit-empty").text
        await_page(browser, browser.find_element("link text", link).click)
        assert browser.current_url == address + leads_to
    sign_in(browser, places(FURNISH)[0])
    browser.get(f"{places(FURNISH)[0]}{RULES}?q=nowhere")
    assert "match the search" in browser.find_element("css selector", ".ratelimit-empty").text
    await_page(browser, browser.find_element("link text", "Show all").click)
    assert browser.find_elements("css selector", "#result_list")
