"""`manage.py ratelimit rules`: the list, explanations, and rules as files."""

from __future__ import annotations

import inspect
import io
import re
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import IntegrityError
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from hypothesis import HealthCheck, given
from hypothesis import settings as example_settings
from hypothesis import strategies as st

from django_ratelimit_lua import ratelimit
from django_ratelimit_lua.management.rules_yaml import apply, dump, export, load, plan
from django_ratelimit_lua.models import (
    RateLimitChange,
    RateLimitOverride,
    RateLimitRevision,
    RateLimitRule,
)
from django_ratelimit_lua.rules import RuleError, provider
from django_ratelimit_lua.rules.describe import describe_spec
from django_ratelimit_lua.rules.options import field_names
from tests.acceptance.rules.rule_strategies import rules as odd_rules
from tests.acceptance.rules.rule_strategies import texts as odd_texts
from tests.examples import examples

pytestmark = pytest.mark.django_db(transaction=True)
ROOT = Path(__file__).parents[3]


@ratelimit("search", "ip", "100/m")
def search(request: HttpRequest) -> HttpResponse:
    return HttpResponse("found")


urlpatterns = [path("search", search), path("ok", lambda request: HttpResponse("ok"), name="ok")]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["django_ratelimit_lua.middleware.RateLimitMiddleware"]
    settings.RATELIMIT_RULES = [
        {"name": "static", "path": "/static/", "exempt": True},
        {"name": "site", "path": "/", "key": "ip", "rate": "600/m"},
    ]


def said(*arguments: Any) -> str:
    output = io.StringIO()
    call_command("ratelimit", "rules", *arguments, stdout=output, stderr=output)
    return output.getvalue()


def test_list_shows_rules_and_their_origin() -> None:
    """Rules are listed in order, with skipped ones."""
    RateLimitRule.objects.create(
        name="site", path="/", key="user_or_ip", rate="5/m", order=3, mode="shadow"
    )
    row = RateLimitRule(name="broken", path="/", key="nonsense", rate="5/m")
    RateLimitRule.objects.bulk_create([row])
    text = said("list")
    assert "     3  admin     site: 5 per minute per user or address, on /, shadow" in text
    assert "     0  settings  static: no limits, on /static/" in text
    assert "skipped: Rules of the admin: rule 'broken': Unknown key 'nonsense'" in text
    assert "2 rules; revision 2" in text


def test_explain_lists_the_limits_of_a_request(settings: Any) -> None:
    """Limits, overrides and blocks are listed with counts, and nothing is counted."""
    User.objects.create(username="ada")
    Client(REMOTE_ADDR="203.0.113.9").get("/search")
    text = said("explain", "--path", "/search", "--ip", "203.0.113.9")
    assert "site (settings): 600 per minute per address" in text
    assert "1 of 600 used, 599 left, resets in" in text
    assert "search:*:ip:100/m (code): 100 per minute per address, at the call site search" in text
    again = said("explain", "--path", "/search", "--ip", "203.0.113.9")
    assert re.sub("resets in [^:\n]*", "", text) == re.sub(
        "resets in [^:\n]*", "", again
    )  # Seconds go by.
    RateLimitOverride.objects.create(user=User.objects.get(), effect="exempt")
    assert "(user ada): exempt: no limit" in said("explain", "--path", "/ok", "--user", "ada")
    RateLimitOverride.objects.create(network="203.0.113.9", effect="block")
    assert "allowed" not in said("explain", "--path", "/ok", "--ip", "203.0.113.9")
    settings.RATELIMIT_RULES = settings.RATELIMIT_RULES[:1]
    key = RateLimitOverride(field="header:X-Key", effect="block", label="Bob's")
    key.set_value("hush")
    key.save()
    text = said("explain", "--path", "/ok", "--header", "X-Key: hush")
    blocked = f"all requests of this client are blocked: override {key.pk} (header:X-Key (Bob's))\n"
    assert text == f"{blocked}The next request like this would be refused.\n"
    found = said("explain", "--path", "/ok")
    assert found == "No rule applies.\nThe next request like this would be allowed.\n"
    assert "exempt: static" in said("explain", "--path", "/static/x.css", "--method", "post")
    assert "No URL pattern matches this path." in said("explain", "--path", "/nowhere/")


