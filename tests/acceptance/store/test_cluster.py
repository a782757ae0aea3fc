"""Redis Cluster: the limits of an identity share a hash slot, and decisions are exact while slots
move or nodes fail.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest
from django.core.cache import cache as django_cache

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.engine.bans import ban_list
from django_ratelimit_lua.engine.decide import build_call
from django_ratelimit_lua.exceptions import StoreError
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.limits.call import NO_RULES, Call, Charge
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.models import RateLimitRule
from django_ratelimit_lua.operations.bans import active_bans, lift_bans, scan_bans
from django_ratelimit_lua.operations.health import health
from django_ratelimit_lua.publishing import publish
from django_ratelimit_lua.rules.provider import reset_rules
from django_ratelimit_lua.rules.status import MAX_AGE, Freshness
from django_ratelimit_lua.store import Store, get_store, why_unusable
from django_ratelimit_lua.store.connection_params import ConnectionParams
from tests.acceptance.store.test_topologies import IN_SCRIPTS, LIMITS
from tests.support import clusters
from tests.support.clusters import Cluster, client
from tests.support.limits import decide
from tests.support.redis_server import url
from tests.tools.faults import alias

MASTERS = 3


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    """Run three masters and three replicas for tests that do not stop any of them."""
    with clusters.cluster() as found:
        yield found


@pytest.fixture
def cluster(nodes: Cluster, settings: Any) -> Cluster:
    """Use the shared cluster."""
    use(nodes, settings)
    return nodes


@pytest.fixture
def mortal(settings: Any) -> Iterator[Cluster]:
    """Use a cluster of which this test may stop nodes."""
    with clusters.cluster() as found:
        use(found, settings)
        yield found


def use(found: Cluster, settings: Any) -> None:
    settings.RATELIMIT_TIMEOUT = 5
    settings.RATELIMIT_DENY_CACHE_SECONDS = 0
    settings.CACHES = found.cache()
    reset_rules()


def key_of(limiter: RateLimiter, identity: str) -> bytes:
    """Return the key of an identity's count."""
    return build_call([Charge(limiter.limits[0], digest(identity))]).keys()[0]


def another_master(found: Cluster, key: bytes) -> Any:
    """Return a master that does not have the key."""
    return next(server for server in found.servers[:MASTERS] if server is not found.master_of(key))


def sizes(found: Cluster) -> list[int]:
    counts = []
    for server in found.servers[:MASTERS]:
        with client(server.port) as direct:
            counts.append(direct.dbsize())
    return counts


def test_limits_and_the_cache_use_all_masters(cluster: Cluster) -> None:
    """Sync and async hits share a count, identities use all masters, and Django's cache works."""
    limiter = RateLimiter("x", "3/h")

    async def ahits(identity: str) -> list[bool]:
        return [(await limiter.ahit(identity)).allowed for _ in range(2)]

    for number in range(40):
        who = f"client {number}"
        found = [limiter.hit(who).allowed for _ in range(2)] + asyncio.run(ahits(who))
        assert found == [True, True, True, False]
    assert min(sizes(cluster)) > 0
    limiter.reset("client 0")
    asyncio.run(limiter.areset("client 1"))
    assert [limiter.peek(f"client {number}").remaining for number in range(3)] == [3, 3, 0]
    assert health().ok
    django_cache.set("counter", 1, timeout=60)
    assert [
        django_cache.incr("counter"),
        django_cache.get("counter"),
        django_cache.add("counter", 9),
    ] == [2, 2, False]
    assert django_cache.delete("counter")
    django_cache.close()


@pytest.mark.usefixtures("quiet")  # It counts what the masters are asked.
def test_several_limits_of_one_identity_are_one_call_to_one_node(cluster: Cluster) -> None:
    """The call is all or nothing."""
    both = RateLimiter("x", ["2/h", "100/h"])
    both.hit("x")
    both.reset("x")  # Its node knows the program from now on.
    served = before(cluster)
    assert [both.hit("x").allowed for _ in range(3)] == [True, True, False]
    assert sum(served().values()) == 3
    assert [state.used for state in both.peek("x").limits] == [2, 2]


def before(cluster: Cluster) -> Any:
    """Return a function that counts the scripts of each master since now."""

    def calls() -> Counter[int]:
        found: Counter[int] = Counter()
        for server in cluster.servers[:MASTERS]:
            with client(server.port) as direct:
                found[server.port] = (
                    direct.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
                )
        return found

    started = calls()
    return lambda: calls() - started


ALGORITHMS = ("token_bucket", "fixed_window", "sliding_window", "sliding_log")


