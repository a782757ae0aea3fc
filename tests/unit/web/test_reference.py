"""References: sealed so that only this site reads them, and as they are read out."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimit_lua import Decision
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.limits.decision import LimitState
from django_ratelimit_lua.web.reference import BadReferenceError, open_reference, reference_of

ADA = digest("ada@example.org")
MOMENT = 1_800_000_000


def refused(name: str = "search:*:ip:10/s", who: bytes = ADA, state: LimitState | None = None) -> Decision:
    state = LimitState(name, False, 10, 10, 0, 1.0, 1.0, 0.0, period=1.0) if state is None else state
    return Decision(False, (state,), moment=MOMENT * 1_000_000 + 7, identity=who)


def test_a_reference_says_which_limit_who_and_when() -> None:
    """To this site."""
    sealed = open_reference(reference_of(refused()))
    assert (sealed.identity, sealed.moment, sealed.is_block, sealed.secret) == (ADA, MOMENT, False, 0)
    assert sealed.is_of_limit("search:*:ip:10/s")
    assert not sealed.is_of_limit("search:*:ip:500/h")
    assert sealed.is_of_place("search:*:ip:500/h")
    assert sealed.is_of_place("search")
    assert not sealed.is_of_place("login:*:ip:10/s")


def test_that_it_was_a_block_is_sealed_along() -> None:
    """Then it is about whom the block is about."""
    assert open_reference(reference_of(refused(state=LimitState.blocked("block", None, "enforce")))).is_block


def test_it_can_be_read_out() -> None:
    """Thirteen groups of five, without letters that are taken for others; the same refusal has the same."""
    reference = reference_of(refused())
    assert re.fullmatch(r"[0-9A-HJKMNP-TV-Z]{5}(-[0-9A-HJKMNP-TV-Z]{5}){12}", reference)
    assert reference == reference_of(refused())
    assert reference != reference_of(refused(who=digest("grace")))


def test_nothing_in_it_can_be_read_by_a_client() -> None:
    """What two refusals have in common does not show: neither the same person, nor the same limit, nor the moment."""
    same = [reference_of(refused()), reference_of(refused(name="login")), reference_of(refused(who=digest("grace")))]
    later = refused()._replace(moment=(MOMENT + 1) * 1_000_000)
    same.append(reference_of(later))
    groups = [set(reference.split("-")) for reference in same]
    assert len(set().union(*groups)) == sum(map(len, groups))


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
def test_however_it_is_written_down_it_is_the_same(change: Any) -> None:
    """Small letters, spaces, no hyphens, O for 0, I and l for 1."""
    for number in range(20):
        decision = refused(who=digest(number))
        assert open_reference(change(reference_of(decision))).identity == digest(number)


LETTER = st.sampled_from("0123456789ABCDEFGHJKMNPQRSTVWXYZ")
PLACE = st.integers(0, 64)


@given(PLACE, LETTER, st.sampled_from(["wrong", "missing", "too many", "changed places"]))
def test_one_slip_of_a_hand_is_put_right(at: int, letter: str, slip: str) -> None:
    """Wherever it is; and the reference is told as it was written."""
    reference = reference_of(refused())
    letters = reference.replace("-", "")
    before, here, after = letters[:at], letters[at], letters[at + 1 :]
    mistyped = {
        "wrong": before + letter + after,
        "missing": before + after,
        "too many": before + letter + here + after,
        "changed places": before + after[:1] + here + after[1:],
    }[slip]
    sealed = open_reference(mistyped)
    assert (sealed.identity, sealed.reference) == (ADA, reference)


@given(st.lists(st.tuples(PLACE, LETTER), min_size=2, max_size=4, unique_by=lambda change: change[0]))
def test_more_letters_that_are_wrong_never_open_another(changes: list[tuple[int, str]]) -> None:
    """Those that were changed on purpose, either."""
    letters = list(reference_of(refused()).replace("-", ""))
    for at, letter in changes:
        letters[at] = letter
    with suppress(BadReferenceError):
        assert open_reference("".join(letters)).identity == ADA  # Two that have changed places.


@given(st.text(max_size=200) | st.from_regex(r"[0-9A-HJKMNP-TV-Z]{65}", fullmatch=True))
def test_whatever_else_is_given_is_told_apart(text: str) -> None:
    """With what would be right; nothing is opened, and nothing else is raised."""
    with pytest.raises(BadReferenceError, match=r"no letter of|has 65 letters|mistyped|not sealed by this site"):
        open_reference(text)


def test_what_is_wrong_is_said() -> None:
    """A letter that none has, some that are missing, some that were mistyped."""
    reference = reference_of(refused())
    with pytest.raises(BadReferenceError, match="'U' is no letter of a reference"):
        open_reference(reference[:-1] + "u")
    with pytest.raises(BadReferenceError, match="65 letters and digits, and this has 63"):
        open_reference(reference[:-2])
    letters = list(reference)
    for at in (0, 7, -1):
        letters[at] = "0" if letters[at] != "0" else "1"
    with pytest.raises(BadReferenceError, match=r"mistyped: compare it|not sealed by this site"):
        open_reference("".join(letters))


def test_another_site_cannot_read_it(settings: Any) -> None:
    """By its own secret; an earlier one of this site can still be read while it is a fallback."""
    reference = reference_of(refused())
    before, settings.SECRET_KEY = settings.SECRET_KEY, "another"
    with pytest.raises(BadReferenceError, match="not sealed by this site: it is made up, or of another site"):
        open_reference(reference)
    settings.SECRET_KEY_FALLBACKS = ["older", before]
    assert open_reference(reference).secret == 2
    settings.RATELIMIT_KEY_SECRET = b"its own"
    with pytest.raises(BadReferenceError, match="not sealed by this site"):
        open_reference(reference)
    settings.RATELIMIT_KEY_SECRET = [b"its own", before]
    assert open_reference(reference).identity == ADA


def test_without_who_there_is_none() -> None:
    """As of a `Ratelimited` that is raised by hand."""
    assert reference_of(Decision(False)) == ""
    assert reference_of(refused(who=b"")) == ""
