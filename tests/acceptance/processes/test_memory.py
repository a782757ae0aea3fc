"""The memory that clients can use in a process is bounded in entries and in bytes."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_ratelimit_lua import RateLimiter, ratelimit
from django_ratelimit_lua.conf import values
from django_ratelimit_lua.core import is_ratelimited
from django_ratelimit_lua.engine.deny_cache import deny_cache
from django_ratelimit_lua.engine.leases import leases
from django_ratelimit_lua.engine.local import local_counts
from django_ratelimit_lua.middleware import RateLimitMiddleware
from django_ratelimit_lua.process.bounded_map import BoundedMap
from django_ratelimit_lua.rules.provider import get_ruleset, reset_rules
from django_ratelimit_lua.views.call_sites import KnownCallSites, known_call_sites
from tests.support.limits import WHOLE, set_share
from tests.support.package_objects import import_all, reachable_objects
from tests.support.redis_server import CLOSED, caches

MANY, BOUND, FEW = 1_500, 500, 400
"""Values that are sent, entries that fit, and values that are sent to a bounded `lru_cache`."""
LONG = "sent" * 5_000  # No setting of another test is equal.
MAX_LENGTH = 3_000
"""Characters of a text that may be kept."""
MAX_BYTES = 24 * 2**20
more_room: dict[str, int] = {}
"""How many entries there may be where a way leads through these words."""
before_weighing: list[Callable[[], object]] = []

factory = RequestFactory()
limiters: list[RateLimiter] = []
"""Those that go on living, as at the top of a module."""


@pytest.fixture(autouse=True)
def clean(quiet: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clear everything, and give this process the whole of split limits."""
    set_share(monkeypatch, WHOLE)
    names = dict(known_call_sites._by_name)

    def forget() -> None:
        deny_cache.clear()
        local_counts._counts.clear()
        leases.clear()
        limiters.clear()

    forget()
    yield
    forget()
    known_call_sites._by_name = names


def unique_text(number: int) -> str:
    """Return a unique text, which is sometimes long."""
    return f"{number}{'' if number % 10 else LONG}"


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    set_small_bounds(monkeypatch)