@pytest.mark.parametrize("seed", range(6))
def test_identities_in_several_slots_are_decided_as_on_one_server(
    seed: int, cluster: Cluster, settings: Any
) -> None:
    """This holds for costs, partial hits, shadow limits and counted refusals."""
    chance = random.Random(seed)
    now = 1_750_000_000_000_000
    limits = []
    for number, algorithm in enumerate(ALGORITHMS):
        kinds: list[dict[str, Any]] = [{}, {"mode": "shadow"}]
        if algorithm != "token_bucket":
            kinds.append({"count_denied": True})
        for kind in kinds:
            name, rate = f"{algorithm}{sorted(kind)}{number}", f"{chance.randint(3, 12)}/m"
            limits.append(Limit(name, rate, algorithm=algorithm, **kind))
    who = [digest(f"{seed} {number}") for number in range(4)]
    calls = []
    for _ in range(120):
        now += chance.randint(0, 8_000_000)
        charges = {}
        for _ in range(chance.randint(2, 5)):
            limit, one = chance.choice(limits), chance.choice(who)
            charges[limit.key_part, one] = Charge(limit, one, chance.randint(0, 3))
        operation = chance.choice(["hit"] * 8 + ["peek", "refund", "charge"])
        partial = chance.random() < 0.3 and operation == "hit"
        # One cost for all, as every face has it; a shadow's verdict is about what its own slot
        # grants.
        if partial:
            charges = {
                key: one._replace(cost=2)
                for key, one in charges.items()
                if one.limit.mode == "enforce"
            }
        if not charges:
            continue
        calls.append(build_call(list(charges.values()), operation, partial=partial, now=now))
    ours = [decide(call) for call in calls]
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": url(), "OPTIONS": {}}}
    theirs = [decide(call) for call in calls]
    assert {decision.source for decision in ours + theirs} == {"redis"}
    for number, (our, their) in enumerate(zip(ours, theirs, strict=True)):
        assert (our.allowed, our.granted) == (their.allowed, their.granted), (number, calls[number])
        for mine, its in zip(our.limits, their.limits, strict=True):
            assert (mine.name, mine.used, mine.remaining) == (its.name, its.used, its.remaining), (
                number,
                calls[number],
            )
            if not our.allowed and not mine.allowed:
                assert mine.retry_after == its.retry_after


def test_concurrent_hits_on_two_slots_never_exceed_the_smaller_limit(cluster: Cluster) -> None:
    """Threads hit two identities together. The smaller limit decides, and both counts are equal."""
    one, other = (
        Charge(Limit("one", "40/h"), digest("one")),
        Charge(Limit("other", "90/h"), digest("other")),
    )
    call = build_call([other, one])
    with ThreadPoolExecutor(16) as pool:
        admitted = sum(
            decision.allowed for decision in pool.map(lambda _: decide(call), range(300))
        )
    assert admitted == 40
    assert [state.used for state in decide(build_call([one, other], "peek")).limits] == [40, 40]


def test_units_are_returned_if_a_later_node_is_unavailable(mortal: Cluster, settings: Any) -> None:
    """The policy decides, and no unit stays taken."""
    limits = [Limit("a", "9/h"), Limit("b", "10/h")]
    first = digest("x 0")
    home = mortal.master_of(b"{%b}" % first)
    second = next(
        who
        for who in (digest(f"x {n}") for n in range(1, 99))
        if mortal.master_of(b"{%b}" % who) is not home
    )
    charges = [Charge(limits[0], first), Charge(limits[1], second)]
    assert decide(build_call(charges)).allowed
    settings.RATELIMIT_TIMEOUT = 1
    assert decide(build_call(charges)).allowed
    os.kill(mortal.master_of(b"{%b}" % second).pid, signal.SIGSTOP)
    decision = decide(build_call(charges))
    assert (decision.allowed, decision.source) == (False, "fallback")
    # 3 if no time was left to give it back.
    assert decide(build_call(charges[:1], "peek")).limits[0].used in (2, 3)


@pytest.mark.usefixtures("quiet")  # It counts calls of the masters, and has not received the edit.
@pytest.mark.django_db(transaction=True)
def test_edited_rules_apply_in_a_cluster_within_a_second(cluster: Cluster) -> None:
    """The rules are in another slot, so they are compared in a separate call once a second."""
    limiter = RateLimiter("mail", "100/h")
    assert limiter.hit("x").limits[0].limit == 100
    RateLimitRule.objects.create(name="mail", rate="7/h")
    limits = []
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        limits.append(limiter.hit(f"{len(limits)}").limits[0].limit)
        time.sleep(0.01)
    assert limits[-1] == 7
    assert limits == sorted(limits, reverse=True)
    served = before(cluster)
    for _ in range(20):
        limiter.hit("y")
    assert sum(served().values()) <= 22
    RateLimitRule.objects.update(rate="6/h")
    assert limiter.hit("z").limits[0].limit == 6
    publish(rebuild=True)
    assert limiter.hit("z").revision > 0


