"""Connections to Redis by any setting in `CACHES`, for sync and async hits."""

from __future__ import annotations

import asyncio
import gc
import io
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import trustme
from django.core.management import call_command

from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua.engine.heartbeat import heartbeat
from django_ratelimit_lua.limits import program
from django_ratelimit_lua.limits.algorithms import ALGORITHMS, BY_RATE
from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule
from django_ratelimit_lua.operations.health import health
from django_ratelimit_lua.publishing import publish
from django_ratelimit_lua.testing.server import Server
from tests.support.redis_server import caches
from tests.support.redis_server import server as session_server

GUIDE = (Path(__file__).parents[3] / "docs/how-to/deploy.rst").read_text()
# What a user of the server has to be allowed: in scripts, for limits; by itself, for limits; for
# rules of the admin.
IN_SCRIPTS = "time get set del hget pexpire"
IN_SCRIPTS += " zadd zcount zrange zrangebyscore zrem zremrangebyrank zremrangebyscore"
LIMITS = "evalsha eval publish subscribe ping"
RULES = (
    "hmget hset hdel hgetall hincrby exists expire persist pttl pfadd pfcount zcard zscore "
    "zrevrange scan"
)
# In a cluster, behind Sentinel, in another database than 0; and what any user may do, or a
# connection does without.
ELSEWHERE = "cluster|slots asking role select"
ANYWHERE = "sentinel|get-master-addr-by-name"
BY_REDIS_PY = "select"


def used(name: str = "where") -> list[int]:
    """Return the counts of a sync and an async hit."""
    limiter = RateLimiter(name, "100/h")

    async def ahit() -> Any:
        return await limiter.ahit("someone")

    decisions = [limiter.hit("someone"), asyncio.run(ahit())]
    assert {decision.source for decision in decisions} == {"redis"}
    return [decision.limits[0].used for decision in decisions]


def test_a_unix_socket_a_database_and_a_password_are_used(settings: Any, tmp_path: Path) -> None:
    """They are in the URL. The password may be the option `PASSWORD` of django-redis."""
    path = tmp_path / "redis.sock"
    with Server(None, "--unixsocket", str(path)) as server:
        settings.CACHES = caches(f"unix://{path}?db=0")
        assert used() == [1, 2]
        with redis.Redis.from_url(server.url.replace("/0", "/7")) as direct:
            settings.CACHES = caches(server.url.replace("/0", "/7"))
            assert used() == [1, 2]
            assert direct.dbsize() == 1
            direct.config_set("requirepass", "hush")
        settings.CACHES = caches(server.url.replace("//", "//:hush@"))
        assert used() == [3, 4]
        settings.CACHES = caches(server.url, PASSWORD="hush")
        assert used() == [5, 6]


