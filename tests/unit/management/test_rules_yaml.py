"""Rules as YAML are validated strictly, and nothing is saved or read from the database."""

from __future__ import annotations

import pytest

from django_ratelimit_lua.management.rules_yaml import RuleChange, load
from django_ratelimit_lua.rules import RuleError

RULE = {"name": "api", "path": "/api/", "key": "ip", "rate": "100/m"}
ONE = "- {name: a, path: /, key: ip, rate: 5/m}\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty; write [] for no rules"),
        ("name: api", "must be a list of rules"),
        ("- name: api\n  name: b", "Rules, line 2: not YAML: 'name' is given twice"),
        ("- tiers: [{rate: 1/m}, {rate: 2/m}, {rate: 1/s, rate: 2/s}]", "'rate' is given twice"),
        ("- name: rate\n  key: rate", "rule 'rate'"),
        ("- &a {name: api}\n- *a", "line 2: not YAML: aliases (*) are not supported"),
        ("[" * 10_000, "maximum recursion depth"),
        ("- name: x\n- ? [a, b]\n  : 1", "line 2: not YAML: found unhashable key"),
        ("- \x01", "not YAML"),
        (f"\n{ONE}- {{name: b, path: /, key: ip, rate: 5/moon}}", "Rules, line 3: rule 'b'"),
        (ONE * 2, "Rules, line 2: two rules have the name a"),
        ("- 2026-99-99", "'2026-99-99' is not a rule"),
        ("- {name: 5}", "line 1: name is 5; write text: '5'"),
        ("- {name: true}", "line 1: name is True; write text: 'True'"),
        ("- {name: }", "needs a name"),
        ("- {name: 'x '}", "line 1: rule 'x ': Enter the text without spaces"),
        ("- {name: " + "x" * 201 + "}", "At most 200 characters fit; these are 201"),
    ],
)
def test_an_error_contains_the_line_in_the_file(text: str, problem: str) -> None:
    """No other exception is raised."""
    with pytest.raises(RuleError) as raised:
        load(text)
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ("id: 7", "unknown field 'id'"),
        ("5: y", "unknown field '5'"),
        ("key: app.key", "callables are only allowed in the settings"),
        ("key: 5", "line 1: rule 'a': key is 5"),
        ("key: 'header:X+Y'", "rule 'a': key is 'header:X+Y'"),
        ("path: 5", "path is 5; write text: '/5'"),
        ('path: "/a\\n/b"', "in one line"),
        ("tiers: [{group: 5, rate: 9/m}]", "tier of '5': group is 5; write text: '5'"),
        ("tiers: [{rate: 1/s}]", "tier"),
        ("rate: 5", "5 is a number of slots"),
        ("rate: 1:30", "1:30"),
        ("rate: [1/s, 2]", "or a list of rates"),
        ("exempt: yes", "exempt is 'yes': must be true or false"),
        ("exempt: 'no'", "exempt is 'no'"),
        ("exempt: !!bool maybe", "exempt is 'maybe'"),
        ("audience: [staff, anonymous]", "make a rule for each"),
        ("exempt: true, audience: 5", "audience is "),
        ("order: first", "order is 'first'"),
        ("order: " + "9" * 5000, "order is '9"),
        ("order: " + "9" * 22, "line 1: rule 'a': order is 9"),
        ('order: !!int "x"', "order is 'x'"),
        ("order: 0b_", "order is '0b_'"),
        ("order: =", "order is '='"),
        ("method: NO", "Known methods: CONNECT, "),
        ("method: 5", "a method's name or a list"),
        ("method: UNSAFE", "for UNSAFE, write [DELETE, PATCH, POST, PUT]"),
        ("method: all", "leave method out"),
    ],
)
def test_an_invalid_field_is_reported_with_valid_values(fields: str, problem: str) -> None:
    """The rule has other valid fields."""
    given = {"path": "/", "key": "ip", "rate": "5/m"}
    others = [
        f"{name}: {value}" for name, value in given.items() if not fields.startswith(f"{name}: ")
    ]
    with pytest.raises(RuleError) as raised:
        load(f"- {{{', '.join(['name: a', *others, fields])}}}")
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("rates: nonsense", ["unknown field 'rates'; did you mean 'rate'? Known fields: name,"]),
        ("rate: x, algorithm: fixed_window, align: day, time_zone: UTC", ["Rate 'x'"]),
        (
            "rate: x, algorithm: fixed_window, align: month, time_zone: Nowhere",
            ["Rate 'x'", "time zone 'Nowhere'"],
        ),
        ("rate: 5/m, algorithm: fixed_window, align: dusk, time_zone: UTC", ["align"]),
        (
            "rate: 5/moon, order: first, method: GTE",
            ["order is 'first'", "'GTE' is not an HTTP method", "Rate '5/moon'"],
        ),
        (
            "rate: 5/m, tiers: [{group: a, rate: x}, {group: b, rate: 1/s, burst: 5}]",
            ["tier of 'a'", "tier of 'b'"],
        ),
    ],
)
def test_each_error_is_reported_once(text: str, problems: list[str]) -> None:
    """Each mistake of a rule has one line in the error."""
    with pytest.raises(RuleError) as raised:
        load(f"- {{name: a, path: /, key: ip, {text}}}")
    found = str(raised.value).splitlines()
    assert len(found) == len(problems) == len(raised.value.each), found
    assert all(problem in line for problem, line in zip(problems, found, strict=True)), found


