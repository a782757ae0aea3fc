"""What is taken from a cache alias, and that redis-py opens a connection of it: the oldest and the newest alike."""

from __future__ import annotations

import ast
import asyncio
import inspect
import socket
from pathlib import Path
from typing import Any

import pytest
import redis.connection
from django.core.exceptions import ImproperlyConfigured
from redis.credentials import CredentialProvider

import django_ratelimit_lua.store
from django_ratelimit_lua.conf import changes
from django_ratelimit_lua.store import why_unusable
from django_ratelimit_lua.store.connection_params import LOGIN, REACH, ConnectionParams
from django_ratelimit_lua.store.redis_py import AsyncDial, open_socket

NEWER = {"ssl_exclude_verify_flags", "ssl_include_verify_flags"}
"""Options that the oldest redis-py does not have."""
INSIDE = ("redis.connection", "redis.asyncio", "redis.sentinel", "redis._parsers")


def use(settings: Any, location: str, **kwargs: Any) -> None:
    """An alias with these `CONNECTION_POOL_KWARGS`, and a URL of its own, by which django-redis keeps its pools."""
    options = {"CONNECTION_POOL_KWARGS": kwargs}
    settings.CACHES = {
        "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location, "OPTIONS": options}
    }


def test_nothing_is_taken_that_is_not_named(settings: Any) -> None:
    """The cache's ways of using a connection, and whatever redis-py has tomorrow, change nothing here."""
    use(
        settings, "redis://someone:hush@127.0.0.1:7/3", socket_timeout=99, retry_on_timeout=True, decode_responses=True,
        health_check_interval=7, protocol=3, encoding="latin-1", tomorrow="new", socket_keepalive=True,
    )  # fmt: skip
    params = ConnectionParams.of("default")
    assert params.options == {"host": "127.0.0.1", "port": 7, "socket_keepalive": True}
    assert (params.database, params.credentials()) == (3, ("someone", "hush"))
    assert "hush" not in repr(params)


def test_an_option_of_tls_is_never_left_out(settings: Any) -> None:
    """Rather than a connection that checks less than the project asks for."""
    use(settings, "rediss://127.0.0.1:2/0", ssl_tomorrow=True)
    assert "ssl_tomorrow, which limits do not know" in why_unusable("default")
    use(settings, "rediss://127.0.0.1:3/0", ssl_check_hostname=True, ssl_ciphers="HIGH")
    assert why_unusable("default") is None
    assert {"ssl_check_hostname", "ssl_ciphers"} <= ConnectionParams.of("default").options.keys()


def test_options_that_the_connection_does_not_take_are_told_at_once(settings: Any) -> None:
    """By the system check, not by the first request."""
    use(settings, "redis://127.0.0.1:4/0", ssl_ca_certs="ca.pem")
    assert "ssl_ca_certs" in why_unusable("default")
    with pytest.raises(ImproperlyConfigured, match="ssl_ca_certs"):
        ConnectionParams.of("default")


def test_a_check_that_is_switched_off_is_no_check(settings: Any) -> None:
    """Coroutines connect although their connections do not know OCSP; where it is wanted, they refuse to."""
    use(settings, "rediss://127.0.0.1:8/0", ssl_validate_ocsp=False)
    assert ConnectionParams.of("default").async_dial()
    use(settings, "rediss://127.0.0.1:9/0", ssl_validate_ocsp=True)
    with pytest.raises(ImproperlyConfigured, match=r"cannot be used by coroutines.*ssl_validate_ocsp"):
        ConnectionParams.of("default").async_dial()


def test_the_names_are_those_of_redis_py() -> None:
    """So that none is misspelt, and that each reaches the classes that open connections."""
    kinds = [redis.connection.SSLConnection, redis.connection.UnixDomainSocketConnection]
    names = {name for kind in kinds for base in kind.__mro__ for name in inspect.signature(base.__init__).parameters}
    assert (REACH | LOGIN) - names <= NEWER


