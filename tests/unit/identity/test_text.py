"""Text from clients is counted in one normalized spelling."""

from __future__ import annotations

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
from django_ratelimit_lua.identity.keys import compile_key, field_identity
from django_ratelimit_lua.identity.text import MAX_LENGTH, normalised
from django_ratelimit_lua.models import RateLimitOverride
from django_ratelimit_lua.rules.rule import compile_rule

NAMES = ["ada", "émile", "straße", "αγις", "ﬁona"]
SPACES = [character for character in map(chr, range(0x110000)) if character.isspace()]
KINDS = ["get", "post", "json", "data", "header", "kwarg"]


@cache
def every() -> list[str]:
    """Return all Unicode characters that are white space, or that NFKC or a change of
    case changes.
    """
    return [
        character
        for character in map(chr, range(0x110000))
        if character.isspace()
        or len(
            {
                character,
                unicodedata.normalize("NFKC", character),
                character.upper(),
                character.lower(),
            }
        )
        > 1
    ]


def alike() -> dict[str, list[str]]:
    """Return, for each form of a character, all characters that NFKC and changes of case
    map to it.
    """
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
    """This also applies if the login backend ignores case by comparing in upper case, in lower case
    or casefolded.
    """
    one, other = (cleaned(text) for text in pair)
    if one is None or other is None:
        return
    ways = (str.upper, str.lower, str.casefold, lambda text: text)
    if any(way(one) == way(other) for way in ways):  # type: ignore[operator]
        identities = {
            digest(field_identity(f"{kind}:name", text))
            for kind in ["post"]
            for text in (*pair, one, other)
        }
        assert len(identities) == 1


@given(st.text())
def test_normalising_twice_changes_nothing(text: str) -> None:
    """Normalized text is not changed by another normalization and has no white space around it."""
    once = normalised(text)
    assert normalised(once) == once
    assert once == once.strip()


def test_no_single_character_has_two_normalized_spellings() -> None:
    """For all of Unicode, characters that differ only in case or compatibility have the same
    normalized text, which is stable.
    """
    assert SPACES
    for way in (
        str.upper,
        str.lower,
        str.casefold,
        lambda text: unicodedata.normalize("NFKC", text),
    ):
        classes = defaultdict(set)
        for character in every():
            classes[way(character)].add(normalised(character))
        assert not [found for found in classes.values() if len(found) > 1]
    assert all(normalised(one) == one for one in map(normalised, every()))


def test_long_text_is_normalized_cheaply() -> None:
    """Text longer than the maximum is not normalized in quadratic time, and different long texts
    stay different identities.
    """
    marks = "a" + "\u0315\u0300\u0327\u05b0" * MAX_LENGTH
    assert normalised(f" {marks}\n") == marks
    assert normalised("A" * 100_000) == "a" * 100_000
    assert field_identity("header:authorization", marks + "x") != field_identity(
        "header:authorization", marks + "y"
    )


def requests(rf: RequestFactory, kind: str, value: str) -> Any:
    """Return a request whose field `name` of that kind has the value."""
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
    """Forms, JSON, the query, headers and arguments of the route are normalized. With `exact:` they
    are not.
    """
    rf = RequestFactory()
    read, exact = compile_key(f"{kind}:name").read, compile_key(f"exact:{kind}:name").read
    one, other = (requests(rf, kind, text) for text in pair)
    assert read("", one, None) == read("", other, None) == (kind, "name", normalised(pair[0]))
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
    """Another spelling of a blocked name is blocked too, because keys and overrides have the same
    digest. With `exact:`, only the same spelling is.
    """
    override = RateLimitOverride(field=field)
    override.set_value(pair[0])
    override.prepare()
    override.prepare()
    _, kind, _ = f"exact:{field}".rsplit(":", 2)
    for text in pair:
        request = requests(RequestFactory(), kind, text)
        same = digest(compile_key(field).read("", request, None)).decode() == override.subject
        assert same == (not field.startswith("exact:") or text == pair[0])


@pytest.mark.parametrize("key", ["exact:header:X-API-Key", ["ip", "exact:post:name"]])
def test_rules_may_use_keys_with_the_prefix_exact(key: Any) -> None:
    """A rule that may not refer to code can use such a key, alone or in a list."""
    rule = compile_rule({"name": "n", "path": "/", "key": key, "rate": "1/m"}, plain=True)
    assert rule.key is not None
    assert rule.key.name == (key if isinstance(key, str) else "+".join(key))
