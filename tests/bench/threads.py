"""Whether threads should share a trip, as coroutines do: a connection for each, against one on which whoever finds it
free asks for all who wait.

A sketch of both, with real calls and without the rest of the package, so that what differs is the trip alone.
"""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from urllib.parse import urlsplit

from django_ratelimit_lua.engine.decide import build_call
from django_ratelimit_lua.limits.call import Charge
from django_ratelimit_lua.store.commands import Question, Replies, to_decide
from tests.bench.measure import DIRECT, limiter
from tests.server import url

THREADS, CALLS, TURNS, IDENTITIES = (1, 2, 8, 32), 6_000, 5, 1_000
WORK_SECONDS = 0.0003
"""What a small view takes beside its decision."""


def _connected() -> socket.socket:
    server = urlsplit(url())
    sock = socket.create_connection((server.hostname, server.port), timeout=5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class Alone:
    """A connection for each thread."""

    def __init__(self) -> None:
        self._local = threading.local()

    def ask(self, question: Question) -> None:
        if not hasattr(self._local, "sock"):
            self._local.sock = _connected()
        self._local.sock.sendall(question.command)
        replies = Replies(1)
        while not replies.feed(self._local.sock.recv(65_536)):
            pass
        question.read(replies.found[0])


class Waiting:
    """Who waits for a reply, or for the turn to ask for all who wait."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.reply: bytes | None = None
        self.turn = threading.Lock()
        self.turn.acquire()


class Together:
    """One connection for all: who asks while nobody does is sent at once; who comes meanwhile goes with the next trip,
    which the first of them makes."""

    def __init__(self) -> None:
        self._sock = _connected()
        self._lock = threading.Lock()
        self._waiting: deque[Waiting] = deque()
        self._is_asking = False

    def ask(self, question: Question) -> None:
        own = Waiting(question)
        with self._lock:
            self._waiting.append(own)
            is_first, self._is_asking = not self._is_asking, True
        if not is_first:
            own.turn.acquire()
        if own.reply is None:
            self._trip()
        question.read(own.reply)

    def _trip(self) -> None:
        with self._lock:
            asking = list(self._waiting)
            self._waiting.clear()
        self._sock.sendall(b"".join([waiting.question.command for waiting in asking]))
        replies = Replies(len(asking))
        while not replies.feed(self._sock.recv(65_536)):
            pass
        with self._lock:
            following = self._waiting[0] if self._waiting else None
            self._is_asking = following is not None
        for waiting, reply in zip(asking, replies.found, strict=True):
            waiting.reply = reply
            waiting.turn.release()
        if following is not None:
            following.turn.release()


def threads() -> None:
    """Decisions a second and CPU of both, by so many threads."""
    limit = limiter("threads", "10000000/h", "token_bucket").limits[0]
    limiter("threads", "10000000/h", "token_bucket").hit("so that the server knows the program")
    questions = [to_decide(build_call([Charge(limit, b"%032d" % who)])) for who in range(IDENTITIES)]
    print(
        f"{'threads that share a trip, x a connection each':48}{'per second':>13}{'client CPU':>12}{'server CPU':>12}"
    )
    for count in THREADS:
        for work, name in ((0.0, ""), (WORK_SECONDS, f", {WORK_SECONDS * 1e6:.0f} µs of work between")):
            taken: dict[type, list[tuple[float, ...]]] = {Alone: [], Together: []}
            for _ in range(TURNS):
                for kind in taken:
                    taken[kind].append(_round(kind().ask, questions, count, work))
            alone, together = (
                [statistics.median(column) for column in zip(*taken[kind], strict=True)] for kind in taken
            )
            ratios = [mine / theirs for mine, theirs in zip(together, alone, strict=True)]
            print(f"{f'{count} threads{name}':48}{1 / ratios[0]:13.2f}{ratios[1]:12.2f}{ratios[2]:12.2f}", flush=True)
    print()


def _round(
    ask: Callable[[Question], None], questions: list[Question], count: int, work: float
) -> tuple[float, float, float]:
    calls = CALLS // 4 if work else CALLS

    def ask_all(first: int) -> None:
        for number in range(first, calls, count):
            ask(questions[number % IDENTITIES])
            until = time.thread_time() + work
            while work and time.thread_time() < until:
                pass

    asking = [threading.Thread(target=ask_all, args=(first,)) for first in range(count)]
    wall, cpu, server = time.perf_counter(), time.process_time(), _server_cpu()
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    return time.perf_counter() - wall, time.process_time() - cpu, _server_cpu() - server


def _server_cpu() -> float:
    told = DIRECT.info("cpu")
    return float(told["used_cpu_user"] + told["used_cpu_sys"])
