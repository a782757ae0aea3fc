"""Text from clients is counted in one normalized spelling."""

from __future__ import annotations

import sys
import unicodedata
from collections import defaultdict
from functools import cache
from typing import Any

import pytest
from django.contrib.auth.forms import UsernameField
from django.core.exceptions import ValidationError
from django.test import RequestFactory
from hypothesis import example, given
from hypothesis import strategies as st

from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.identity.fields import (
    MAX_TEXT_LENGTH,
    NO_NUMBER,
    normalize_number,
    normalize_text,
)
from django_ratelimit_lua.identity.keys import compile_key, field_identity
from django_ratelimit_lua.models import RateLimitOverride
from django_ratelimit_lua.rules import compile

NAMES = ["ada", "émile", "straße", "αγις", "ﬁona"]
SPACES = [character for character in map(chr, range(0x110000)) if character.isspace()]
ZEROS = [zero for zero in map(chr, range(0x110000)) if unicodedata.decimal(zero, None) == 0]
KINDS = ["get", "post", "json", "data", "header", "kwarg"]


@cache
def every() -> list[str]:
    """Return all characters that are white space, or that NFKC or a change of case changes."""

    def changes(one: str) -> bool:
        return len({one, unicodedata.normalize("NFKC", one), one.upper(), one.lower()}) > 1

    return [one for one in map(chr, range(0x110000)) if one.isspace() or changes(one)]


def alike() -> dict[str, list[str]]:
    """Return all characters that NFKC and changes of case map to each form of a character."""
    found = defaultdict(set)
    for character in every():
        plain = unicodedata.normalize("NFKC", character)
        for form in {plain.lower(), plain.upper(), plain.casefold(), plain}:
            found[form].add(character)
    return {form: sorted(characters) for form, characters in found.items()}


ALIKE = alike()


