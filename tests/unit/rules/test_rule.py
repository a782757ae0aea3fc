"""A rule as it is declared, and as it replaces call sites."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.utils import translation
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimit_lua import ALL, UNSAFE, LimitError, RateLimiter
from django_ratelimit_lua.conf import conf
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.limits.options import OPTIONS
from django_ratelimit_lua.rules import RuleError, compile
from django_ratelimit_lua.rules.rule import Rule
from django_ratelimit_lua.rules.snapshot import compile_entry
from django_ratelimit_lua.views.call_sites import compile_call_site

BY_DAY = {"algorithm": "fixed_window", "align": "day"}
API = {"name": "api", "path": "/api/", "key": "ip", "rate": "100/m"}


def declared(**words: Any) -> Rule:
    return compile({**API, **words})


def limit_name(rule: Rule, group: str = "app.view") -> str:
    assert rule.template is not None
    return rule.template.limit(rule.name_at(group), rule.template.rates[0]).name  # type: ignore[arg-type]


def test_a_rule_is_compiled_as_declared() -> None:
    """The rule holds its conditions, and its template the rates and options."""
    rule = declared(
        method=["GET", "post"],
        audience="anonymous",
        burst=5,
        algorithm="token_bucket",
        cost=2,
        order=3,
    )
    assert (rule.name, rule.paths, rule.methods) == ("api", ("/api/",), {"GET", "HEAD", "POST"})
    assert (rule.audience, rule.order, rule.source) == (("anonymous",), 3, "settings")
    assert rule.template is not None
    assert (str(rule.template.rates[0]), rule.template.cost) == ("100/m", 2)
    assert rule.template.options == {"algorithm": "token_bucket", "burst": 5}
    assert rule.needs_user
    assert not rule.needs_session


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ({"rate": "5/fortnight"}, "rate"),
        ({"rate": None}, "rate"),
        ({"rate": []}, "rate"),
        ({"key": ""}, "key"),
        ({"key": "nobody"}, "key"),
        ({"path": "api/"}, "path"),
        ({"path": 5}, "path"),
        ({"path": ["/"] * 51}, "path"),
        ({"audience": "everybody"}, "audience"),
        ({"audience": ["group:"]}, "audience"),
        ({"audience": "group: staff"}, "audience"),
        ({"method": "GTE"}, "method"),
        ({"mode": "on"}, "mode"),
        ({"order": True}, "order"),
        ({"cost": -1}, "cost"),
        ({"burst": 5}, "burst"),
        ({"exempt": 1}, "exempt"),
        ({"exempt": True, "path": None}, "exempt"),
        ({"message": "a\x00"}, "message"),
        ({"tiers": {"group": "pro"}}, "tiers"),
        ({"tiers": [{"group": "pro"}]}, "tiers"),
        ({"rates": "5/m"}, "name"),
        ({"tiers": [{"group": "pro", "rate": "1/s"}] * 2}, "tiers"),
        ({"description": 5}, "description"),
        ({"route": ""}, "route"),
        ({"group": ""}, "group"),
        ({"cost": 2**60}, "cost"),
        ({"key": "ip\n"}, "key"),
        ({"name": "a\ud800"}, "name"),
        ({"count_denied": "no"}, "count_denied"),
        ({"path": False}, "path"),
        ({"tiers": [{"group": "pro", "rate": "os.system"}]}, "tiers"),
        ({"tiers": [{"group": "pro", "rate": "5/m", "burst": 0}]}, "tiers"),
        ({"algorithm": ["gcra"]}, "algorithm"),
        ({**BY_DAY, "rate": "5/d", "tiers": [{"group": "pro", "rate": "50/m"}]}, "tiers"),
        ({5: "five"}, "name"),
    ],
)
@pytest.mark.parametrize("plain", [False, True], ids=["settings", "file"])
def test_errors_name_their_field(words: dict[Any, Any], field: str, plain: bool) -> None:
    """Settings and files are checked by the same code, for values of any type."""
    with pytest.raises(RuleError) as raised:
        compile({**API, **words}, plain=plain)
    assert raised.value.field == field


@pytest.mark.parametrize(
    "words", [{"key": "app.keys.tenant"}, {"rate": "app.rate"}, {"cost": "app.cost"}]
)
def test_a_rule_of_the_admin_may_not_refer_to_code(words: dict[str, Any]) -> None:
    """Editors of rules may not choose the code that runs."""
    with pytest.raises(RuleError):
        compile({**API, **words}, plain=True)


def test_tiers_are_ordered_and_each_invalid_tier_is_an_error() -> None:
    """The most favourable tier is the first. An error has the group of its tier."""
    tiers = [{"group": "a", "rate": "2/s"}, {"group": "b", "rate": "9/s"}]
    rule = declared(tiers=tiers)
    assert rule.template is not None
    assert [group for group, _ in rule.template.tiers] == ["b", "a"]
    wrong = [{"group": "c", "rate": "1/century"}, {"group": "d", "rate": "5"}]
    with pytest.raises(RuleError, match="tier of 'c'") as raised:
        declared(tiers=[*tiers, *wrong])
    found = [(error.field, error.tier) for error in raised.value.each]
    assert found == [("tiers", "c"), ("tiers", "d")]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"name": " a"}, "without spaces"),
        ({"route": "a\u200b"}, "without invisible"),
        ({"name": "a\u202eb"}, "without invisible"),
        ({"name": "a\u2028b"}, "without control"),
        ({"name": "a\x07b"}, "without control"),
        ({"name": "a" * 201}, "At most 200"),
        ({"audience": [f"group:{'g' * 100}{number}" for number in range(10)]}, "At most 1000"),
        ({"order": 2**31}, "2147483647"),
        ({"exempt": True, "rate": "5/moon"}, "5/moon"),
    ],
)
def test_what_does_not_fit_into_a_row_is_an_error(words: dict[str, Any], text: str) -> None:
    """A rule of the admin or of YAML is checked before it reaches the database."""
    with pytest.raises(RuleError, match=text) as raised:
        compile({**API, **words}, plain=True)
    assert raised.value.field in words


def test_an_error_is_shown_in_the_words_of_the_form() -> None:
    """Operators read labels in their language; the log has names."""
    with pytest.raises(RuleError) as raised:
        declared(ban_after=3)
    assert str(raised.value) == "RATELIMIT_RULES: rule 'api': ban_after needs ban_for as well"
    assert raised.value.params == {"option": "ban_after", "other": "ban_for"}
    with translation.override("de"):
        words = raised.value.localized()
    assert words != raised.value.localized() == "“Ban after” needs “Ban for” as well."


def test_a_call_site_is_a_rule_without_a_name() -> None:
    """Its limits are named by group, methods, key and rate."""
    here = compile_call_site(None, ("ip", "post:username"), "5/m", UNSAFE, 1, {})
    found = (here.name, limit_name(here))
    assert found == ("", "app.view:DELETE,PATCH,POST,PUT:ip+post:username:5/m")
    assert limit_name(compile_call_site("login", "ip", "5/m", "GET", 1, {})) == "login:GET:ip:5/m"
    with pytest.raises(LimitError, match="needs a key"):
        compile_call_site(None, None, "5/m", ALL, 1, {})


def test_a_rule_keeps_its_count_when_its_rate_is_changed() -> None:
    """A single rate is named by the rule alone, so a new rate keeps its count."""
    assert limit_name(declared()) == limit_name(declared(rate="7/h")) == "api"
    assert declared(rate=["10/s", "500/h"]).limit_names() == ["api:s", "api"]
    assert declared(rate=["5/15m", "3/s", "9/h"]).limit_names() == ["api:15m", "api:s", "api"]
    tiers = [{"group": "pro", "rate": ["20/s", "900/h"]}]
    assert declared(tiers=tiers).limit_names() == ["api", "api:s"]


def test_a_rule_that_replaces_call_sites_uses_their_key_and_cost() -> None:
    """The rule uses the key, methods and cost of the call sites unless it has its own."""

    def count_if(request: Any, outcome: Any) -> bool:
        return True

    first = compile_call_site("search", "user", "5/m", "GET", 3, {}, block=False, count_if=count_if)
    second = compile_call_site("search", "ip", "9/m", "POST", 1, {})
    silent = compile({"name": "search", "group": "search", "rate": "1/s"}).replacing(
        [first, second]
    )
    assert silent.template is not None
    found = (silent.key, silent.template.cost, silent.methods)
    assert found == (first.key, 3, {"GET", "HEAD", "POST"})
    assert (silent.block, silent.count_if, silent.replaces) == (False, count_if, (first, second))
    assert limit_name(silent) == "search"
    plain = compile({**API, "name": "search", "method": "PUT", "cost": 1}).replacing(
        [first, second]
    )
    assert plain.template is not None
    assert plain.key is not None
    assert (plain.key.name, plain.template.cost, plain.methods) == ("ip", 1, {"PUT"})


CODE = st.lists(
    st.tuples(
        st.integers(1, 9),
        st.sampled_from("smh"),
        st.sampled_from(["sliding_window", "token_bucket"]),
        st.sampled_from(["ip", "user"]),
    ),
    min_size=1,
    max_size=4,
)


@given(
    CODE,
    st.dictionaries(st.sampled_from("smhd"), st.integers(1, 9), min_size=1),
    st.sampled_from(["", "ip"]),
)
def test_a_rule_continues_only_matching_counts_of_limits_in_code(
    code: list[tuple[int, str, str, str]], rates: dict[str, int], key: str
) -> None:
    """It continues the first count with the same period, key and algorithm."""
    sites = [
        compile_call_site("g", by, f"{limit}/{unit}", ALL, 1, {"algorithm": kind})
        for limit, unit, kind, by in code
    ]
    limiter = RateLimiter(
        "g", list({unit: f"{limit}/{unit}" for limit, unit, _, _ in code}.values())
    )
    declared = {
        "name": "g",
        "group": "g",
        "rate": [f"{limit}/{unit}" for unit, limit in rates.items()],
    }
    compiled = compile(declared | ({"key": key} if key else {}))
    replacing = compiled.replacing(sites).template
    assert replacing is not None
    of_key = [site for site in sites if site.key.name == (key or sites[0].key.name)]
    for template, known in (
        (replacing, [limit for site in of_key for limit in site.template.limits("g")]),
        (compiled.template.replacing(limiter.limits), limiter.limits),
    ):
        limits = template.limits("g")
        assert len({limit.key_part for limit in limits}) == len(limits)
        algorithm = known[0].algorithm if known else conf.ALGORITHM
        for limit in limits:
            assert limit.algorithm == algorithm
            same = [
                one
                for one in known
                if (one.rate.period_us, one.algorithm) == (limit.rate.period_us, algorithm)
            ]
            assert (
                limit.key_part == same[0].key_part
                if same
                else limit.key_part not in {k.key_part for k in known}
            )


@pytest.mark.parametrize(
    ("key", "audience", "lumps"),
    [
        ("user", "everyone", True),
        ("user", "authenticated", False),
        ("user_or_ip", "everyone", False),
        ("ip", "everyone", False),
        (["user", "ip"], "anonymous", False),
    ],
)
def test_a_rule_by_user_counts_all_anonymous_clients_together(
    key: Any, audience: str, lumps: bool
) -> None:
    """Its audience may exclude them."""
    assert declared(key=key, audience=audience).lumps_strangers is lumps


BUCKET = {"algorithm": "token_bucket"}
BANS = {"ban_after": 3, "ban_for": "1h"}
VALUES: dict[str, tuple[dict[str, Any], object, object]] = {
    "algorithm": ({}, "token_bucket", "fixed_window"),
    "burst": (BUCKET, 3, 4),
    "queue": ({"algorithm": "leaky_bucket"}, 3, 4),
    "segments": ({}, 4, 5),
    "align": (BY_DAY, "day", "clock"),
    "time_zone": (BY_DAY, "Europe/Berlin", "Asia/Tokyo"),
    "max_wait": (BUCKET, 3.0, 4.0),
    "count_denied": ({}, True, False),
    "on_store_error": ({}, "closed", "open"),
    "lease": ({**BUCKET, "burst": 9}, 2, 3),
    "split": (BUCKET, True, False),
    "ban_after": (BANS, 3, 4),
    "ban_window": (BANS, "10m", "20m"),
    "ban_for": (BANS, "1h", "2h"),
}


def in_place(code: dict[str, Any], code_rate: object = "7/d", **words: Any) -> Iterator[Limit]:
    """Return the limits of a rule that replaces a call site with these options."""
    site = compile_call_site("g", "ip", code_rate, ALL, 1, code)  # type: ignore[arg-type]
    given = {"name": "g", "group": "g", "rate": "5/d", **words}
    template = compile(given).replacing([site]).template
    assert template is not None
    for each in (template, *(tier for _, tier in template.tiers)):
        yield from each.limits("g")


@pytest.mark.parametrize("option", VALUES)
def test_an_option_that_a_rule_omits_stays_as_in_code(option: str) -> None:
    """An option that the rule has is the rule's."""
    assert VALUES.keys() == OPTIONS.keys() - {"mode"}
    with_it, in_code, in_rule = VALUES[option]
    code = {**with_it, option: in_code}
    tiers = {"tiers": [{"group": "pro", "rate": "6/d"}]}
    for words in ({}, tiers):
        for limit in in_place(code, **words):
            assert {name: getattr(limit, name) for name in code} == code
    for limit in (*in_place(code, key="path"), *in_place(code, lambda *_: "7/d")):
        assert limit.algorithm == conf.ALGORITHM
        assert "algorithm" in code or getattr(limit, option) == in_code
    for limit in in_place(code, **tiers, **{**with_it, option: in_rule}):
        assert getattr(limit, option) == in_rule
    limiter = RateLimiter("g", "7/d", **code)
    rule = compile({"name": "g", "group": "g", "rate": "5/d"})
    assert rule.template is not None
    (limit,) = rule.template.replacing(limiter.limits).limits("g")
    assert getattr(limit, option) == in_code
    assert next(in_place({"mode": "shadow"})).mode == "enforce"


