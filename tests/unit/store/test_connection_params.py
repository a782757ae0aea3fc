"""The options of a cache alias that limits use, and the connections of the oldest and the newest
redis-py.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fakeredis
import pytest
import redis.connection
from django.core.exceptions import ImproperlyConfigured
from redis.credentials import CredentialProvider

import django_ratelimit_lua.store
from django_ratelimit_lua import RateLimiter
from django_ratelimit_lua import conf as settings_room
from django_ratelimit_lua.checks import check_cache
from django_ratelimit_lua.store import why_unusable
from django_ratelimit_lua.store.connection_params import OPTIONS, ConnectionParams
from django_ratelimit_lua.store.server import Store
from django_ratelimit_lua.testing.server import Server
from tests.acceptance.store.test_replies import call
from tests.tools.faults import alias

NEWER = {"ssl_exclude_verify_flags", "ssl_include_verify_flags"}
"""Options that the oldest redis-py does not have."""
INSIDE = ("redis.connection", "redis.asyncio", "redis.sentinel", "redis._parsers")


def use(settings: Any, location: str, **kwargs: Any) -> None:
    """Configure an alias with these `CONNECTION_POOL_KWARGS`."""
    settings.CACHES = alias(location, CONNECTION_POOL_KWARGS=kwargs)


def test_only_listed_connection_options_are_used(settings: Any) -> None:
    """Options for the cache alone, and those of a newer redis-py, are not used."""
    unused: dict[str, Any] = {"socket_timeout": 99, "retry_on_timeout": True, "tomorrow": "new"}
    unused |= {"decode_responses": True, "health_check_interval": 7, "protocol": 3}
    location = "redis://someone:hush@127.0.0.1:7/3"
    use(settings, location, **unused, encoding="latin-1", socket_keepalive=True)
    params = ConnectionParams.of("default")
    parser = redis.connection.DefaultParser
    login = {"db": 3, "username": "someone", "password": "hush"}
    server = {"host": "127.0.0.1", "port": 7, "socket_keepalive": True, "parser_class": parser}
    assert params.options == {**server, **login}
    assert params.database == 3
    assert "hush" not in repr(params)


class ClassOfFake(redis.connection.Connection):
    """A connection class of fakeredis, as its older versions have it."""

    __module__ = "fakeredis._connection"


class OwnFake(ClassOfFake):
    """A project's own subclass of it."""


@pytest.mark.parametrize(
    "options",
    [
        {"CONNECTION_POOL_KWARGS": {"connection_class": fakeredis.FakeConnection}},
        {"CONNECTION_POOL_KWARGS": {"connection_class": fakeredis.FakeAsyncRedis}},
        {"CONNECTION_POOL_KWARGS": {"connection_class": "fakeredis.FakeConnection"}},
        {"CONNECTION_POOL_KWARGS": {"connection_class": OwnFake}},
        {"REDIS_CLIENT_CLASS": "fakeredis.FakeStrictRedis"},
    ],
    ids=["function", "class", "text", "subclass", "client"],
)
def test_fakeredis_is_an_error_that_names_the_server_for_tests(
    options: dict[str, Any], settings: Any
) -> None:
    """The system check and the first decision report it."""
    settings.CACHES = alias(f"redis://127.0.0.1:1/{len(str(options))}", **options)
    expected = r"uses fakeredis, .* start django_ratelimit_lua\.testing\.Server"
    (message,) = check_cache()
    assert message.is_serious()
    assert re.search(expected, message.msg)
    with pytest.raises(ImproperlyConfigured, match=expected):
        RateLimiter("fake", "5/m").hit("ada")


def test_a_connection_class_that_is_no_class_is_named(settings: Any) -> None:
    """django-redis does not import a dotted path there."""
    use(settings, "redis://127.0.0.1:1/77", connection_class="redis.Connection")
    assert "connection_class is 'redis.Connection': must be a class" in why_unusable("default")


def test_no_tls_option_is_ignored(settings: Any) -> None:
    """An unknown one is an error, because a connection would check less than is required."""
    use(settings, "rediss://127.0.0.1:2/0", ssl_tomorrow=True)
    assert "ssl_tomorrow, which limits do not support" in why_unusable("default")
    with pytest.raises(ImproperlyConfigured, match="ssl_tomorrow"):
        ConnectionParams.of("default")
    use(settings, "redis://127.0.0.1:4/0", ssl_ca_certs="ca.pem")
    assert "ssl_ca_certs" in why_unusable("default")
    use(settings, "rediss://127.0.0.1:3/0", ssl_check_hostname=True, ssl_ciphers="HIGH")
    assert why_unusable("default") is None
    assert {"ssl_check_hostname", "ssl_ciphers"} <= ConnectionParams.of("default").options.keys()


