"""Operators change the thresholds of breakers and force states, in the admin and by a command, in
all processes.
"""

from __future__ import annotations

import datetime
import re
import textwrap
import time
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.core.management.base import CommandError
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from django.utils import timezone
from django.views import View

from django_ratelimit_lua.contrib.breakers import CircuitBreaker, CircuitOpen, circuit
from django_ratelimit_lua.contrib.breakers.checks import check_breakers
from django_ratelimit_lua.contrib.breakers.circuits import circuits
from django_ratelimit_lua.contrib.breakers.gauges import METRICS
from django_ratelimit_lua.contrib.breakers.models import RateLimitBreaker
from django_ratelimit_lua.contrib.breakers.operations import breaker, breakers, force
from django_ratelimit_lua.models import RateLimitChange
from django_ratelimit_lua.operations import rules_yaml
from django_ratelimit_lua.rules.rule import RuleError
from tests.users import ADMIN_MIDDLEWARE, staff

pytestmark = pytest.mark.django_db(transaction=True)
HERE = "/admin/ratelimit_breakers/ratelimitbreaker/"


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    """A site with an admin."""
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ADMIN_MIDDLEWARE


def until(ready: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def payments() -> Iterator[Callable[..., str]]:
    """Yield a function that makes a call through the breaker and returns "paid" or the reason of
    the refusal.
    """
    payments = CircuitBreaker("payments", minimum=10, open_for="30s")

    def pay(identity: Any = None, *, fails: bool = False) -> str:
        try:
            with payments.call(identity) as call:
                if fails:
                    call.fail()
        except CircuitOpen as error:
            return error.reason
        return "paid"

    pay()
    yield pay
    circuits.by_name.pop("payments")


def pays(pay: Callable[..., str], expected: str) -> bool:
    return pay() == expected


@pytest.fixture
def operator() -> Client:
    return staff("force_breaker", name="operator")


def test_a_forced_state_ends_by_itself(payments: Callable[..., str]) -> None:
    """The breaker is open, or closed despite failures, and returns to its own state at the end."""
    force(
        "payments",
        "open",
        until=timezone.now() + datetime.timedelta(seconds=1.5),
        why="maintenance",
    )
    until(lambda: pays(payments, "forced"))
    until(lambda: pays(payments, "paid"))
    force("payments", "closed")
    until(lambda: circuits.by_name["payments"].forced_by() is not None)
    for _ in range(30):
        assert payments(fails=True) == "paid"
    until(lambda: circuits.by_name["payments"].state == "open")
    assert payments() == "paid"
    force("payments", "")
    until(lambda: pays(payments, "open"))


def test_code_can_read_the_forced_state(payments: Callable[..., str]) -> None:
    """`forced` is the forced state until it ends, and `state` is the breaker's own state."""
    breaker = CircuitBreaker("payments", minimum=10, open_for="30s")
    assert (breaker.forced, breaker.state) == ("", "closed")
    force("payments", "open", until=timezone.now() + datetime.timedelta(seconds=1.5))
    until(lambda: pays(payments, "forced"))
    assert (breaker.forced, breaker.state) == ("open", "closed")
    assert repr(breaker) == "<CircuitBreaker 'payments': closed, forced open>"
    until(lambda: not breaker.forced)
    force("payments", "closed")
    until(lambda: breaker.forced == "closed")


def test_a_row_changes_thresholds_and_keeps_the_counts(payments: Callable[..., str]) -> None:
    """The thresholds change while the process runs. Empty fields of the row keep the values in the
    code.
    """
    for _ in range(4):
        payments(fails=True)
    until(lambda: circuits.by_name["payments"].answer.failures == 4)
    RateLimitBreaker.objects.create(name="payments", failures=5)
    until(lambda: circuits.by_name["payments"].by.failures == 5)
    payments()
    assert circuits.by_name["payments"].by.minimum == 10
    payments(fails=True)
    assert payments() == "open"
    RateLimitBreaker.objects.all().delete()
    until(lambda: circuits.by_name["payments"].by.failures is None)
    assert payments() == "open"


def test_an_invalid_row_is_ignored(payments: Callable[..., str]) -> None:
    """The row was edited by hand, so the thresholds in the code apply."""
    RateLimitBreaker.objects.create(name="payments", minimum=7)
    until(lambda: circuits.by_name["payments"].by.minimum == 7)
    RateLimitBreaker.objects.update(window="soon")
    until(lambda: payments() == "paid" and circuits.by_name["payments"].by.minimum == 10)


def test_forced_states_and_thresholds_are_in_the_history(
    payments: Callable[..., str], operator: Client
) -> None:
    """The page of the history shows the operator, the change and the reason."""
    operator.post(
        f"{HERE}one/?name=payments", {"how": "open", "period": "1h", "why": "the bank is down"}
    )
    change = RateLimitChange.objects.get()
    assert (change.by, change.kind, change.name) == ("operator", "breaker", "payments")
    assert (change.after["forced"], change.after["why"]) == ("open", "the bank is down")
    assert LogEntry.objects.get().user.username == "operator"
    superuser = User.objects.create_superuser("root")
    client = Client()
    client.force_login(superuser)
    page = client.get("/admin/django_ratelimit_lua/ratelimitchange/").content.decode()
    assert "the bank is down" in page
    assert "open: calls are stopped" in page


def test_the_list_shows_all_breakers_and_their_states(
    payments: Callable[..., str], operator: Client
) -> None:
    """Breakers without a row are listed as well. States and counts are those of all processes."""
    for _ in range(10):
        payments(fails=True)
    until(lambda: breaker("payments").state == "open")
    page = operator.get(HERE).content.decode()
    assert "payments" in page
    assert ">Open since " in page
    one = operator.get(f"{HERE}one/?name=payments").content.decode()
    assert "It opened because" in one
    assert re.search(r"10 calls, 9 of them failed, 0 were slow\.", one)
    assert operator.get(f"{HERE}one/?name=nothing").status_code == 404


def test_the_pages_begin_with_the_state_in_force(
    payments: Callable[..., str], operator: Client
) -> None:
    """The forced state, its end and its reason come first, followed by the breaker's own state. The
    command has the same order.
    """
    payments(fails=True)
    until(lambda: breaker("payments").failures == 1)
    one = f"{HERE}one/?name=payments"
    for page in (HERE, one):
        assert re.search(r'ratelimit-state on">Closed<', operator.get(page).content.decode())
    operator.post(one, {"how": "open", "period": "1h", "why": "the bank is down"})
    for page in (HERE, one):
        text = operator.get(page).content.decode()
        assert re.search(
            r'ratelimit-state off"><strong>Forced open until .*?</strong></span>'
            r'<div class="help">the bank is down</div><div class="help">Its own state: closed<',
            text,
        )
        assert re.search("refusing|words refused", text)
    assert re.search(
        r"payments: forced open until .* \(the bank is down\); its own state: closed; 2 calls, "
        r"1 failure, 0 slow\n",
        run("list"),
    )
    for _ in range(9):
        payments(fails=True)
    force("payments", "closed")
    for page in (HERE, one):
        text = operator.get(page).content.decode()
        assert 'ratelimit-state on"><strong>Forced closed until it is set to automatic<' in text
        assert not re.search("refusing|words refused", text)


def test_an_operator_forces_a_breaker_in_the_admin(
    payments: Callable[..., str], operator: Client
) -> None:
    """The forced state has an end, and an error is shown at its field."""
    wrong = operator.post(f"{HERE}one/?name=payments", {"how": "ajar", "period": "1h"})
    assert "ajar is not one of the available choices" in wrong.content.decode()
    assert not RateLimitBreaker.objects.exists()
    response = operator.post(
        f"{HERE}one/?name=payments", {"how": "open", "period": "1d"}, follow=True
    )
    assert "It applies in every process within milliseconds." in response.content.decode()
    row = RateLimitBreaker.objects.get()
    assert row.forced == "open"
    assert abs((row.until - timezone.now()).total_seconds() - 86_400) < 60
    until(lambda: pays(payments, "forced"))
    operator.post(f"{HERE}one/?name=payments", {"how": "auto"})
    until(lambda: pays(payments, "paid"))


def test_a_user_without_permission_to_force_can_only_view(payments: Callable[..., str]) -> None:
    """Viewing, changing thresholds and forcing are separate permissions."""
    user = User.objects.create_user("viewer", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_ratelimitbreaker"))
    client = Client()
    client.force_login(user)
    assert "Force a state" not in client.get(f"{HERE}one/?name=payments").content.decode()
    assert client.post(f"{HERE}one/?name=payments", {"how": "open"}).status_code == 403
    assert client.get(f"{HERE}add/").status_code == 403
    stranger = User.objects.create_user("stranger", is_staff=True)
    client.force_login(stranger)
    assert (
        client.get(HERE).status_code == client.get(f"{HERE}one/?name=payments").status_code == 403
    )


def test_thresholds_in_the_admin_are_checked(
    payments: Callable[..., str], admin_client: Client
) -> None:
    """They are checked as in the code, and the error is shown at its field."""
    wrong = admin_client.post(
        f"{HERE}add/", {"name": "payments", "window": "soon", "failure_ratio": "0.5"}
    )
    assert "Enter a time from 10s to 1d" in wrong.content.decode()
    assert admin_client.post(f"{HERE}add/", {"name": "payments", "window": "1m"}).status_code == 302
    assert RateLimitBreaker.objects.get().thresholds() == {"window": "1m"}


def test_all_errors_of_thresholds_are_reported_together(
    payments: Callable[..., str], admin_client: Client
) -> None:
    """Each error is at its own field."""
    wrong = {
        "failure_ratio": "1.5",
        "failures": "0",
        "slow": "2 hours",
        "probes": "5000",
        "open_for": "soon",
    }
    form = admin_client.post(f"{HERE}add/", {"name": "payments", **wrong}).context["adminform"].form
    assert set(form.errors) == set(wrong)


def test_thresholds_that_contradict_the_code_are_refused(
    payments: Callable[..., str], admin_client: Client
) -> None:
    """Otherwise every process would ignore the row, and only the log would report it."""
    page = admin_client.post(f"{HERE}add/", {"name": "payments", "open_max": "1s"})
    assert page.status_code == 200
    assert set(page.context["adminform"].form.errors) == {"open_max"}
    assert not RateLimitBreaker.objects.exists()
    assert (
        admin_client.post(
            f"{HERE}add/", {"name": "payments", "open_for": "1s", "open_max": "1s"}
        ).status_code
        == 302
    )


def test_the_form_shows_the_thresholds_in_the_code(
    payments: Callable[..., str], admin_client: Client
) -> None:
    """They are the placeholders of empty fields. The form also lists the names of the breakers."""
    force("payments", "open")
    row = RateLimitBreaker.objects.get()
    page = admin_client.get(f"{HERE}{row.pk}/change/")
    attributes = {
        name: field.widget.attrs for name, field in page.context["adminform"].form.fields.items()
    }
    shown = {
        word: attributes[word].get("placeholder")
        for word in ("failure_ratio", "failures", "minimum", "open_for")
    }
    assert shown == {"failure_ratio": 0.5, "failures": None, "minimum": 10, "open_for": "30s"}
    html = page.content.decode()
    assert 'min="-' not in html
    assert '<option value="payments">' in html


def test_a_breaker_has_at_most_one_row(payments: Callable[..., str], admin_client: Client) -> None:
    """A breaker that was forced has a row without thresholds, and its form can be edited."""
    force("payments", "open")
    force("payments", "")
    there = f"{HERE}{RateLimitBreaker.objects.get().pk}/change/"
    page = admin_client.post(f"{HERE}add/", {"name": "payments", "failures": "7"}).content.decode()
    assert "Breaker with this Name already exists." in page
    assert admin_client.post(there, {"name": "payments", "failures": "7"}).status_code == 302
    assert RateLimitBreaker.objects.get().thresholds() == {"failures": 7}


def test_the_form_warns_about_a_breaker_that_is_not_in_the_code(
    payments: Callable[..., str], admin_client: Client
) -> None:
    """The warning appears after the row was saved, with a similar name."""
    page = admin_client.post(f"{HERE}add/", {"name": "payment", "failures": "7"}, follow=True)
    assert "the row has no effect. Did you mean “payments”?" in page.content.decode()
    assert RateLimitBreaker.objects.exists()


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("ratelimit", "breakers", *arguments, stdout=out)
    return out.getvalue()


def test_the_command_lists_and_forces_breakers(payments: Callable[..., str]) -> None:
    """A state is forced for a time or for good, with a reason. `auto` ends it."""
    assert "payments: closed; " in run("list")
    assert "forced open until " in run(
        "open", "payments", "--for", "10m", "--reason", "the bank is down"
    )
    until(lambda: pays(payments, "forced"))
    assert RateLimitChange.objects.latest("pk").by == "ratelimit breakers open"
    assert "forced closed until it is set to automatic" in run("close", "payments", "--for-good")
    assert "forced" not in run("auto", "payments")
    until(lambda: pays(payments, "paid"))
    for wrong in (
        ["open", "payment", "--for", "1h"],
        ["open", "payments", "--for", "soon"],
        ["open", "payments", "--for", ""],
        ["ajar", "payments", "--for", "1h"],
    ):
        with pytest.raises(CommandError):
            run(*wrong)


FILE = """
- breaker: payments
  failure_ratio: 0.25
  slow: 3s
- name: api
  path: /api/
  key: ip
  rate: 100/m
"""


def test_thresholds_are_exported_and_imported_with_the_rules(payments: Callable[..., str]) -> None:
    """They are part of the file of the rules. A forced state stays, and a file without breakers
    changes none.
    """
    assert "payments" not in rules_yaml.export()
    changes = rules_yaml.plan(FILE)
    rules_yaml.apply(changes)
    assert [change.name for change in changes] == ["api", "payments"]
    assert RateLimitBreaker.objects.get().thresholds() == {"failure_ratio": 0.25, "slow": "3s"}
    exported = rules_yaml.export()
    assert rules_yaml.plan(exported) == []
    assert "breaker: payments" in exported
    force("payments", "open")
    assert rules_yaml.export() == exported
    (change,) = rules_yaml.plan(FILE.replace("0.25", "0.75"))
    assert change.words() == ["~ breaker payments", "    failure_ratio: 0.25 → 0.75"]
    only_rules = exported.partition("- breaker")[0]
    assert rules_yaml.plan(only_rules) == []
    other = f"{only_rules}- breaker: search\n  minimum: 5\n"
    assert rules_yaml.labels(rules_yaml.deletions(rules_yaml.plan(other))) == "breaker payments"
    rules_yaml.apply(rules_yaml.plan(other), delete=True)
    row = RateLimitBreaker.objects.get(name="payments")
    assert (row.thresholds(), row.forced) == ({}, "open")
    assert RateLimitBreaker.objects.get(name="search").minimum == 5


@pytest.mark.parametrize("wrong", ["window: soon", "minimum: 0", "forced: open", "mood: blue"])
def test_a_file_with_an_invalid_breaker_is_refused(wrong: str) -> None:
    """The error names the line, and no breaker of the file is stored."""
    with pytest.raises(RuleError, match="line 2"):
        rules_yaml.apply(rules_yaml.plan(f"\n- breaker: payments\n  {wrong}\n"))
    with pytest.raises(RuleError, match="two breakers"):
        rules_yaml.apply(
            rules_yaml.plan("- breaker: x\n  minimum: 5\n- breaker: x\n  minimum: 6\n")
        )
    assert not RateLimitBreaker.objects.exists()


def test_the_file_in_the_documentation_is_valid() -> None:
    """The block is valid as it is written."""
    text = (Path(__file__).parents[3] / "docs" / "how-to" / "circuit-breaker.rst").read_text()
    (block,) = re.findall(r"code-block:: yaml\n\n((?:   .*\n)+)", text)
    shown = textwrap.dedent(block)
    assert [(item.word, item.name) for item in rules_yaml.load(shown)][1:] == [
        ("breaker", "payments")
    ]


def said(*arguments: str) -> str:
    """Return the output and the warnings of `manage.py ratelimit rules`."""
    out = StringIO()
    call_command("ratelimit", "rules", *arguments, stdout=out, stderr=out)
    return out.getvalue()


def test_a_breaker_that_is_not_in_the_code_is_reported(
    payments: Callable[..., str], tmp_path: Path
) -> None:
    """The import warns as for rules without an effect. An unchanged name causes no second
    warning.
    """
    file = tmp_path / "rules.yaml"
    file.write_text("- breaker: payment\n  failures: 7\n")
    told = said("import", str(file))
    assert re.search(
        "breaker payment: No imported or recently used breaker has this name.*Did you mean "
        "“payments”",
        told,
    )
    assert "1 breaker added" in told
    file.write_text("- breaker: payment\n  failures: 8\n- breaker: payments\n  failures: 8\n")
    assert said("import", str(file)).endswith("1 breaker added, 1 breaker changed\n")


def scraped() -> dict[tuple[str, ...], float]:
    """Return the current metrics."""
    return {
        (metric.name, *labels): number
        for metric in METRICS
        for labels, number in metric.read().items()
    }


def test_metrics_contain_the_state_of_each_breaker(payments: Callable[..., str]) -> None:
    """The value is 1 for the current state, and 0 for the others."""
    until(lambda: circuits.by_name["payments"].noted_at > 0)
    states = ("closed", "half_open", "open")
    assert [scraped()["breaker_state", "payments", state] for state in states] == [1, 0, 0]
    for _ in range(10):
        payments(fails=True)
    assert [scraped()["breaker_state", "payments", state] for state in states] == [0, 0, 1]


def test_metrics_contain_forced_states(payments: Callable[..., str]) -> None:
    """The metric lasts as long as the forced state, and exists for breakers without calls as well.
    The own state has another metric.
    """

    def told(name: str) -> list[float]:
        return [scraped()["breaker_forced", name, how] for how in ("open", "closed")]

    until(lambda: circuits.by_name["payments"].noted_at > 0)
    assert told("payments") == [0, 0]
    force("payments", "closed")
    force("search", "open", until=timezone.now() + datetime.timedelta(seconds=1.5))
    assert (told("payments"), told("search")) == ([0, 1], [1, 0])
    assert scraped()["breaker_state", "payments", "closed"] == 1
    until(lambda: ("breaker_forced", "search", "open") not in scraped())
    force("payments", "")
    assert told("payments") == [0, 0]


def test_a_breaker_declared_twice_with_different_thresholds_is_a_warning(
    payments: Callable[..., str],
) -> None:
    """Equal thresholds cause no warning."""

    def warnings() -> list[str | None]:  # Other tests of this process have other breakers.
        return [message.id for message in check_breakers() if "'payments'" in message.msg]

    CircuitBreaker("payments", minimum=10, open_for="30s")
    assert warnings() == []
    CircuitBreaker("payments", minimum=11)
    assert warnings() == ["django_ratelimit_lua.W021"]


def test_breakers_of_other_processes_are_listed(payments: Callable[..., str]) -> None:
    """They are read from Redis, although this process has not imported them."""
    until(lambda: circuits.by_name["payments"].noted_at > 0)
    of_others = circuits.by_name.pop("payments")
    try:
        (found,) = [state for state in breakers() if state.name == "payments"]
        assert (found.by.minimum, found.state) == (10, "closed")
    finally:
        circuits.by_name["payments"] = of_others


def recommended(request: HttpRequest) -> HttpResponse:
    return HttpResponse("recommended")


@circuit("checkout", minimum=10, open_for="30s")
def checkout(request: HttpRequest) -> HttpResponse:
    if "fails" in request.GET:
        raise OSError("no route to the bank")
    return HttpResponse("paid")


@circuit("checkout", minimum=10, open_for="30s", fallback=recommended)
def shop(request: HttpRequest) -> HttpResponse:
    return HttpResponse("shop")


paying = CircuitBreaker("checkout", minimum=10, open_for="30s")


class Paying(View):
    @paying
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("paid")


@pytest.fixture
def guarded(settings: Any) -> None:
    """A site whose middleware responds with 503 for an open breaker. Its breaker is closed."""
    settings.MIDDLEWARE = [
        *settings.MIDDLEWARE,
        "django_ratelimit_lua.middleware.RateLimitMiddleware",
    ]
    circuits.by_name["checkout"].forget()


def explained(path: str = "/checkout/?who=ada") -> str:
    """Return the output of `rules explain` for a request."""
    out = StringIO()
    call_command("ratelimit", "rules", "explain", "--path", path, stdout=out)
    return out.getvalue()


@pytest.mark.usefixtures("guarded")
def test_explain_shows_the_effect_of_the_breakers_of_a_view(client: Client) -> None:
    """The output has the states and the outcome, which the next request confirms. The command
    counts nothing.
    """
    assert client.get("/checkout/?who=ada").status_code == 200
    assert "breaker checkout: closed\n" in explained()
    assert "would be allowed" in explained()
    client.raise_request_exception = False
    for _ in range(10):
        client.get("/checkout/?who=ada&fails=")
    assert client.get("/checkout/?who=ada").status_code == 503
    told = explained()
    pattern = (
        r"breaker checkout: open since \d\d:\d\d, next probe in \d+ s; a stopped call gets a 503\n"
    )
    assert re.search(pattern, told), told
    assert told.endswith("The next request like this would be stopped by a breaker.\n")
    assert client.get("/shop/?who=ada").content == b"recommended"
    assert "; a stopped call gets the fallback\n" in explained("/shop/?who=ada")
    force("checkout", "closed")
    until(lambda: client.get("/checkout/?who=ada").status_code == 200)
    told = explained()
    assert (
        "breaker checkout: forced closed until it is set to automatic; its own state: open since"
        in told
    )
    assert "would be allowed" in told
    force("checkout", "open", until=timezone.now() + datetime.timedelta(days=400))
    assert re.search(
        r"checkout: forced open until \d+ \w+ \d{4}, \d\d:\d\d; .*; a stopped call gets a 503\n",
        explained(),
    )


urlpatterns = [
    path("admin/", admin.site.urls),
    path("checkout/", checkout),
    path("shop/", shop),
    path("paying/", Paying.as_view()),
]
