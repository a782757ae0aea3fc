"""Who is the master: asked of the sentinels whenever a connection is made, within the deadline of the decision.

See https://redis.io/docs/latest/develop/reference/sentinel-clients/. After connecting, the server is asked for its role
as well, because a sentinel may not have heard yet: decisions are made by masters only.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import redis.asyncio.connection as asynchronous
import redis.connection as synchronous
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from .exchange import Address, Question, command
from .patience import Patience


@dataclass(frozen=True, slots=True)
class Sentinels:
    """The sentinels that watch a service: what their connections are made of, and by which `classes`, blocking and
    not."""

    service: str
    kwargs: Sequence[dict[str, Any]]
    classes: tuple[type[synchronous.AbstractConnection], type[asynchronous.AbstractConnection]]

    @property
    def question(self) -> Question:
        """What a sentinel is asked; the answer is the master's address, or None."""
        return Question(command(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self.service.encode()), _address)

    def search(self, patience: Patience) -> Generator[tuple[dict[str, Any], Patience], Address | None, Address]:
        """The master's address: yields what the connection to a sentinel is made of, and its share of the time that is
        left; is sent its answer, or thrown its error. Raises `RedisError` where none knows."""
        for number, kwargs in enumerate(self.kwargs):
            share = patience.share(len(self.kwargs) - number)
            if share.is_over:
                break
            try:
                found = yield kwargs, share
            except (RedisError, OSError):
                continue
            finally:
                patience.take_back(share)
            if found is not None:
                return found
        raise RedisConnectionError(f"no sentinel knows the master of {self.service!r}")


def _address(reply: Any) -> Address | None:
    if reply is None:
        return None
    host, port = reply
    return host.decode(), int(port)
