"""What is read on a connection: the same however it arrives, and exactly as much as is owed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import InvalidResponse, ResponseError

from django_ratelimit_lua.store.commands import DEEPEST, LONGEST_LINE, Replies

lines = st.binary(max_size=20).filter(lambda line: b"\r" not in line and b"\n" not in line)
leaves = st.one_of(
    st.none(), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=40), lines.map(lambda line: ("+", line))
)
replies = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3), max_leaves=8).filter(
    lambda reply: depth(reply) <= DEEPEST
)


def depth(reply: Any) -> int:
    return 1 + max(map(depth, reply), default=0) if isinstance(reply, list) else 0


def written(reply: Any) -> bytes:
    """As a server writes it."""
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if isinstance(reply, tuple):
        return b"+%b\r\n" % reply[1]
    return b"*%d\r\n%b" % (len(reply), b"".join(map(written, reply)))


def meant(reply: Any) -> Any:
    if isinstance(reply, tuple):
        return reply[1]
    return list(map(meant, reply)) if isinstance(reply, list) else reply


@given(st.lists(replies, min_size=1, max_size=4), st.data())
def test_replies_are_the_same_however_they_arrive(owed: list[Any], data: st.DataObject) -> None:
    """In one piece or in any others; and they have all come with the last byte, not before."""
    text = b"".join(map(written, owed))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    found = Replies(len(owed))
    have_come = [found.feed(piece) for piece in pieces if piece]
    assert have_come == [False] * (len(have_come) - 1) + [True]
    assert found.found == [meant(reply) for reply in owed]


@given(st.lists(st.lists(replies, min_size=1, max_size=3), min_size=1, max_size=4), st.data())
def test_replies_to_several_questions_end_where_the_next_begin(questions: list[Any], data: st.DataObject) -> None:
    """In however many pieces: each question takes what is owed for it, and leaves the rest."""
    text = b"".join(written(reply) for owed in questions for reply in owed)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    waiting = [Replies(len(owed)) for owed in questions]
    found: list[Any] = []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        piece, at = text[start:end], 0
        while at < len(piece):
            after = waiting[0].take(piece, at)
            if after is None:
                break
            at = after
            found.append(waiting.pop(0).found)
    assert found == [list(map(meant, owed)) for owed in questions]


@given(replies, st.binary(min_size=1, max_size=20))
def test_more_than_was_owed_is_refused(reply: Any, more: bytes) -> None:
    """Whatever comes behind the last reply is for nobody."""
    with pytest.raises(InvalidResponse):
        Replies(1).feed(written(reply) + more)


@given(st.one_of(st.binary(max_size=60), st.text("$*:+-_%>1230\r\n", max_size=40).map(str.encode)))
def test_whatever_comes_is_a_reply_or_refused(text: bytes) -> None:
    """No other exception ends the reading of any bytes."""
    found = Replies(1)
    try:
        has_come = found.feed(text)
    except InvalidResponse:
        return
    assert has_come == bool(found.found)


@given(lines)
def test_errors_are_replies(line: bytes) -> None:
    """They are found where they came, so that what else is owed is still read."""
    found = Replies(2)
    assert found.feed(b"-%b\r\n:1\r\n" % line)
    error, number = found.found
    assert isinstance(error, ResponseError)
    assert number == 1


def test_a_line_has_an_end() -> None:
    """One that never ends is given up, not kept."""
    found = Replies(1)
    assert not found.feed(b"+" + b"a" * (LONGEST_LINE - 2))
    with pytest.raises(InvalidResponse):
        found.feed(b"a")


@pytest.mark.parametrize("announced", [b"$101\r\n", b"*26\r\n", b"*1\r\n$101\r\n"])
def test_what_says_that_it_is_too_large_is_refused_at_once(announced: bytes) -> None:
    """Nobody waits for what cannot be the reply."""
    with pytest.raises(InvalidResponse):
        Replies(1, 100).feed(announced)


def test_many_small_replies_are_together_no_larger_than_one() -> None:
    """Arrays in arrays, each within its size, end at the same number of bytes."""
    found = Replies(1, 100)
    assert not found.feed(b"*25\r\n" + b"*20\r\n" + b":1\r\n" * 20)
    with pytest.raises(InvalidResponse):
        found.feed(b":1\r\n" * 3)