@pytest.fixture
def certificates(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Return a private key, a certificate for 127.0.0.1, and the certificate of its authority."""
    return issued(tmp_path)


def issued(folder: Path) -> tuple[Path, Path, Path]:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    key, chain, signer = (folder / name for name in ("key.pem", "chain.pem", "ca.pem"))
    certificate.private_key_pem.write_to_path(str(key))
    for part in certificate.cert_chain_pems:
        part.write_to_path(str(chain), append=True)
    authority.cert_pem.write_to_path(str(signer))
    return key, chain, signer


async def hit_and_stop(server: Server) -> None:
    await RateLimiter("where", "100/h").ahit("someone")
    os.kill(server.pid, signal.SIGSTOP)


@pytest.mark.skipif(
    not shutil.which("redis-server"), reason="NO TLS TEST: Debian's redis-server is not installed"
)
def test_tls_works_and_rejects_untrusted_certificates(
    settings: Any, tmp_path: Path, certificates: tuple[Path, Path, Path]
) -> None:
    """The URL begins with `rediss://`. A certificate of an unknown authority is refused."""
    key, chain, signer = certificates
    with Server() as somewhere:
        port = somewhere.port
    options = ("--tls-port", str(port), "--tls-auth-clients", "no", "--tls-key-file", str(key))
    files = ("--tls-cert-file", str(chain), "--tls-ca-cert-file", str(signer))
    with Server(shutil.which("redis-server"), *options, *files) as server:
        location = f"rediss://127.0.0.1:{port}/0"
        settings.CACHES = caches(location, CONNECTION_POOL_KWARGS={"ssl_ca_certs": str(signer)})
        assert used() == [1, 2]
        # A server that does not answer the end of TLS keeps no connection open when the event loop
        # has ended.
        asyncio.run(hit_and_stop(server))
        os.kill(server.pid, signal.SIGCONT)
        gc.collect()  # The test fails if it warns of a connection that was not closed.
        settings.CACHES = caches(
            location.replace("/0", "/1")
        )  # django-redis caches the pool of a URL.
        decision = RateLimiter("where", "100/h").hit("someone")
        assert decision.source == "fallback"


def create_documented_user(direct: redis.Redis, prefix: str) -> None:
    """Run the `ACL SETUSER` command of the deployment guide with another prefix."""
    command = "ACL SETUSER" + GUIDE.partition("ACL SETUSER")[2].partition("\n\n")[0].replace(
        "\\", " "
    )
    direct.execute_command(*command.replace("rl:", prefix).split())


@pytest.fixture
def least(settings: Any) -> Iterator[redis.Redis]:
    """Use a Redis user with only the documented rights."""
    with Server(session_server.binary) as server, redis.Redis.from_url(server.url) as direct:
        create_documented_user(direct, settings.RATELIMIT_CACHE_PREFIX)
        settings.CACHES = caches(server.url.replace("//", "//limiter:password@"))
        yield direct


@pytest.mark.engine
@pytest.mark.django_db(transaction=True)
def test_a_redis_user_with_minimal_rights_can_decide(least: redis.Redis, prefix: str) -> None:
    """They are enough for every algorithm, rules, overrides and the health check."""
    assert used() == [1, 2]
    for algorithm in BY_RATE:
        limiter = RateLimiter(algorithm, "2/h", algorithm=algorithm)
        for act in (limiter.hit, limiter.peek, limiter.refund, limiter.charge):
            assert act("someone").source == "redis"
        limiter.reset("someone")
    RateLimitRule.objects.create(name="where", rate="1/h")
    RateLimitOverride.objects.create(network="203.0.113.9", effect="block").delete()
    publish(rebuild=True)
    assert RateLimiter("where", "100/h").hit("someone").limits[0].limit == 1
    split = RateLimiter("split", "100/h", algorithm="token_bucket", split=True)
    assert split.hit("someone").source == "split"
    assert heartbeat.beat() == 1
    call_command("ratelimit", "health", stdout=io.StringIO())
    assert health().ok
    assert_nothing_was_missed(least, prefix)


def assert_nothing_was_missed(least: redis.Redis, prefix: str) -> None:
    """Check that no command was refused, and that every key has the prefix."""
    # redis-py would like to tell its name, and does without.
    missed = {str(entry["object"]) for entry in least.acl_log()}
    assert missed <= {"client|setinfo", "client"}
    assert [key for key in least.keys("*") if not key.startswith(prefix.encode())] == []


@pytest.mark.parametrize("command", sorted({*LIMITS.split(), *IN_SCRIPTS.split()}))
def test_a_missing_right_is_a_store_failure(command: str, least: redis.Redis) -> None:
    """The policy decides, and no call raises an exception."""
    least.execute_command("ACL", "SETUSER", "limiter", f"-{command}")
    for algorithm in BY_RATE:
        limiter = RateLimiter(algorithm, "2/h", algorithm=algorithm)
        sources = [limiter.hit("someone").source for _ in range(4)] + [
            limiter.refund("someone").source
        ]
        assert set(sources) <= {"redis", "fallback", "deny-cache"}


def asked_for() -> set[str]:
    """Return all Redis commands in the package's scripts and Python code."""
    package = Path(program.__file__).parents[1]
    text = "".join(
        path.read_text() for path in package.rglob("*") if path.suffix in (".lua", ".py")
    )
    found = re.findall(r"(?:call|write)\((?:\w+, )?'([A-Z]+)'", text)
    found += [
        "|".join(filter(None, parts))
        for parts in re.findall(r'\(\s*b"([A-Z]+)"(?:, b"([A-Z-]+)")?', text)
    ]
    # The second word is a part of the command for some only.
    of_two = ("script", "cluster", "client", "sentinel")
    words = [word.lower() for word in found]
    return {word if word.startswith(of_two) else word.partition("|")[0] for word in words}


def test_the_minimal_rights_are_those_in_the_documentation() -> None:
    """The documented rights equal the commands of the scripts and of the package."""
    text = program.program_for((*sorted(ALGORITHMS), "ban")).source.decode()
    called = {found.lower() for found in re.findall(r"redis\.call\('([A-Z]+)'", text)}
    assert called == set(IN_SCRIPTS.split())
    needed = {*IN_SCRIPTS.split(), *LIMITS.split(), *RULES.split()}
    text = GUIDE.partition("ACL SETUSER limiter")[2]
    documented, _, below = text.replace("\\", " ").partition("\n\n")
    assert set(re.findall(r"\+([a-z|]+)", documented)) == needed
    assert set(re.findall(r"\+([a-z|]+)", below.partition("\n\n\n")[0])) >= set(ELSEWHERE.split())
    assert asked_for() == needed | {*ELSEWHERE.split(), *ANYWHERE.split()} - {BY_REDIS_PY}
