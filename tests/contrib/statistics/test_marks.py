"""High-water marks are exact for few identities, and a sample of all processes for many."""

from __future__ import annotations

import hashlib

from django_ratelimit_lua.contrib.statistics.marks import SAMPLE, Marks, Sample


def digest(number: int) -> bytes:
    return hashlib.blake2b(b"%d" % number, digest_size=16).hexdigest().encode()


def test_the_samples_of_processes_can_be_merged() -> None:
    """Processes record different, overlapping identities. The merged sample gives the same
    estimates as a single process that recorded all.
    """
    people = 60_000
    found: dict[bytes, int] = {}
    for process in range(4):
        sample = Sample()
        for number in range(process, people, 3):
            mark = number % 10 + process
            for news, of in sample.note({digest(number): mark}).items():
                found[news] = max(of, found.get(news, 0))
    marks = Marks.of(found)
    assert len(found) < people / 3
    assert len(marks.marks) == SAMPLE
    assert not marks.is_exact
    assert abs(marks.people - people) < 0.1 * people
    # The first and the fourth process have seen the same people, but for the very first.
    highest = [0, *(number % 10 + (number % 3 or 3) for number in range(1, people))]
    real = sum(mark > 6 for mark in highest)
    least, most = marks.beyond(6)
    assert abs((least + most) / 2 - real) <= most - least
    assert marks.beyond(100) == (0, 1)


def test_a_sample_of_few_identities_is_exact() -> None:
    """If all identities fit into the sample, nothing is estimated."""
    found = {digest(number): number for number in range(SAMPLE)}
    marks = Marks.of(found)
    assert marks.is_exact
    assert marks.beyond(SAMPLE // 2 - 1) == (SAMPLE // 2, SAMPLE // 2)
    assert Marks.of({}) == Marks()
    assert Marks().beyond(0) == (0, 0)


def test_an_unchanged_mark_is_not_sent_again() -> None:
    """A mark of an identity beyond the sample is not sent again either."""
    sample = Sample()
    numbers = sorted(map(digest, range(3 * SAMPLE)))
    marks = dict.fromkeys(numbers[:SAMPLE], 1)
    assert sample.note(marks) == marks
    assert sample.note(marks) == {}
    assert len(sample.note(dict.fromkeys(numbers, 1))) == 1, (
        "one more, which shows that there are others"
    )
    assert len(sample) == SAMPLE + 1
    assert sample.note({numbers[-1]: 5}) == {}
    assert sample.note({numbers[0]: 2}) == {numbers[0]: 2}
