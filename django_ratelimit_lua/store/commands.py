"""Encode commands and read their replies, independent of any connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, RedisError, ResponseError

from ..limits.call import Call, StaleRules
from ..limits.decision import Decision
from ..limits.program import Program, program_for
from ..process.forks import chance

TOKEN_SIZE = 8
MAX_FORMS = 256
"""Encoded commands that are kept."""
MAX_LIMITS = 8
MAX_UNITS = 10
"""Calls with more limits or units are not cached."""
DIGEST_SIZE = 32
"""Bytes of the digest of an identity."""


_encode_part = b"$%d\r\n%b\r\n".__mod__

T_co = TypeVar("T_co", covariant=True)


class Form(NamedTuple):
    """A command without its values, which are the digests of identities and the token.

    It is the same for calls that differ only in their identities.

    - `template`: the command is `template % values`.
    """

    program: Program
    template: bytes


_forms: dict[tuple[object, ...], Form] = {}
"""The forms, by the shape of their calls."""

Address = tuple[str, int]
Reply = Any
"""What Redis replies: bytes, an integer, None, or a list of replies."""


class Unreachable(RedisConnectionError):  # noqa: N818 - named as redis-py names its own
    """No connection could be made, so nothing was sent."""


def encode(*parts: bytes) -> bytes:
    r"""Return one command as it is sent.

    RESP: https://redis.io/docs/latest/develop/reference/protocol-spec/

    >>> encode(b"GET", b"key")
    b'*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n'
    """
    return b"*%d\r\n%b" % (len(parts), _encode_parts(*parts))


def _encode_parts(*parts: bytes) -> bytes:
    return b"".join([_encode_part((len(part), part)) for part in parts])


class Command(NamedTuple, Generic[T_co]):
    """One command, and how to parse its reply.

    - `data`: the command as it is sent;
    - `read`: returns the answer from the reply. Raises `StaleRules`, and any error if the reply is
      impossible for the command;
    - `key`: a key of the command, which selects the node in a cluster;
    - `program`: the script that the command calls by its digest;
    - `ahead`: a command to send immediately before it;
    - `has_token`: whether the reply contains a token that proves that it belongs to the command;
    - `batch_size`: the number of commands in `data` if it is a batch. `read` gets all replies.
    """

    data: bytes
    read: Callable[[Reply], T_co]
    key: bytes = b""
    program: Program | None = None
    ahead: bytes = b""
    has_token: bool = False
    batch_size: int | None = None

    def with_source(self) -> Command[T_co]:
        """Return the command with the source of the script instead of its digest.

        The server stores the script when it runs it, so the result has no `program` to retry.
        """
        assert self.program is not None
        by_digest = _encode_parts(b"EVALSHA", self.program.sha)
        by_source = _encode_parts(b"EVAL", self.program.source)
        count, end, parts = self.data.partition(b"\r\n")
        data = count + end + by_source + parts.removeprefix(by_digest)
        return self._replace(data=data, program=None)


def decision_command(call: Call) -> Command[Decision]:
    """Return the command that decides a call. The answer is the decision. Raises `StaleRules`.

    Large calls have no form, nor those with arguments that are always different: a moment, a slot
    or numbers of the calendar.
    """
    token = chance.getrandbits(64).to_bytes(TOKEN_SIZE, "little")
    read = partial(call.read, token=token)
    is_usual = call.now is None and call.hit_at is None and not call.slot
    is_usual = is_usual and len(call.charges) <= MAX_LIMITS
    limits: tuple[tuple[str, int], ...] = ()
    digests: tuple[bytes, ...] = ()  # One for each key, in the order of `Call.state_keys`.
    for limit, digest, cost in call.charges:
        is_usual = is_usual and cost <= MAX_UNITS and limit.packed != b""
        limits += ((limit.text, cost),)
        digests += (digest,)
        if limit.ban is not None and call.decides_bans:  # Its key follows that of the count.
            digests += (digest,)
    if is_usual:
        shape = (limits, call[1:])
        form = _forms.get(shape)
        if form is None and _has_distinct_key_parts(call):
            form = _make_form(call)
            _keep_form(shape, form)
        if form is not None:
            data = form.template % (*digests, token)
            return Command(data, read, b"", form.program, has_token=True)
    program = program_for(call.algorithms)
    keys = call.keys()
    data = encode(b"EVALSHA", program.sha, b"%d" % len(keys), *keys, *call.args(token))
    return Command(data, read, b"", program, has_token=True)


def _has_distinct_key_parts(call: Call) -> bool:
    """Return whether all keys of a call differ, even if its charges have the same identity."""
    parts = _key_parts(call)
    return len(set(parts)) == len(parts)


def _key_parts(call: Call) -> list[bytes]:
    """Return the ends of the keys of a call's states, in the order of `Call.state_keys`."""
    return [part for limit, _, _ in call.charges for part in call.key_parts(limit)]