def set_small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set small bounds for everything that is bounded."""
    for _, found in reachable_objects():
        if isinstance(found, BoundedMap):
            monkeypatch.setattr(found, "max_entries", BOUND)
    monkeypatch.setattr("django_ratelimit_lua.rules.ruleset._MAX_CACHED", BOUND)
    monkeypatch.setattr("django_ratelimit_lua.engine.leases.MAX_LEASES", BOUND)
    # No other test checks the names of this one.
    monkeypatch.setattr(values, "known_paths", dict(values.known_paths))
    monkeypatch.setattr(values, "MAX_ENTRIES", max(BOUND, len(values.known_paths)))
    monkeypatch.setattr(KnownCallSites, "MAX_ENTRIES", max(BOUND, len(known_call_sites.names())))


def limiter(name: str, rate: str, **options: Any) -> RateLimiter:
    limiters.append(RateLimiter(name, rate, **options))
    return limiters[-1]


def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse("fine")


def refused() -> None:
    one = limiter("refused", "0/h")
    for number in range(MANY):
        assert not one.hit(unique_text(number))


def leased() -> None:
    one = limiter("leased", "1000/h", algorithm="token_bucket", lease=100)
    for number in range(MANY):
        for _ in range(3):
            one.hit(unique_text(number))


def in_parts() -> None:
    one = limiter("split", "2/h", split=True, algorithm="fixed_window")
    for number in range(MANY):
        one.hit(unique_text(number))


def in_an_outage() -> None:
    one = limiter("outage", "1000/h", algorithm="sliding_log")
    for number in range(MANY):
        one.hit(unique_text(number))


def one_in_an_outage() -> None:
    one = limiter("one", "100000/h", algorithm="sliding_log")
    for _ in range(MANY):
        one.hit("somebody")


def paths() -> None:
    middleware = RateLimitMiddleware(view)
    for number in range(MANY):
        middleware(factory.get(f"/api/{unique_text(number)}"))


def addresses() -> None:
    decorated = ratelimit(group="addresses", key="ip", rate="1/h")(view)
    for number in range(FEW):
        text = f"2001:db8::{number:x}%{LONG[:7000]}" if number % 10 else f"{number}{LONG[:7000]}"
        decorated(factory.get("/", headers={"X-Forwarded-For": text}))


def groups() -> None:
    request = factory.get("/")
    for number in range(MANY):
        is_ratelimited(request, unique_text(number), None, "ip", "1/h", increment=True)


def keys() -> None:
    for number in range(MANY):
        ratelimit(key=f"nowhere.key{number}", rate=f"nowhere.rate{unique_text(number)}")(view)


def short_lived() -> None:
    for number in range(MANY):
        RateLimiter(f"short-lived {number}", "1/h")


WITHOUT_REDIS = (leased, in_parts, in_an_outage, one_in_an_outage, paths, addresses, groups, keys)
WITHOUT_REDIS += (short_lived,)


def size_of(found: Any) -> int | None:
    """Return the number of entries of a container."""
    if isinstance(found, (dict, list, set, frozenset, tuple, deque, OrderedDict, weakref.WeakSet)):
        return len(found)
    if isinstance(found, functools._lru_cache_wrapper):
        return found.cache_info().currsize
    return None


def weigh(sizes: dict[int, int]) -> tuple[int, list[str]]:
    """Return the bytes of all kept objects, and the containers and texts that are too large."""
    for settle in before_weighing:
        settle()
    gc.collect()
    total, large = 0, []
    for way, found in reachable_objects(limiters):
        total += sys.getsizeof(found)
        entries = size_of(found)
        room = next((more_room[words] for words in more_room if words in way), BOUND)
        if entries is not None and entries > sizes.get(id(found), 0) + room:
            large.append(f"{way}: {entries} entries")
        text = found.decode("latin-1") if isinstance(found, bytes) else found
        if isinstance(text, str) and text is not LONG and LONG[:MAX_LENGTH] in text:
            large.append(f"{way}: {len(text)} characters of what was sent")
    return total, large


@pytest.mark.usefixtures("little_room")
@pytest.mark.parametrize("attacks", [(refused,), WITHOUT_REDIS], ids=["with Redis", "without"])
def test_memory_is_bounded_whatever_clients_send(
    attacks: tuple[Callable[[], None], ...], settings: Any
) -> None:
    """Three times as many values as fit are sent, some of 20,000 characters. No container exceeds
    its bound, no long text is kept, and the memory stays small. The containers are found by walking
    from the modules, so none is missed.
    """
    import_all()
    settings.RATELIMIT_RULES = [{"name": "api", "path": "/api/", "key": "path", "rate": "0/h"}]
    settings.RATELIMIT_TRUSTED_PROXIES = 1
    settings.RATELIMIT_ON_STORE_ERROR = "local"
    if attacks is WITHOUT_REDIS:
        settings.CACHES = caches(CLOSED)
    reset_rules()
    sizes = {id(found): size_of(found) or 0 for _, found in reachable_objects(limiters)}
    before, _ = weigh(dict(sizes))
    for attack in attacks:
        attack()
    after, large = weigh(sizes)
    assert large == []
    assert after - before < MAX_BYTES


def test_a_long_name_is_shortened_and_stays_unique() -> None:
    """Names that differ after 500 characters have separate counts."""
    options: Any = {"rate": "1/h", "algorithm": "token_bucket"}
    first, second = (RateLimiter(f"{LONG}{number}", **options) for number in (1, 2))
    found = [limiter.hit("x").allowed for limiter in (first, second, first)]
    assert found == [True, True, False]
    limit = first.limits[0]
    assert len(limit.name) == 500
    own, other = (limit.at_rate(limit.rate, 5, variant).key_part for variant in ("one", "two"))
    assert len({limit.key_part, own, other}) == 3


def test_a_limiter_keeps_no_outdated_rules(settings: Any) -> None:
    """A thousand rules take about a megabyte."""
    seen: list[weakref.ref[Any]] = []
    for number in range(10):
        rule = {"name": f"rule {number}", "path": "/", "key": "ip", "rate": "5/h"}
        settings.RATELIMIT_RULES = [rule]
        assert limiter(f"seldom {number}", "5/h").hit("ada")
        seen.append(weakref.ref(get_ruleset()))
    gc.collect()
    assert [ruleset() for ruleset in seen] == [None] * 9 + [get_ruleset()]