def test_an_unknown_word_gets_a_suggestion() -> None:
    """The error reports the unknown field and no missing field that may be due to it."""
    with pytest.raises(RuleError) as raised:
        load(
            "- {name: a, url: /, rate: 5/m}\n- {name: c, paths: x, key: ip, rate: 5/m}\n",
            "limits.yaml",
        )
    first, second = str(raised.value).splitlines()
    assert first.startswith("limits.yaml, line 1: rule 'a': unknown field 'url'. Known fields:")
    assert "did you mean" not in first
    assert "unknown field 'paths'; did you mean 'path'?" in second


@pytest.mark.parametrize("text", ["- {name: a, path: /", "{}", "", "- \x01", "- 2026-99-99"])
def test_an_error_in_yaml_text_contains_the_name_of_its_file(text: str) -> None:
    """Errors of the YAML parser contain the file name too."""
    with pytest.raises(RuleError) as raised:
        load(text, "limits.yaml")
    assert str(raised.value).startswith("limits.yaml")
    assert "Rules" not in str(raised.value)
    assert "unicode string" not in str(raised.value)


def test_a_change_is_shown_in_words() -> None:
    """Added and removed rules are described in words. A changed rule lists its different fields."""
    words = [
        RuleChange("api", before, after).describe()
        for before, after in ((None, RULE), (RULE, None))
    ]
    assert words == [[f"{sign} api: 100 per minute per address, on /api/"] for sign in "+-"]
    found = RuleChange("api", RULE, {**RULE, "rate": ["50/m", "9/h"]}).describe()
    assert found == ["~ api", "    Rate: 100 per minute → 50 per minute and 9 per hour"]


@pytest.mark.parametrize("name", ["yes", "NO", "off", "on", "2026-01-01", "1:30", "010", "0x1f"])
def test_only_true_and_false_and_decimal_numbers_are_no_text(name: str) -> None:
    """YAML 1.1 reads these as booleans, dates and numbers."""
    (spec,) = load(f"- {{name: {name}, path: /, key: ip, rate: 5/m, mode: off}}").values()
    assert (spec["name"], spec["mode"]) == (name, "off")


def test_a_number_of_slots_may_be_a_number() -> None:
    """It is read like the text of the same digits."""
    spec = load(
        "- {name: a, path: /, key: ip, rate: 5, algorithm: concurrency, "
        "tiers: [{group: pro, rate: 9}]}"
    )["a"]
    assert (spec["rate"], spec["tiers"][0]["rate"]) == ("5", "9")