@st.composite
def spelled(draw: Any, names: Any) -> tuple[str, str]:
    """Draw a name and another spelling of it."""
    name = draw(names)
    form = draw(st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"]))
    spelling = "".join(
        draw(st.sampled_from(ALIKE.get(one, [one]))) for one in unicodedata.normalize(form, name)
    )
    around = st.text(st.sampled_from(SPACES), max_size=3)
    return name, draw(around) + draw(
        st.sampled_from([spelling, spelling.upper(), spelling.lower()])
    ) + draw(around)


def cleaned(text: str) -> str | None:
    """Return a name as Django's login form cleans it, or None if the form refuses it."""
    try:
        name: str = UsernameField(max_length=254).clean(text)
    except ValidationError:
        return None
    return name


@given(spelled(st.one_of(st.sampled_from(NAMES), st.text(min_size=1, max_size=12))))
@example(("ada", "ada\t"))
@example(("i", "\N{LATIN SMALL LETTER DOTLESS I}"))
def test_names_that_djangos_login_treats_as_equal_are_one_identity(
    pair: tuple[str, str],
) -> None:
    """The login backend may ignore case in any way."""
    one, other = (cleaned(text) for text in pair)
    if one is None or other is None:
        return
    ways = (str.upper, str.lower, str.casefold, lambda text: text)
    if any(way(one) == way(other) for way in ways):  # type: ignore[operator]
        texts = (*pair, one, other)
        assert len({digest(field_identity("post:name", text)) for text in texts}) == 1


@given(st.text())
def test_normalising_twice_changes_nothing(text: str) -> None:
    """Normalized text is not changed by another normalization and has no white space around it."""
    once = normalize_text(text)
    assert normalize_text(once) == once
    assert once == once.strip()


def test_no_single_character_has_two_normalized_spellings() -> None:
    """Characters that differ only in case or compatibility have one stable text."""
    assert SPACES
    for way in (
        str.upper,
        str.lower,
        str.casefold,
        lambda text: unicodedata.normalize("NFKC", text),
    ):
        classes = defaultdict(set)
        for character in every():
            classes[way(character)].add(normalize_text(character))
        assert not [found for found in classes.values() if len(found) > 1]
    assert all(normalize_text(one) == one for one in map(normalize_text, every()))


def test_long_text_is_normalized_cheaply() -> None:
    """It takes no quadratic time, and different long texts stay different."""
    marks = "a" + "\u0315\u0300\u0327\u05b0" * MAX_TEXT_LENGTH
    assert normalize_text(f" {marks}\n") == marks
    assert normalize_text("A" * 100_000) == "a" * 100_000
    assert field_identity("header:authorization", marks + "x") != field_identity(
        "header:authorization", marks + "y"
    )


def requests(rf: RequestFactory, kind: str, value: str) -> Any:
    """Return a request that has the value in the field `name` of that kind."""
    if kind in ("json", "data"):
        return rf.post("/", {"name": value}, content_type="application/json")
    request = rf.post("/", {"name": value} if kind == "post" else {}, query_params={"name": value})
    request.META["HTTP_NAME"] = value
    request.COOKIES["name"] = value
    request.resolver_match = type("Match", (), {"kwargs": {"name": value}, "route": ""})
    return request


@pytest.mark.parametrize("kind", KINDS)
@given(pair=spelled(st.sampled_from(NAMES)))
def test_text_of_every_field_kind_is_normalised(kind: str, pair: tuple[str, str]) -> None:
    """With `exact:` it is not."""
    rf = RequestFactory()
    read, exact = compile_key(f"{kind}:name").read, compile_key(f"exact:{kind}:name").read
    one, other = (requests(rf, kind, text) for text in pair)
    assert read("", one, None) == read("", other, None) == (kind, "name", normalize_text(pair[0]))
    assert exact("", other, None) == (kind, "name", pair[1])


def test_cookies_are_case_sensitive(rf: RequestFactory) -> None:
    """The value of a cookie is counted unchanged."""
    request = requests(rf, "cookie", "Ada ")
    assert compile_key("cookie:name").read("", request, None) == ("cookie", "name", "Ada ")


@pytest.mark.parametrize(
    "field", [f"{exact}{kind}:name" for kind in KINDS for exact in ("", "exact:")]
)
@given(pair=spelled(st.sampled_from(NAMES)))
def test_overrides_normalise_like_keys(field: str, pair: tuple[str, str]) -> None:
    """With `exact:`, only the same spelling is blocked."""
    override = RateLimitOverride(field=field, effect="block")
    override.set_value(pair[0])
    override.prepare()
    override.prepare()
    _, kind, _ = f"exact:{field}".rsplit(":", 2)
    for text in pair:
        request = requests(RequestFactory(), kind, text)
        same = digest(compile_key(field).read("", request, None)).decode() == override.subject
        assert same == (not field.startswith("exact:") or text == pair[0])


@pytest.mark.parametrize("kind", [*KINDS, "cookie"])
@given(
    number=st.integers(-(10**20), 10**20),
    script=st.sampled_from(ZEROS),
    zeros=st.integers(0, 9),
    around=st.sampled_from(["", " ", "\t", "\u3000"]),
    joint=st.sampled_from(["", "_"]),
)
def test_all_spellings_of_a_number_are_one_identity(
    kind: str, number: int, script: str, zeros: int, around: str, joint: str
) -> None:
    """With `int:`, a limit and an override take every text that `int` accepts for its number."""
    digits = "".join(chr(ord(script) + int(digit)) for digit in "0" * zeros + str(abs(number)))
    sign = "-" if number < 0 else "+" * (zeros % 2)
    spelling = f"{around}{sign}{joint.join(digits)}{around}"
    assert int(spelling) == number
    request = requests(RequestFactory(), kind, spelling)
    read = compile_key(f"int:{kind}:name").read("", request, None)
    assert read == (kind, "name", str(number))
    override = RateLimitOverride(field=f"int:{kind}:name")
    override.set_value(str(number))
    assert override.subject == digest(read).decode()


@pytest.mark.parametrize(
    "text", ["x", "0x1", "1__0", "_1", "--1", "1 0", "\u00b2", "\x001", "9" * 9000, "nan", "1e999"]
)
def test_a_text_that_is_no_number_is_one_identity(text: str, rf: RequestFactory) -> None:
    """All invalid values share an identity, which is not that of a missing value."""
    key = compile_key("int:post:name")
    assert key.read("", requests(rf, "post", text), None) == ("post", "name", NO_NUMBER)
    for missing in ("", " "):
        assert key.read("", requests(rf, "post", missing), None) == ("post", "name", None)
    assert key.read("", rf.post("/"), None) == ("post", "name", None)


@pytest.mark.parametrize("number", [7, 7.0, 7.9, "7", "07", True, False])
def test_a_number_in_json_is_the_number_that_int_makes_of_it(
    number: Any, rf: RequestFactory
) -> None:
    """The fraction of a number is ignored, as `int` cuts it off."""
    request = rf.post("/", {"name": number}, content_type="application/json")
    for kind in ("json", "data"):
        read = compile_key(f"int:{kind}:name").read("", request, None)
        assert read == (kind, "name", str(int(number)))


def test_a_long_number_is_read_in_bounded_time() -> None:
    """Python may be configured to parse any length, in quadratic time."""
    assert normalize_number(" " * 9000 + "-" + "_".join("1" * 4300)) == "-" + "1" * 4300
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        assert normalize_number("9" * 10_000_000) == NO_NUMBER
    finally:
        sys.set_int_max_str_digits(limit)


@pytest.mark.parametrize(
    "key", ["exact:header:X-API-Key", ["ip", "exact:post:name"], "int:post:a", ["ip", "int:get:a"]]
)
def test_rules_may_use_keys_with_a_prefix(key: Any) -> None:
    """A rule that may not refer to code can use such a key, alone or in a list."""
    rule = compile({"name": "n", "path": "/", "key": key, "rate": "1/m"}, plain=True)
    assert rule.key is not None
    assert rule.key.name == (key if isinstance(key, str) else "+".join(key))