def test_a_disabled_tls_check_is_accepted_for_coroutines(settings: Any) -> None:
    """Async connections do not support OCSP."""
    use(settings, "rediss://127.0.0.1:8/0", ssl_validate_ocsp=False)
    assert ConnectionParams.of("default").async_connection()
    use(settings, "rediss://127.0.0.1:9/0", ssl_validate_ocsp=True)
    with pytest.raises(
        ImproperlyConfigured, match=r"cannot be used by coroutines.*ssl_validate_ocsp"
    ):
        ConnectionParams.of("default").async_connection()


def test_the_option_names_are_those_of_redis_py() -> None:
    """Each option is a parameter of a connection class of redis-py, so none is misspelt."""
    kinds = [redis.connection.SSLConnection, redis.connection.UnixDomainSocketConnection]
    names = {
        name
        for kind in kinds
        for base in kind.__mro__
        for name in inspect.signature(base.__init__).parameters
    }
    assert OPTIONS - names <= NEWER


class Rotating(CredentialProvider):
    """A provider that counts its calls."""

    count = 0

    def get_credentials(self) -> tuple[str, str]:
        self.count += 1
        return "someone", "hush"


@pytest.fixture
def guarded() -> Iterator[Server]:
    """Return a server that accepts only one user."""
    with Server() as server, redis.Redis.from_url(server.url) as direct:
        direct.execute_command("ACL", "SETUSER", "someone", "on", ">hush", "~*", "&*", "+@all")
        direct.execute_command("ACL", "SETUSER", "default", "off")
        yield server


def test_credentials_are_requested_for_each_connection(settings: Any, guarded: Server) -> None:
    """They may have changed since the last one."""
    provider = Rotating()
    use(settings, guarded.url, credential_provider=provider)
    store = Store(ConnectionParams.of("default"), 5, background=True)
    store.decide(call(1))
    store.decide(call(1))
    assert provider.count == 1
    asyncio.run(store.adecide(call(1)))
    assert provider.count == 2
    store.close()
    store.decide(call(1))
    assert provider.count == 3
    store.close()


class Noting(redis.connection.DefaultParser):
    """A parser that a project defines."""

    count = 0

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        type(self).count += 1
        return super().read_response(*args, **kwargs)


def test_a_custom_parser_is_used(settings: Any) -> None:
    """Threads use the parser."""
    with Server() as server:
        settings.CACHES = alias(server.url, PARSER_CLASS=f"{__name__}.Noting")
        store = Store(ConnectionParams.of("default"), 5, background=True)
        store.decide(call(1))
        assert Noting.count >= 1
        with pytest.raises(
            ImproperlyConfigured, match=r"cannot be used by coroutines: the parser Noting"
        ):
            asyncio.run(store.adecide(call(1)))
        store.close()


class OwnConnection(redis.connection.Connection):
    """A connection class that a project defines."""

    count = 0

    def _connect(self) -> Any:
        OwnConnection.count += 1
        return super()._connect()


class OwnPool(redis.ConnectionPool):
    """A pool that a project defines."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(connection_class=OwnConnection, **kwargs)


@pytest.mark.parametrize(
    "options",
    [
        {
            "CONNECTION_POOL_CLASS": "redis.BlockingConnectionPool",
            "CONNECTION_POOL_KWARGS": {"timeout": 3},
        },
        {"CONNECTION_POOL_CLASS": f"{__name__}.OwnPool"},
        {"CLIENT_CLASS": "django_redis.client.HerdClient"},
        {
            "SOCKET_TIMEOUT": 99,
            "CONNECTION_POOL_KWARGS": {"retry_on_timeout": True, "health_check_interval": 1},
        },
    ],
    ids=["blocking pool", "own pool", "herd client", "timeouts"],
)
def test_custom_pools_and_clients_are_accepted(options: Any, settings: Any) -> None:
    """Sync connections use the connection class of the pool."""
    with Server() as server:
        settings.CACHES = alias(server.url, **options)
        store = Store(ConnectionParams.of("default"), 5, background=True)
        assert store.decide(call(1)).allowed
        assert asyncio.run(store.adecide(call(1))).allowed
        assert bool(OwnConnection.count) == ("own" in str(options).lower())
        OwnConnection.count = 0
        store.close()


def test_only_one_module_uses_internals_of_redis_py() -> None:
    """Modules that redis-py may change in any release are imported only in `redis_py.py`."""
    folder = Path(django_ratelimit_lua.store.__file__).parent
    for file in set(folder.glob("*.py")) - {folder / "redis_py.py"}:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                assert not node.module.startswith(INSIDE), file.name
            elif isinstance(node, ast.Import):
                assert not any(alias.name.startswith(INSIDE) for alias in node.names), file.name


def test_a_store_made_right_after_a_change_of_settings_has_the_new_ones(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread may request a store before Django's own receiver has replaced the aliases."""
    made: list[int] = []
    receiver = (
        ("CACHES",),
        lambda: made.append(django_ratelimit_lua.store.get_store()._params.database),
    )
    monkeypatch.setattr(settings_room, "_receivers", [*settings_room._receivers, receiver])
    for database in (0, 1):
        use(settings, f"redis://127.0.0.1:1/{database}")
    assert made == [0, 1]
