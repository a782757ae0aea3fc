"""Encode commands and read their replies, independent of any connection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, RedisError, ResponseError

from ..limits.call import REGISTER, Call, Charge, StaleRules
from ..limits.limit import Limit
from ..limits.program import PROGRAM, Program
from ..process.forks import chance

TOKEN_SIZE = 8
DIGEST_SIZE = 32
FORMS, MAX_LIMITS, MAX_UNITS = 256, 8, 10
"""Size of the LRU cache of encoded commands; calls with more limits or units are not cached."""
MAX_MOMENT_DIGITS = 18
FOREVER = 2**63
"""Later than any moment."""

_MOMENT = 8_888_888_888_888_888
"""Stands for the time of a call in a cached command; it has as many digits."""
_SLOT = b"\xff one of the slots \xff"
"""Stands for a slot in a cached command; it is as long."""
_AT_SLOT = Call._fields.index("slot") - 1
_PART = b"$%d\r\n%b\r\n".__mod__

Address = tuple[str, int]


class Unreachable(RedisConnectionError):  # noqa: N818 - named as redis-py names its own
    """No connection could be made, so nothing was sent."""


def command(*parts: bytes) -> bytes:
    """One command as it is sent (RESP:
    https://redis.io/docs/latest/develop/reference/protocol-spec/).

    >>> command(b"GET", b"key")
    b'*2\\r\\n$3\\r\\nGET\\r\\n$3\\r\\nkey\\r\\n'
    """
    return b"*%d\r\n%b" % (len(parts), _encoded(*parts))


def _encoded(*parts: bytes) -> bytes:
    return b"".join(map(_PART, zip(map(len, parts), parts, strict=True)))


class Question(NamedTuple):
    """One command, and how to read its reply.

    - `read`: makes the answer from the reply. Raises any error for a reply that the command cannot
      have, and `StaleRules`;
    - `key`: a key of the command, which names the node in a cluster;
    - `program`: the program that the command calls by its digest;
    - `ahead`: a command to send right before it.
    """

    command: bytes
    read: Callable[[Any], Any]
    key: bytes = b""
    program: Program | None = None
    ahead: bytes = b""

    def with_source(self) -> Question:
        """The same by the source of the program, after which the server has it."""
        assert self.program is not None
        by_digest, by_source = (
            _encoded(b"EVALSHA", self.program.sha),
            _encoded(b"EVAL", self.program.source),
        )
        return self._replace(command=self.command.replace(by_digest, by_source, 1))

    def answer(self, reply: Any) -> Any:
        """What the reply means. Raises it if it is an error."""
        if isinstance(reply, ResponseError):
            raise reply
        return self.read(reply)


def to_decide(call: Call) -> Question:
    """Decide a call. The answer is the decision. Raises `StaleRules`."""
    token = chance.getrandbits(64).to_bytes(TOKEN_SIZE, "little")
    limits: tuple[tuple[Limit, int, bool], ...] = ()
    varying: tuple[bytes, ...] = ()
    is_usual = call.hit_at is None and not call.subjects and len(call.charges) <= MAX_LIMITS
    bans: tuple[bytes, ...] = ()
    for limit, digest, cost, banned, reports in call.charges:
        limits += ((limit, cost, reports),)
        varying += (digest,)
        if limit.ban is not None and call.operation not in ("charge", "refund"):
            bans += (banned or digest,)
        is_usual = is_usual and cost <= MAX_UNITS
    varying += bans
    rest: tuple[Any, ...] = call[1:]
    if call.slot:
        rest = (*rest[:_AT_SLOT], _SLOT, *rest[_AT_SLOT + 1 :])
    if is_usual and call.now is None:
        form = _form(rest, limits)
    elif is_usual and 0 <= (call.now or 0) <= _MOMENT:
        form = _form((*rest[:2], _MOMENT, *rest[3:]), limits)
        varying += (b"%016d" % (call.now or 0),)
    else:
        form = b""
    if call.slot:
        varying += (call.slot,) * sum(limit.holds for limit, _, _ in limits)
    sent = form % (*varying, token) if form else _evalsha(call, token)
    return Question(sent, partial(call.read, token=token), program=PROGRAM)


def _evalsha(call: Call, token: bytes) -> bytes:
    keys = call.keys()
    return command(b"EVALSHA", PROGRAM.sha, b"%d" % len(keys), *keys, *call.args(token))


@lru_cache(maxsize=FORMS)
def _form(rest: tuple[Any, ...], limits: tuple[tuple[Limit, int, bool], ...]) -> bytes:
    """The command for calls that differ in their identities alone, with places for these and for
    the token.

    Empty if more than that differs: with the moment, or because limits share a name. `rest`: the
    fields of the call after its charges.
    """
    places = [bytes([number]) * DIGEST_SIZE for number in range(1, 2 * len(limits) + 1)]
    charges = [
        Charge(limit, place, cost, banned, reports)
        for (limit, cost, reports), place, banned in zip(
            limits, places, places[len(limits) :], strict=False
        )
    ]
    call = Call(charges, *rest)
    varies = any(limit.wants_more or not limit.packed for limit, _, _ in limits)
    if varies or len({limit.key_part for limit, _, _ in limits}) < len(limits):
        return b""
    form = (
        _evalsha(call, bytes(TOKEN_SIZE))
        .removesuffix(bytes(TOKEN_SIZE) + b"\r\n")
        .replace(b"%", b"%%")
    )
    for place in (*places, b"%d" % _MOMENT):  # A limit without bans has no key for one.
        form = form.replace(place, b"%b", 1)
    form = form.replace(_SLOT, b"%b")  # One for each limit of slots.
    return form + b"%b\r\n"


RULES, RESET, ANNEX = b"rules", b"reset", b"annex"
# A user who may not publish can still delete. The register, if there is one, lists all bans: these
# leave it. If a server forbids TIME in scripts, the message has no moment.
_DELETE = b"""local last = #KEYS - tonumber(ARGV[3])
redis.call('DEL', unpack(KEYS, 1, last))
if last < #KEYS then redis.pcall('ZREM', KEYS[#KEYS], unpack(KEYS, 1, last)) end
local time, moment, message = redis.pcall('TIME'), 0, ARGV[2]
if not time.err then
  moment = time[1] * 1000000 + time[2]
  message = message .. string.format(' @%.0f', moment)
end
redis.pcall('PUBLISH', ARGV[1], message)
return moment"""


def to_delete(call: Call, channel: bytes) -> Question:
    """Delete the counts and bans of a call's limits, and notify all processes.

    The answer is the moment of it, in microseconds since 1970 by the clock of Redis.
    """
    keys, registers = call.state_keys(), call.registers and bool(call.banning)
    if registers:
        keys.append(call.prefix + REGISTER)
    digests = dict.fromkeys(
        digest for charge in call.charges for digest in (charge.digest, charge.ban_digest)
    )
    message = (channel, b" ".join([RESET, *digests]), b"%d" % registers)
    parts = (b"EVAL", _DELETE, b"%d" % len(keys), *keys, *message)
    return Question(command(*parts), lambda reply: _whole_number(reply) or FOREVER)


def read_reset(words: Iterable[bytes]) -> tuple[set[bytes], int]:
    """Read what follows `RESET` in a message.

    Returns:
        The digests, and the moment up to which their units do not count any more: `FOREVER` if the
        message has no moment.
    """
    digests = set(words)
    moments = {word for word in digests if word.startswith(b"@")}
    number = b"".join(moments)[1:]
    is_known = number.isdigit() and len(number) <= MAX_MOMENT_DIGITS
    return digests - moments, int(number) if is_known else FOREVER


_TELL = b"redis.pcall('PUBLISH', ARGV[1], ARGV[2]) return 1"


def to_tell_reset(call: Call, channel: bytes) -> Question:
    """Notify all processes that cached refusals of a call's identities have ended.

    Counts stay: they were counted after the moment 0.
    """
    message = b" ".join(
        [RESET, *dict.fromkeys(charge.ban_digest for charge in call.charges), b"@0"]
    )
    return Question(command(b"EVAL", _TELL, b"0", channel, message), _whole_number)


def to_execute(*parts: bytes) -> Question:
    """Any other command. The answer is its reply."""

    def read(reply: Any) -> Any:
        # Requests wait for this one, which loads the rules.
        if parts[0] == b"HMGET" and not (isinstance(reply, list) and len(reply) == len(parts) - 2):
            raise InvalidResponse(f"not the reply to HMGET: {reply!r:.80}")
        return reply

    key = parts[3] if parts[0] == b"EVAL" else b"".join(parts[1:2])
    return Question(command(*parts), read, key)


def to_run(program: Program, keys: Sequence[bytes], arguments: Sequence[bytes]) -> Question:
    """Run a program that answers with an array."""

    def read(reply: Any) -> list[Any]:
        if not isinstance(reply, list):
            raise InvalidResponse(f"not the reply of a program: {reply!r:.80}")
        return reply

    sent = command(b"EVALSHA", program.sha, b"%d" % len(keys), *keys, *arguments)
    return Question(sent, read, keys[0], program)


def to_find_master(service: str) -> Question:
    """Ask a Sentinel.

    The answer is the master's address, or None if it does not know the service.
    """

    def read(reply: Any) -> Address | None:
        return None if reply is None else (reply[0].decode(), int(reply[1]))

    return Question(command(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", service.encode()), read)


def to_check_master() -> Question:
    """Ask a server for its role: a Sentinel may still name a master that was replaced."""

    def read(reply: Any) -> None:
        if reply[0] != b"master":
            raise RedisConnectionError(
                f"the Sentinels named a server that is not a master: {reply!r:.80}"
            )

    return Question(command(b"ROLE"), read)


def to_ping() -> Question:
    return Question(command(b"PING"), lambda reply: reply)


def _whole_number(reply: Any) -> int:
    if not isinstance(reply, int) or reply < 0:
        raise InvalidResponse(f"not a whole number: {reply!r:.80}")
    return reply


def as_redis_error(
    error: BaseException, kind: type[RedisConnectionError] = RedisConnectionError
) -> BaseException:
    """The error to raise for one that ended an exchange: an error that redis-py does not know
    becomes one of its own, because a reply that cannot be read is no answer.
    """
    if not isinstance(error, Exception) or isinstance(error, StaleRules):
        return error
    if isinstance(error, RedisError) and (
        kind is RedisConnectionError or isinstance(error, (kind, ResponseError))
    ):
        return error
    broken = kind(f"{type(error).__name__}: {error}")
    broken.__cause__ = error
    return broken
