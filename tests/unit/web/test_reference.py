"""References of refusals: 12 letters and digits."""

from __future__ import annotations

import contextlib
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimit_lua import Decision
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.limits.decision import LimitState
from django_ratelimit_lua.web import reference
from django_ratelimit_lua.web.reference import BadReferenceError, parse_reference, reference_of

ADA = digest("ada@example.org")
NOW = int(time.time())


SEARCH = LimitState("search:*:ip:10/s", False, 10, 10, 0, 1.0, 1.0, 0.0, period=1.0)


def refused(who: bytes = ADA, state: LimitState = SEARCH, moment: int = NOW) -> Decision:
    return Decision(False, (state,), moment=moment * 1_000_000 + 7, identity=who)


def test_a_reference_contains_the_limit_the_client_and_the_time() -> None:
    """It is always the same for a refusal."""
    text = reference_of(refused())
    assert re.fullmatch(r"[0-9A-HJKMNP-TV-Z]{4}(-[0-9A-HJKMNP-TV-Z]{4}){2}", text)
    assert text == reference_of(refused())
    found = parse_reference(text)
    assert (found.text, found.moment, found.digest_prefix) == (text, NOW, ADA[:6].decode())
    assert not found.is_block
    assert found.is_of("search:*:ip:500/h")
    assert found.is_of("search")
    assert not found.is_of("login:*:ip:10/s")


def test_a_reference_of_a_block_contains_no_limit_name() -> None:
    """It is recognized as a block, without the rule it belongs to."""
    block = LimitState.blocked("search", None, "enforce")
    opened = parse_reference(reference_of(refused(state=block)))
    assert opened.is_block
    assert not opened.is_of("search")


def test_the_time_of_a_reference_is_the_latest_possible_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """References remain valid for a year, and clocks of hosts may differ by a day."""
    text = reference_of(refused(moment=NOW + 60))
    assert parse_reference(text).moment == NOW + 60
    monkeypatch.setattr(reference.time, "time", lambda: NOW + 2**25 - 100_000)
    assert parse_reference(text).moment == NOW + 60


@pytest.mark.parametrize(
    "change",
    [
        str.lower,
        lambda text: text.replace("-", ""),
        lambda text: f"  {text.replace('-', ' ')}\n",
        lambda text: text.replace("0", "O").replace("1", "l"),
        lambda text: text.replace("1", "I").lower().replace("0", "o"),
        lambda text: text.replace("-", "\N{NON-BREAKING HYPHEN}"),
    ],
)
def test_a_reference_is_recognized_in_every_spelling(change: Any) -> None:
    """Lower case, spaces, missing hyphens, O for 0, and I or l for 1 are accepted."""
    for number in range(20):
        text = reference_of(refused(who=digest(number)))
        assert parse_reference(change(text)).text == text


@given(st.text(max_size=200))
def test_invalid_text_is_an_error(text: str) -> None:
    """Text that is not a reference raises a `BadReferenceError` and no other exception."""
    with contextlib.suppress(BadReferenceError):
        assert len(parse_reference(text).text) == 14


@pytest.mark.parametrize("change", [lambda text: text[:-2], lambda text: text[:-1] + "U"])
def test_the_error_contains_the_length(change: Any) -> None:
    """A text of another length, or with a letter that no reference contains, is an error."""
    with pytest.raises(BadReferenceError, match="a reference has 12 letters and digits"):
        parse_reference(change(reference_of(refused())))
