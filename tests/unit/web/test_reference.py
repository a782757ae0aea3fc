"""References of refusals: 20 letters and digits that the site can verify."""

from __future__ import annotations

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
from django_ratelimit_lua.web.reference import BadReferenceError, open_reference, reference_of

ADA = digest("ada@example.org")
NOW = int(time.time())


def refused(
    name: str = "search:*:ip:10/s",
    who: bytes = ADA,
    state: LimitState | None = None,
    moment: int = NOW,
) -> Decision:
    state = (
        LimitState(name, False, 10, 10, 0, 1.0, 1.0, 0.0, period=1.0) if state is None else state
    )
    return Decision(False, (state,), moment=moment * 1_000_000 + 7, identity=who)


def test_a_reference_contains_the_limit_the_client_and_the_time() -> None:
    """The limit and the client are stored as hashes. The same refusal always has the same
    reference.
    """
    text = reference_of(refused())
    assert re.fullmatch(r"[0-9A-HJKMNP-TV-Z]{5}(-[0-9A-HJKMNP-TV-Z]{5}){3}", text)
    assert text == reference_of(refused())
    opened = open_reference(text)
    assert (opened.text, opened.moment, opened.digest_prefix) == (text, NOW, ADA[:8].decode())
    assert not opened.is_block
    assert opened.is_of_limit("search:*:ip:10/s")
    assert not opened.is_of_limit("search:*:ip:500/h")
    assert opened.is_of_place("search:*:ip:500/h")
    assert opened.is_of_place("search")
    assert not opened.is_of_place("login:*:ip:10/s")


def test_a_reference_of_a_block_contains_no_limit_name() -> None:
    """It is recognized as a block, without the rule it belongs to."""
    opened = open_reference(
        reference_of(refused(state=LimitState.blocked("search", None, "enforce")))
    )
    assert opened.is_block
    assert not opened.is_of_place("search")


def test_the_time_of_a_reference_is_the_latest_possible_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """References remain valid for eight and a half years, and clocks of hosts may differ
    by a day.
    """
    text = reference_of(refused(moment=NOW + 60))
    assert open_reference(text).moment == NOW + 60
    monkeypatch.setattr(reference.time, "time", lambda: NOW + 2**28 - 100_000)
    assert open_reference(text).moment == NOW + 60


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
        assert open_reference(change(text)).text == text


LETTER = st.sampled_from("0123456789ABCDEFGHJKMNPQRSTVWXYZ")


@given(st.dictionaries(st.integers(0, 19), LETTER, min_size=1))
def test_other_characters_are_invalid_in_a_reference(changes: dict[int, str]) -> None:
    """Any number of changed characters at any positions makes the reference invalid."""
    text = reference_of(refused()).replace("-", "")
    mistyped = "".join(changes.get(at, letter) for at, letter in enumerate(text))
    if mistyped != text:
        with pytest.raises(BadReferenceError, match="mistyped, or not a reference of this site"):
            open_reference(mistyped)


@given(st.text(max_size=200) | st.from_regex(r"[0-9A-HJKMNP-TV-Z]{20}", fullmatch=True))
def test_invalid_text_is_an_error(text: str) -> None:
    """Text that is not a reference raises a `BadReferenceError` and no other exception."""
    with pytest.raises(BadReferenceError, match=r"has 20 letters|mistyped, or not a reference"):
        open_reference(text)


def test_the_error_contains_the_length() -> None:
    """A text of another length, or with a letter that no reference contains, is an error."""
    text = reference_of(refused())
    with pytest.raises(
        BadReferenceError, match="a reference has 20 letters and digits, but this text has 18"
    ):
        open_reference(text[:-2])
    with pytest.raises(BadReferenceError, match="mistyped"):
        open_reference(text[:-1] + "U")


def test_another_site_cannot_make_or_verify_a_reference(settings: Any) -> None:
    """A site with another secret cannot verify a reference or see its limit. A former secret of the
    site verifies it while it is a fallback.
    """
    text = reference_of(refused())
    before, settings.SECRET_KEY = settings.SECRET_KEY, "another"
    assert reference_of(refused())[5:] != text[5:]
    with pytest.raises(BadReferenceError, match="not a reference of this site"):
        open_reference(text)
    settings.SECRET_KEY_FALLBACKS = ["older", before]
    assert open_reference(text).secret == before
    assert open_reference(text).is_of_limit("search:*:ip:10/s")
    settings.RATELIMIT_KEY_SECRET = b"its own"
    with pytest.raises(BadReferenceError, match="not a reference of this site"):
        open_reference(text)
    settings.RATELIMIT_KEY_SECRET = [b"its own", before]
    assert open_reference(text).secret == before


def test_a_refusal_without_a_client_has_no_reference() -> None:
    """A `Ratelimited` that a project raises itself, for example, has no client."""
    assert reference_of(Decision(False)) == ""
    assert reference_of(refused(who=b"")) == ""