def _make_form(call: Call) -> Form:
    """Return the form of a call, for all calls of its shape.

    The values of its template are the digest in the key of each state, in the order of
    `Call.state_keys`, and then the token, which is the last argument.
    """
    program = program_for(call.algorithms)
    key_parts = _key_parts(call)
    fence_keys = [] if call.revision is None else [call.fence]
    key_count = len(key_parts) + len(fence_keys)
    first_words = (b"EVALSHA", program.sha, b"%d" % key_count)
    arguments = call.args(token=bytes(TOKEN_SIZE))
    fixed_arguments = arguments[:-1]
    word_count = len(first_words) + key_count + len(arguments)
    header = b"*%d\r\n%b" % (word_count, _encode_parts(*first_words))
    token_header = b"$%d\r\n" % TOKEN_SIZE
    texts = [header]  # The texts around the values: one before the first, and one after each.
    for part in key_parts:  # The value of each is its digest, between the braces.
        key_size = len(call.prefix) + len(b"{}:") + DIGEST_SIZE + len(part)
        texts[-1] += b"$%d\r\n%b{" % (key_size, call.prefix)
        texts.append(b"}:%b\r\n" % part)
    texts[-1] += _encode_parts(*fence_keys, *fixed_arguments) + token_header
    texts.append(b"\r\n")  # After the token.
    escaped_texts = [text.replace(b"%", b"%%") for text in texts]
    return Form(program, b"%b".join(escaped_texts))


def _keep_form(shape: tuple[object, ...], form: Form) -> None:
    """Keep the form of calls of a shape. At `MAX_FORMS`, all others are dropped, and made again."""
    if len(_forms) >= MAX_FORMS:
        _forms.clear()
    _forms[shape] = form


RULES = b"rules"
RESET = b"reset"
ANNEX = b"annex"
# A user who may not publish can still delete.
_RESET = b"""local deleted = #KEYS > 0 and redis.call('DEL', unpack(KEYS)) or 0
redis.pcall('PUBLISH', ARGV[1], ARGV[2])
return deleted"""


def reset_command(call: Call, channel: bytes, keys: Sequence[bytes] = ()) -> Command[int]:
    """Return the command that deletes counts and bans, and notifies all processes.

    After an `unban`, which has lifted the bans, it only notifies, and counts stay. `keys` are the
    keys to delete; by default all keys of the call. The answer is the number of deleted keys.
    """
    deleted = list(keys or call.state_keys())
    if call.operation == "unban":
        deleted = []
    message = b" ".join([RESET, *dict.fromkeys(charge.digest for charge in call.charges)])
    parts = (b"EVAL", _RESET, b"%d" % len(deleted), *deleted, channel, message)
    return Command(encode(*parts), _read_whole_number)


def plain_command(*parts: bytes) -> Command[Reply]:
    """Return any other command. Its key is its first argument; the answer is its reply."""

    def read(reply: Reply) -> Reply:
        # HMGET loads the rules, which requests wait for: a wrong reply must be an error here.
        if parts[0] == b"HMGET" and not (isinstance(reply, list) and len(reply) == len(parts) - 2):
            raise InvalidResponse(f"unexpected reply to HMGET: {reply!r:.80}")
        return reply

    key = b""
    if parts[0] == b"EVAL":  # Its first arguments are the source and the number of keys.
        key = parts[3]
    elif len(parts) > 1:
        key = parts[1]
    return Command(encode(*parts), read, key)


def batch_command(commands: Sequence[Command[T_co]]) -> Command[list[T_co]]:
    """Return the command that sends others together, which call no scripts.

    The answer is the list of their answers. Raises the first error among the replies.
    """

    def read(replies: Sequence[Reply]) -> list[T_co]:
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise reply
        return [command.read(reply) for command, reply in zip(commands, replies, strict=True)]

    data = b"".join([command.data for command in commands])
    return Command(data, read, batch_size=len(commands))


def script_command(
    program: Program, keys: Sequence[bytes], arguments: Sequence[bytes]
) -> Command[list[Reply]]:
    """Return the command that runs a script, which must return an array."""

    def read(reply: Reply) -> list[Reply]:
        if not isinstance(reply, list):
            raise InvalidResponse(f"unexpected reply of a script: {reply!r:.80}")
        return reply

    sent = encode(b"EVALSHA", program.sha, b"%d" % len(keys), *keys, *arguments)
    return Command(sent, read, keys[0], program)


def master_command(service: str) -> Command[Address | None]:
    """Return the command that asks a Sentinel for a master.

    The answer is the master's address, or None if the Sentinel does not know the service.
    """

    def read(reply: Reply) -> Address | None:
        if not reply:
            return None
        host, port = reply
        return host.decode(), int(port)

    return Command(encode(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", service.encode()), read)


def role_command() -> Command[None]:
    """Return the command for a server's role: a Sentinel may still name a replaced master."""

    def read(reply: Reply) -> None:
        if reply[0] != b"master":
            raise RedisConnectionError(
                f"the Sentinels named a server that is not a master: {reply!r:.80}"
            )

    return Command(encode(b"ROLE"), read)


def _read_whole_number(reply: object) -> int:
    """Return a reply that is a whole number. Raises `InvalidResponse` for any other."""
    if not isinstance(reply, int) or reply < 0:
        raise InvalidResponse(f"unexpected reply, not a whole number: {reply!r:.80}")
    return reply


def to_redis_error(
    error: BaseException, kind: type[RedisConnectionError] = RedisConnectionError
) -> BaseException:
    """Return the error to raise after another error has ended an exchange.

    An error of another library becomes one of redis-py's, because a reply that cannot be parsed is
    no answer. If a `kind` is given, errors of redis-py become that kind as well, except those that
    a server has sent.
    """
    if not isinstance(error, Exception) or isinstance(error, (StaleRules, ResponseError, kind)):
        return error
    if isinstance(error, RedisError) and kind is RedisConnectionError:
        return error
    converted = kind(f"{type(error).__name__}: {error}")
    converted.__cause__ = error
    return converted