def test_export_and_import_are_inverse(tmp_path: Path, settings: Any) -> None:
    """Importing an export changes nothing. A dry run describes the changes without making them."""
    settings.RATELIMIT_KEYS = {
        "tenant": "example_project.keys.tenant",
        "plan": "example_project.keys.plan",
    }
    file = tmp_path / "rules.yaml"
    file.write_text((ROOT / "example_project/rules.yaml").read_text())
    assert said("import", str(file), "--dry-run").splitlines() == [
        "+ exports of a day: 20 per day per address, GET on /export/, shadow mode",
        "+ api: 60 per minute per user, bursts of 20, 600 per minute for pro, on /api/ for "
        "logged-in users",
        "+ tenants: 10 per minute per tenant, 30 per minute for plan:pro, on /orders/",
        "+ reports at once: 2 at once per address, on /report/",
        "4 rules would be added",
    ]
    assert not RateLimitRule.objects.exists()
    said("import", str(file))
    assert yaml.safe_load(said("export")) == yaml.safe_load(file.read_text())
    file.write_text(said("export"))
    assert said("import", str(file)) == "0 rules changed\n"
    override = RateLimitOverride.objects.create(rule="api", rate="9/m", network="203.0.113.9")
    rules = yaml.safe_load(file.read_text())
    rules[1] = {
        **rules[1],
        "rate": "30/m",
        "tiers": [{"group": "pro", "rate": "300/m"}, {"group": "x", "rate": "1/m"}],
    }
    file.write_text(dump(rules[1:]))
    text = said("import", str(file), "--delete")
    assert "    Rate: 60 per minute → 30 per minute" in text
    assert "- exports of a day" in text
    assert RateLimitOverride.objects.get() == override
    assert {change.by for change in RateLimitChange.objects.all()} <= {"ratelimit rules import", ""}
    assert RateLimitRule.objects.get(name="api").spec == rules[1]


def test_an_invalid_file_changes_nothing(tmp_path: Path) -> None:
    """A dry run reports the same error."""
    RateLimitRule.objects.create(name="kept", path="/", key="ip", rate="5/m")
    file = tmp_path / "rules.yaml"
    file.write_text("- {name: new, key: ip, rate: 5/m, path: /}\n- {name: x}")
    for option in ("--dry-run", "--delete"):
        with pytest.raises(CommandError, match="line 2: rule 'x': A rule needs a limit"):
            said("import", str(file), option)
    assert RateLimitRule.objects.get().name == "kept"
    with pytest.raises(CommandError, match="No such file"):
        said("import", str(tmp_path / "nowhere.yaml"))


def test_an_import_deletes_rules_only_with_the_option(tmp_path: Path) -> None:
    """A truncated file deletes nothing, and a warning names the rules that it lacks."""
    for name in ("first", "second", "third"):
        RateLimitRule.objects.create(name=name, path="/", key="ip", rate="500/m")
    file = tmp_path / "rules.yaml"
    whole = said("export")
    file.write_text(whole[: whole.index("- name: second")].replace("500/m", "400/m"))
    assert "- second" in said("import", str(file), "--dry-run", "--delete")
    assert said("export") == whole
    text = said("import", str(file))
    assert "1 rule changed" in text
    assert "not in the file: second, third. --delete deletes these rules." in text
    assert RateLimitRule.objects.count() == 3
    assert "2 rules deleted" in said("import", str(file), "--delete")
    assert RateLimitRule.objects.get().rate == "400/m"


def test_an_import_asks_for_confirmation_of_a_rule_that_refuses_everything(tmp_path: Path) -> None:
    """The warning names the rule."""
    file = tmp_path / "rules.yaml"
    file.write_text("- {name: closed, path: /x, key: user, rate: 5/m, cost: 6}\n")
    with pytest.raises(CommandError, match=r"closed: .*\nNothing was changed. Use --confirm"):
        said("import", str(file))
    assert "closed: " in said("import", str(file), "--dry-run")
    assert not RateLimitRule.objects.exists()
    assert "1 rule added" in said("import", str(file), "--confirm")


