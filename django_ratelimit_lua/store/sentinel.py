"""Who is the master: asked of the sentinels whenever a connection is made, within the deadline of the decision.

See https://redis.io/docs/latest/develop/reference/sentinel-clients/. After connecting, the server is asked for its role
as well, because a sentinel may not have heard yet: decisions are made by masters only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis.asyncio.connection as asynchronous
import redis.connection as synchronous
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Sentinels:
    """The sentinels that watch a service: what their connections are made of, and by which `classes`, blocking and
    not."""

    service: str
    kwargs: Sequence[dict[str, Any]]
    classes: tuple[type[synchronous.AbstractConnection], type[asynchronous.AbstractConnection]]

    def master(self, deadline: float) -> Address:
        """The master's address. Each sentinel has its share of the time that is left; raises `RedisError`."""
        for number, kwargs in enumerate(self.kwargs):
            share = (deadline - time.monotonic()) / (len(self.kwargs) - number)
            if share <= 0:
                break
            connection = self.classes[0](**kwargs, socket_timeout=share, socket_connect_timeout=share)
            try:
                connection.connect()
                connection.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)
                found = connection.read_response(disable_decoding=True)
            except (RedisError, OSError):
                continue
            finally:
                connection.disconnect()
            if found:
                return _address(found)
        raise self._nobody()

    async def amaster(self, deadline: float) -> Address:
        """`master`, for coroutines."""
        for number, kwargs in enumerate(self.kwargs):
            share = (deadline - time.monotonic()) / (len(self.kwargs) - number)
            if share <= 0:
                break
            connection = self.classes[1](**kwargs)
            try:
                async with asyncio.timeout(share):
                    await connection.connect()
                    await connection.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)
                    found = await connection.read_response(disable_decoding=True)
            except (RedisError, OSError):
                continue
            finally:
                await connection.disconnect(nowait=True)
            if found:
                return _address(found)
        raise self._nobody()

    def _nobody(self) -> RedisConnectionError:
        return RedisConnectionError(f"no sentinel knows the master of {self.service!r}")


def _address(found: Sequence[bytes]) -> Address:
    return found[0].decode(), int(found[1])


def check_role(role: Any) -> None:
    """Raises `RedisError` unless that is the reply of a master to ROLE."""
    if not isinstance(role, list) or role[0] != b"master":
        raise RedisConnectionError(f"the sentinels named a server that is no master: {role!r:.80}")