def test_a_slot_that_moves_under_load_loses_and_repeats_no_hit(mortal: Cluster) -> None:
    """Threads hit identities while the slot moves key by key, and each hit counts once."""
    limiter = RateLimiter("x", "100000/h", algorithm="fixed_window")
    both = RateLimiter("both", ["100000/h", "200000/h"], algorithm="fixed_window")
    key = key_of(limiter, "x")
    stop = threading.Event()
    answers: Counter[str] = Counter()

    def hits() -> int:
        count = 0
        while not stop.is_set():
            answers[limiter.hit("x").source] += 1
            answers[both.hit("x").source] += 1
            count += 1
        return count

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(hits) for _ in range(4)]
        for _ in range(6):
            target = another_master(mortal, key)
            mortal.move(key, target, while_moving=lambda: time.sleep(0.05))
        stop.set()
        count = sum(one.result() for one in running)
    assert set(answers) == {"redis"}
    assert limiter.peek("x").limits[0].used == both.peek("x").limits[0].used == count
    assert count > 50


@pytest.mark.parametrize("timeout", [0.3, 5])
def test_several_limits_of_a_new_client_wait_until_their_hash_slot_has_moved(
    mortal: Cluster, settings: Any, timeout: float
) -> None:
    """A server refuses several new keys while their slot moves (TRYAGAIN)."""
    settings.RATELIMIT_TIMEOUT = timeout
    reset_rules()
    limiter = RateLimiter("both", ["100/h", "200/d"])
    limiter.peek("a")
    key = key_of(limiter, "x")
    target = another_master(mortal, key)
    times = []

    async def ahit() -> str:
        return (await limiter.ahit("x")).source

    def hit_and_wait() -> list[str]:
        began = time.monotonic()
        sources = [limiter.hit("x").source, asyncio.run(ahit())]
        times.append(time.monotonic() - began)
        return sources

    with ThreadPoolExecutor(1) as pool:
        hits = []

        def while_moving() -> None:
            hits.append(hits[0] if hits else pool.submit(hit_and_wait))
            if timeout == 5:
                time.sleep(0.5)
            else:
                wait(hits)

        mortal.move(key, target, while_moving)
        sources = hits[0].result()
    if timeout == 5:
        assert sources == ["redis", "redis"]
        assert limiter.peek("x").limits[0].used == 2
    else:
        assert sources == ["fallback", "fallback"]
        assert 2 * timeout <= times[0] + 0.1 < 2 * timeout + 0.3


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_master_that_dies_or_hangs_affects_only_its_slots(
    how: int, mortal: Cluster, settings: Any
) -> None:
    """The policy decides for its slots until the replica takes over with the counts."""
    settings.RATELIMIT_TIMEOUT = 0.3
    limiter = RateLimiter("x", "1000000/h")
    limiter.hit("x")
    key = key_of(limiter, "x")
    victim = mortal.master_of(key)
    bystander = next(
        name
        for name in map(str, range(99))
        if mortal.master_of(key_of(limiter, name)) is not victim
    )
    limiter.hit(bystander)
    with client(victim.port) as direct:
        direct.set(b"{%b}last" % key[key.index(b"{") + 1 : key.index(b"}")], "written")
        assert direct.wait(1, 5000) == 1
    os.kill(victim.pid, how)
    try:
        sources, others, longest = [], [], 0.0
        end = time.monotonic() + 30
        while time.monotonic() < end and (not sources or sources[-1] != "redis"):
            started = time.monotonic()
            sources.append(limiter.hit("x").source)
            longest = max(longest, time.monotonic() - started)
            others.append(limiter.hit(bystander).source)
            time.sleep(0.01)
        assert sources[-1] == "redis"
        assert limiter.hit("x").limits[0].used == 3
        assert set(others) == {"redis"}
        assert longest < 0.3 + 0.4
    finally:
        os.kill(victim.pid, signal.SIGCONT) if how == signal.SIGSTOP else None