def test_a_dry_run_reports_every_problem_of_a_file(tmp_path: Path) -> None:
    """It reports all errors of each rule."""
    file = tmp_path / "rules.yaml"
    file.write_text(
        "- {name: a, key: id, rate: 5/moon, path: api, mode: on}\n- {name: c, colour: red}\n"
        "- {name: good, key: ip, rate: 5/m, path: /}\n"
        "- {name: good, key: ip, rate: 5/m, path: /}\n"
        "- 5\n- {name: b, burst: 5, lease: -1}\n"
    )
    with pytest.raises(CommandError) as raised:
        said("import", str(file), "--dry-run")
    lines = str(raised.value).splitlines()
    wrong = [
        "line 1: rule 'a': path is 'api'",
        "line 1: rule 'a': mode is 'on'",
        "line 2: rule 'c': unknown field 'colour'",
        "Unknown key 'id'",
        "Rate '5/moon'",
        "line 5: 5 is not a rule",
        "line 6: rule 'b': A rule needs a limit",
        "has no option burst",
        "two rules have the name good",
    ]
    assert [problem for problem in wrong if not any(problem in line for line in lines)] == [], lines


def test_a_rule_and_a_limit_in_the_code_are_shown_by_name() -> None:
    """`show` prints the fields, the place in the code and the overrides."""
    RateLimitRule.objects.create(name="search", key="ip", rate="7/m", description="for July")
    override = RateLimitOverride.objects.create(rule="search", rate="9/m", network="203.0.113.9")
    lines = said("show", "search").splitlines()
    assert lines[0] == "search (admin): 7 per minute per address, at the call site search"
    assert "  rate: 7/m" in lines
    line = inspect.unwrap(search).__code__.co_firstlineno
    assert f"in the code: 100 per minute per address, in search, line {line}" in lines
    assert lines[-1] == f"override {override.pk}: 203.0.113.9, 9/m, for search, for good"
    assert "site (settings): 600 per minute per address, on /" in said("show", "site")
    with pytest.raises(CommandError, match="named 'serch'; did you mean 'search'"):
        said("show", "serch")


def test_a_rule_that_locks_operators_out_is_switched_off_from_a_terminal() -> None:
    """The rule is named, and the history has the command."""
    RateLimitRule.objects.create(name="all", path="/", key="ip", rate="0/m")
    assert Client().get("/ok").status_code == 429
    assert said("mode", "all", "off", "--confirm") == "all: 0 per minute per address, on /, off\n"
    assert Client().get("/ok").status_code == 200
    assert RateLimitChange.objects.order_by("-pk")[0].by == "ratelimit rules mode"
    with pytest.raises(CommandError, match="known rules: all"):
        said("mode", "every", "off")


