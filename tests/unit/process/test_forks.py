"""Objects that belong to one process are renewed in a forked child."""

from __future__ import annotations

import gc
import os
import random
import weakref

from django_ratelimit_lua.process.forks import chance, renew_after_fork


class Renewed:
    """An object that counts how often it was renewed."""

    def __init__(self, fails: bool = False) -> None:
        self.times = 0
        self._fails = fails
        renew_after_fork(self.renew)

    def renew(self) -> None:
        self.times += 1
        if self._fails:
            raise RuntimeError("on purpose")


def test_a_child_process_renews_each_registered_object_once() -> None:
    """The child renews each method and function once, even if one of them raises."""
    called: list[int] = []
    broken, renewed = Renewed(fails=True), Renewed()
    renew_after_fork(lambda: called.append(os.getpid()))
    child = os.fork()
    if not child:
        os._exit(0 if (broken.times, renewed.times, called) == (1, 1, [os.getpid()]) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (broken.times, renewed.times, called) == (0, 0, [])


def test_a_collected_object_is_not_renewed() -> None:
    """Stores and breakers are replaced when settings change."""
    renewed = Renewed()
    gone = weakref.ref(renewed)
    del renewed
    gc.collect()
    assert gone() is None


def test_seeding_python_does_not_seed_our_random_numbers() -> None:
    """A parent and its child draw different numbers, too."""
    tokens = set()
    for _ in range(3):
        random.seed(1)
        tokens.add(chance.getrandbits(64))
    assert len(tokens) == 3
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, b"%d" % chance.getrandbits(64))
        os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(reading, 100)) != chance.getrandbits(64)