@pytest.mark.parametrize(
    ("code", "words", "left_out"),
    [
        ({**BUCKET, "burst": 3}, {"algorithm": "fixed_window"}, ["burst"]),
        (BY_DAY, {"rate": "5/h"}, ["align"]),
        ({**BUCKET, "max_wait": 3}, {**BUCKET, "lease": 2}, ["max_wait"]),
        (BANS, {**BUCKET, "lease": 2}, ["ban_after", "ban_for"]),
        ({**BANS, "ban_window": "5m"}, {"key": "all"}, [*BANS, "ban_window"]),
        ({**BUCKET, "burst": 3}, {"rate": "5", "algorithm": "concurrency"}, ["burst"]),
    ],
)
def test_an_option_of_the_code_that_does_not_fit_a_rule_is_left_out(
    code: dict[str, Any], words: dict[str, Any], left_out: list[str]
) -> None:
    """The rule's options and the other options of the code apply."""
    (limit,) = in_place({**code, "on_store_error": "closed"}, **words)
    assert [getattr(limit, option) for option in left_out] == [None] * len(left_out)
    assert limit.on_store_error == "closed"
    assert str(limit.rate) == words.get("rate", "5/d")


def test_slots_take_no_options_of_the_rates_in_code() -> None:
    """The slots of a rule do not take the options of the rates in the code, but its rates do."""
    limiter = RateLimiter("g", ["3", "7/d"], algorithm="token_bucket", burst=2)
    for words, burst in (({"rate": "2", "algorithm": "concurrency"}, None), ({"rate": "5/d"}, 2)):
        rule = compile({"name": "g", "group": "g", **words})
        assert rule.template is not None
        (limit,) = rule.template.replacing(limiter.limits).limits("g")
        assert limit.burst == burst


@pytest.mark.parametrize("tier", [{"group": "b", "rate": "1/moon"}, {"group": ""}, {}, 5, ["b"]])
def test_invalid_tiers_of_a_published_rule_are_left_out(tier: object) -> None:
    """Other parts that are invalid leave out the whole rule, or keep its last valid version."""
    given = {**API, "id": 1, "tiers": [{"group": "a", "rate": "2/s"}, tier]}
    read = compile_entry(given, None)
    assert read.rule is not None
    assert read.rule.template is not None
    assert [name for name, _ in read.rule.template.tiers] == ["a"]
    assert "these tiers are skipped" in read.problems[0]
    broken = compile_entry({**given, "rate": "1/moon"}, read.rule)
    assert broken.rule is read.rule
    assert "its last valid version stays in force" in broken.problems[0]