class Rotating(CredentialProvider):
    """Other credentials each time."""

    def __init__(self) -> None:
        self.number = 0

    def get_credentials(self) -> tuple[str, str]:
        self.number += 1
        return "someone", f"token {self.number}"


def test_credentials_are_asked_for_each_connection(settings: Any) -> None:
    """A provider may have others by then, for threads and for coroutines."""
    use(settings, "redis://127.0.0.1:5/0", credential_provider=Rotating())
    params = ConnectionParams.of("default")
    assert params.credentials() == ("someone", "token 1")
    assert asyncio.run(params.acredentials()) == ("someone", "token 2")
    assert params.at(("127.0.0.1", 6)).credentials() == ("someone", "token 3")


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_redis_py_opens_a_socket_within_our_time(kind: str, tmp_path: Path) -> None:
    """Each step may take what is left, whatever redis-py's own timeouts are; keepalive is as the options say."""
    left: list[float] = []

    def seconds_left() -> float:
        left.append(7.0)
        return 7.0

    family = socket.AF_INET if kind == "tcp" else socket.AF_UNIX
    with socket.socket(family) as listener:
        listener.bind(("127.0.0.1", 0) if kind == "tcp" else f"{tmp_path}/socket")
        listener.listen()
        connection_class, options = {
            "tcp": (redis.connection.Connection, {"host": "127.0.0.1", "socket_keepalive": True}),
            "unix": (redis.connection.UnixDomainSocketConnection, {"path": f"{tmp_path}/socket"}),
        }[kind]
        if kind == "tcp":
            options["port"] = listener.getsockname()[1]
        with open_socket(connection_class, options, seconds_left) as opened:
            assert opened.gettimeout() == 7.0
            if kind == "tcp":
                assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert len(left) >= 2

        async def connected() -> list[asyncio.BaseTransport]:
            made: list[asyncio.BaseTransport] = []

            class Noted(asyncio.Protocol):
                def connection_made(self, transport: asyncio.BaseTransport) -> None:
                    made.append(transport)

            await AsyncDial(connection_class, options).connect(Noted)
            keeps_alive = made[0].get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert bool(keeps_alive) == (kind == "tcp")
            made[0].abort()
            return made

        assert len(asyncio.run(connected())) == 1


def test_redis_pys_inside_is_known_to_one_file() -> None:
    """What it may change in any release is imported nowhere else."""
    folder = Path(django_ratelimit_lua.store.__file__).parent
    for file in set(folder.glob("*.py")) - {folder / "redis_py.py"}:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                assert not node.module.startswith(INSIDE), file.name
            elif isinstance(node, ast.Import):
                assert not any(alias.name.startswith(INSIDE) for alias in node.names), file.name


def test_a_store_that_is_made_while_settings_change_is_not_kept(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that has read the settings of before would leave everybody a store of them."""
    use(settings, "redis://127.0.0.1:1/0")
    read = ConnectionParams.of

    def slow(alias: str) -> ConnectionParams:
        params = read(alias)
        if params.database == 0:
            use(settings, "redis://127.0.0.1:1/1")  # By another thread, between reading them and keeping the store.
        return params

    monkeypatch.setattr(ConnectionParams, "of", staticmethod(slow))
    get_store = django_ratelimit_lua.store.get_store
    assert [get_store()._params.database, get_store()._params.database] == [1, 1]


def test_a_store_made_right_after_a_change_of_settings_has_the_new_ones(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may ask before Django's own receiver has replaced the aliases."""
    made: list[int] = []
    receiver = (("CACHES",), lambda: made.append(django_ratelimit_lua.store.get_store()._params.database))
    monkeypatch.setattr(changes, "_hearers", [*changes._hearers, receiver])
    for database in (0, 1):
        use(settings, f"redis://127.0.0.1:1/{database}")
    assert made == [0, 1]