def test_a_rules_file_can_be_piped_to_import(monkeypatch: Any) -> None:
    """`import -` reads standard input."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("- {name: x, key: ip, rate: 1/s, path: /x}"))
    assert "+ x: 1 per second per address, on /x" in said("import", "-")


@pytest.mark.parametrize("name", ["everyone", "anonymous", "authenticated", "staff"])
def test_an_audience_in_a_list_is_not_read_as_the_group_of_that_name(name: str) -> None:
    """A group with the name of an audience needs the prefix `group:`."""
    text = (
        f"- {{name: x, path: /x, key: ip, rate: 1/s, audience: [{name}]}}\n"
        f"- {{name: y, path: /y, key: ip, rate: 1/s, audience: ['group:{name}']}}"
    )
    made, of_groups = load(text).values()
    assert made.get("audience", "everyone") == name
    assert of_groups["audience"] == [f"group:{name}"]
    assert f"for group {name}" in describe_spec(of_groups)
    assert "group" not in describe_spec(made)


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n"])
def test_an_empty_file_deletes_no_rule(text: str, tmp_path: Path) -> None:
    """A file without content is an error."""
    RateLimitRule.objects.create(name="site", path="/", key="ip", rate="2/h")
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    for option in ("--delete", "--dry-run"):
        with pytest.raises(CommandError, match=re.escape("write []")):
            said("import", str(file), option)
    assert RateLimitRule.objects.exists()
    file.write_text("[]\n")
    assert "1 rule deleted" in said("import", str(file), "--delete")
    assert said("export") == "[]\n"


def test_explain_reports_that_a_function_determines_the_address(settings: Any) -> None:
    """The function may return another address than the given one."""
    assert "is a function" not in said("explain", "--ip", "2001:db8::1")
    settings.RATELIMIT_IP_META_KEY = f"{__name__}.whence"
    assert "RATELIMIT_IP_META_KEY is a function" in said("explain", "--ip", "203.0.113.9")


def whence(request: HttpRequest) -> str:
    return "198.51.100.7"


def test_yaml_aliases_and_endless_files_are_refused_before_parsing(tmp_path: Path) -> None:
    """They are refused before they are loaded, so memory stays bounded."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for text in ("\n".join(lines), "- " + "[" * 1_000_000, "- " + "a: " * 100_000):
        with pytest.raises(RuleError):
            load(text)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000
    with pytest.raises(CommandError, match="more than"):
        said("import", "/dev/zero")
    file = tmp_path / "latin.yaml"
    file.write_bytes(b"- {name: \xe9}")
    with pytest.raises(CommandError, match="can't decode"):
        said("import", str(file))


@example_settings(max_examples=examples(30), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(odd_rules, max_size=3))
def test_every_valid_rule_survives_yaml_export_and_import(rows: list[dict[str, Any]]) -> None:
    """Exporting, deleting and importing odd rules gives the same rules."""
    RateLimitRule.objects.all().delete()
    for fields in rows:
        rule = RateLimitRule(**fields)
        with suppress(RuleError, IntegrityError):
            rule.save()
    text, before = export(), [rule.spec for rule in RateLimitRule.objects.all()]
    assert plan(text) == []
    RateLimitRule.objects.all().delete()
    apply(plan(text))
    assert [rule.spec for rule in RateLimitRule.objects.all()] == before
    assert export() == text


numbers = st.integers(-3, 10**20) | st.floats()
scalars = st.none() | st.booleans() | numbers | st.dates() | st.binary(max_size=3) | odd_texts
keys = odd_texts | st.integers()
values = st.recursive(
    scalars,
    lambda of: st.lists(of, max_size=3) | st.dictionaries(keys, of, max_size=3),
    max_leaves=5,
)
declarations = st.dictionaries(
    st.sampled_from([*field_names(), "id", "nonsense"]), values, max_size=6
).map(lambda given: {"name": "x", "path": "/", "key": "ip", "rate": "1/s", **given})


def damaged(text: str, cuts: list[tuple[int, int, str]]) -> str:
    for at, length, put in cuts:
        at %= len(text) + 1
        text = text[:at] + put + text[at + length :]
    return text


EXAMPLE = (ROOT / "example_project/rules.yaml").read_text()
inserted = st.text("-:{}[]&*!|>'\"%@#,? \n\t0x~<", max_size=3)
cuts = st.lists(st.tuples(st.integers(0), st.integers(0, 9), inserted), max_size=4)
texts = st.one_of(
    st.lists(declarations, max_size=2).map(lambda of: yaml.safe_dump(of, allow_unicode=True)),
    st.builds(damaged, st.just(EXAMPLE), cuts),
    st.text(max_size=60),
    st.binary(max_size=60).map(lambda found: found.decode("latin-1")),
)


@example_settings(
    max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck)
)
@given(texts)
def test_any_file_is_parsed_or_reported_with_a_clear_error(text: str) -> None:
    """An invalid file is a `RuleError` that names the line or the rule, and nothing is stored."""
    RateLimitRule.objects.all().delete()
    RateLimitRule.objects.create(name="kept", path="/", key="ip", rate="5/m")
    revision = RateLimitRevision.read("default")
    said_wrong = ""
    try:
        apply(plan(text))
    except RuleError as error:
        said_wrong = str(error)
    if said_wrong:
        assert re.search(
            r"line \d+|rule '|two rules|is empty|not YAML: |must be a list", said_wrong
        )
        assert [rule.name for rule in RateLimitRule.objects.all()] == ["kept"]
        assert RateLimitRevision.read("default") == revision
    else:
        assert plan(export()) == []
        assert provider.reload_ruleset().problems == []


@pytest.mark.parametrize(
    "arguments",
    [["ratelimit", "rules", "explain"], ["ratelimit", "rules", "import", "rules.yaml"]],
    ids=" ".join,
)
def test_a_command_that_needs_urls_reports_a_missing_urlconf(
    arguments: list[str], settings: Any
) -> None:
    """For example, a project of workers has no `ROOT_URLCONF`."""
    del settings.ROOT_URLCONF
    with pytest.raises(CommandError, match="set ROOT_URLCONF"):
        call_command(*arguments)
