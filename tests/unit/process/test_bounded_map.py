"""The map that keeps the latest entries that fit."""

from __future__ import annotations

import sys
import threading

from hypothesis import given
from hypothesis import strategies as st

from django_ratelimit_lua.process.bounded_map import ENTRY_BYTES, BoundedMap


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["put", "pop", "get", "labelled"]),
            st.integers(0, 12),
            st.integers(0, 3000),
        )
    ),
    most=st.integers(1, 8),
)
def test_a_bounded_map_keeps_the_latest_entries_that_fit(
    steps: list[tuple[str, int, int]], most: int
) -> None:
    """The map equals a list that drops its oldest entries."""
    bounded: BoundedMap[int, int] = BoundedMap(
        most, 8000, lambda key, weight: weight, 2000, lambda key: {b"%d" % (key % 3), b"all"}
    )
    model: dict[int, int] = {}
    for step, key, weight in steps:
        if step == "put":
            bounded.put(key, weight)
            model.pop(key, None)
            model[key] = weight
            if weight + ENTRY_BYTES > 2000:
                model.pop(key)
            while len(model) > most or sum(one + ENTRY_BYTES for one in model.values()) > 8000:
                model.pop(next(iter(model)))
        elif step == "pop":
            assert bounded.pop(key) == model.pop(key, None)
        elif step == "labelled":
            labelled = [other for other in model if other % 3 == key % 3]
            assert sorted(bounded.pop_labelled(b"%d" % (key % 3))) == sorted(
                model.pop(other) for other in labelled
            )
        else:
            assert bounded.get(key) == model.get(key)
        assert [(key, value) for key, (value, _) in bounded.entries.items()] == list(model.items())
        assert bounded._labelled.get(b"all", set()) == set(model)
        assert len(bounded._labelled) == len({other % 3 for other in model}) + bool(model)
        assert len(bounded) == len(model)
        assert bounded._bytes == sum(one + ENTRY_BYTES for one in model.values())


@given(keys=st.lists(st.integers(0, 12)), most=st.integers(1, 8))
def test_without_weights_only_the_number_of_entries_is_bounded(keys: list[int], most: int) -> None:
    """The entry that was added first is dropped first, even if it was put again since."""
    bounded: BoundedMap[int, int] = BoundedMap(most)
    model: dict[int, int] = {}
    for turn, key in enumerate(keys):
        bounded.put(key, turn)
        model[key] = turn
        if len(model) > most:
            model.pop(next(iter(model)))
        assert [(key, value) for key, (value, _) in bounded.entries.items()] == list(model.items())


def test_many_threads_can_put_at_once() -> None:
    """No thread raises an exception, and the map holds exactly as many entries as it may."""
    bounded: BoundedMap[tuple[int, int], int] = BoundedMap(50)
    failed: list[Exception] = []

    def put(thread: int) -> None:
        try:
            for number in range(5_000):
                bounded.put((thread, number % 90), number)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=put, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(bounded) == 50


def test_one_thread_can_clear_while_others_put() -> None:
    """`clear` returns the entries, and does not fail because of new ones."""
    usual = sys.getswitchinterval()
    bounded: BoundedMap[int, int] = BoundedMap(20_000)
    is_over = threading.Event()

    def put() -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            bounded.put(number, number)

    thread = threading.Thread(target=put)
    sys.setswitchinterval(0.00001)
    thread.start()
    try:
        for _ in range(300):
            while len(bounded) < 200:
                is_over.wait(0.0001)
            assert len(bounded.clear()) >= 200
    finally:
        is_over.set()
        thread.join()
        sys.setswitchinterval(usual)