def test_a_hanging_master_of_the_rules_does_not_affect_other_slots(
    mortal: Cluster, settings: Any
) -> None:
    """Bursts of hits on all other slots are decided by Redis."""
    settings.RATELIMIT_TIMEOUT = 0.3
    settings.RATELIMIT_ON_STORE_ERROR = "closed"
    limiter = RateLimiter("x", "1000000/h")
    victim = mortal.master_of(build_call([Charge(limiter.limits[0], digest("x"))]).fence)
    others = [
        name
        for name in map(str, range(60))
        if mortal.master_of(key_of(limiter, name)) is not victim
    ][:10]

    async def burst() -> list[Any]:
        return await asyncio.gather(*(limiter.ahit(others[number % 10]) for number in range(200)))

    async def stopped() -> list[Any]:
        await burst()
        await asyncio.sleep(MAX_AGE)
        os.kill(victim.pid, signal.SIGSTOP)
        try:
            return await burst()
        finally:
            os.kill(victim.pid, signal.SIGCONT)

    assert Counter(decision.source for decision in asyncio.run(stopped())) == {"redis": 200}
    reset_rules()
    for name in others:
        limiter.hit(name)
    time.sleep(MAX_AGE)
    os.kill(victim.pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(40) as pool:
            found = Counter(
                pool.map(lambda number: limiter.hit(others[number % 10]).source, range(80))
            )
    finally:
        os.kill(victim.pid, signal.SIGCONT)
    assert found == {"redis": 80}


def test_a_comparison_of_rules_that_began_before_a_change_is_ignored() -> None:
    """A reply from before this process published does not confirm the rules."""
    freshness, asked_at = Freshness(), time.monotonic()
    call = Call([], revision=NO_RULES, fence=b"f")
    freshness.expire()
    freshness.confirm(b"f", NO_RULES, asked_at)
    assert freshness.claim_comparison(call)
    freshness.confirm(b"f", NO_RULES, time.monotonic())
    assert not freshness.claim_comparison(call)


def test_a_process_starts_while_some_nodes_are_down(mortal: Cluster, settings: Any) -> None:
    """Any node that responds is enough. Without one, the policy decides and no error is raised."""
    clusters.kill(mortal.servers[0])
    settings.CACHES = mortal.cache(mortal.servers[0], mortal.servers[1])
    limiter = RateLimiter("x", "1000/h")
    name = next(
        name
        for name in map(str, range(99))
        if mortal.master_of(key_of(limiter, name)) is mortal.servers[1]
    )
    assert limiter.hit(name).source == "redis"
    settings.CACHES = mortal.cache(mortal.servers[0])
    assert limiter.hit(name).source == "fallback"
    with pytest.raises(StoreError):
        get_store().execute(b"GET", b"anything")


def test_a_server_that_is_not_a_cluster_is_reported(settings: Any) -> None:
    """Another database than 0 and a Unix socket are reported."""
    options = {"CONNECTION_FACTORY": "django_ratelimit_lua.store.ClusterConnectionFactory"}

    def problem(location: str) -> str | None:
        settings.CACHES = alias(location, **options)
        return why_unusable("default")

    assert "only database 0" in problem("redis://127.0.0.1:7000/3")
    assert "redis:// or rediss://" in problem("unix:///tmp/redis.sock")
    assert problem(url()) is None
    assert RateLimiter("x", "1/h").hit("x").source == "fallback"
    assert isinstance(get_store(), Store)
    assert ConnectionParams.of("default").nodes


def test_settings_of_the_alias_reach_every_node(
    mortal: Cluster, settings: Any, prefix: str
) -> None:
    """These are the user and the password."""
    rights = [f"+{command}" for command in f"{IN_SCRIPTS} {LIMITS} cluster|slots asking".split()]
    keys = f"~{prefix}*", f"&{prefix}*"
    for server in mortal.servers:
        with client(server.port) as direct:
            direct.execute_command(
                "ACL", "SETUSER", "limiter", "on", ">hush", *keys, "-@all", *rights
            )
    settings.CACHES = mortal.cache(user="limiter:hush@")
    limiter = RateLimiter("x", "100/h")
    assert {limiter.hit(f"{number}").source for number in range(20)} == {"redis"}
    names = set()
    for server in mortal.servers[:MASTERS]:
        with client(server.port) as direct:
            names |= {one["user"] for one in direct.client_list() if one["cmd"] == "evalsha"}
    assert names == {"limiter"}
    key = key_of(limiter, "elsewhere")
    target = another_master(mortal, key)
    mortal.move(key, target, while_moving=lambda: limiter.hit("elsewhere"))
    assert limiter.hit("elsewhere").limits[0].used == 3
    limiter.reset("elsewhere")


@pytest.mark.django_db(transaction=True)
def test_bans_apply_in_every_hash_slot(cluster: Cluster) -> None:
    """A ban is triggered once, after the exact number of offences, and can be listed and lifted."""
    own = RateLimiter("own", "1/h", ban_after=10, ban_for="1h")
    with ThreadPoolExecutor(20) as pool:
        decisions = list(pool.map(lambda _: own.hit("ada"), range(60)))
    (earned,) = [decision.limits[0].ban for decision in decisions if decision.limits[0].ban.is_new]
    assert earned.offences == 10
    (listed,) = active_bans()
    assert (listed.limit, listed.until, listed.offences) == ("own", earned.ends_at, 10)
    ban_list.remove([listed.key])
    scan_bans()
    (again,) = active_bans()
    assert (again.key, again.until, again.offences) == (listed.key, listed.until, 10)
    lift_bans([again])
    assert active_bans() == []
    assert own.peek("ada").limits[0].ban.until == 0
