"""What is said on a connection, without the connection: what to send, how many replies are owed for it, what they mean.

Blocking and asynchronous connections share all of this. A connection is used again only after an exchange that was
answered fully and exactly; whatever else ends one closes the connection, so that nobody is ever told the answer to
somebody else's question.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import Any, NamedTuple

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, ReadOnlyError, RedisError, ResponseError

from ..limits.call import REGISTER, Call, Charge, StaleRules
from ..limits.limit import Limit
from ..limits.program import PROGRAM, Program
from ..process.forks import chance

LONGEST_LINE = 65_536
LARGEST = 512 * 1024 * 1024
"""Bytes of a reply that may be anything, such as rules."""
LARGEST_USUAL = 1024 * 1024
"""Bytes of replies whose form is known: a decision has some hundred, and what is written about its subjects some KB."""
SMALLEST = 4
"""Bytes that no item of an array has fewer of."""
DEEPEST = 8
"""Arrays in arrays: no reply that we ask for has more (`CLUSTER SLOTS` has four)."""


SENT_AT_ONCE = 32
"""Questions of a pipeline."""
TOKEN_SIZE = 8
DIGEST_SIZE = 32
FORMS, MOST_LIMITS, MOST_UNITS = 256, 8, 10
"""Commands that are kept but for whom they are about: those used last, of so many limits and units at most."""

_MOMENT = 8_888_888_888_888_888
"""Stands for the time of a call: of as many digits as times are written with."""
_SLOT = b"\xff one of the slots \xff"
"""Stands for a slot, and is as long."""
_AT_SLOT = Call._fields.index("slot") - 1
_PART = b"$%d\r\n%b\r\n".__mod__


def command(*parts: bytes) -> bytes:
    """One command as it is sent (RESP: https://redis.io/docs/latest/develop/reference/protocol-spec/).

    >>> command(b"GET", b"key")
    b'*2\\r\\n$3\\r\\nGET\\r\\n$3\\r\\nkey\\r\\n'
    """
    return b"*%d\r\n%b" % (len(parts), b"".join(map(_PART, zip(map(len, parts), parts, strict=True))))


def _named(name: bytes, script: bytes) -> bytes:
    return command(name, script).removeprefix(b"*2\r\n")


PING = command(b"PING")


def string_at(data: bytes, at: int = 0) -> tuple[bytes, int] | None:
    """The string that the reply at a place is, and the place behind it; None where there is not one as a whole.

    >>> string_at(b"$2\\r\\nab\\r\\n+OK\\r\\n"), string_at(b"+OK\\r\\n$2\\r\\nab\\r\\n", 5), string_at(b"$2\\r\\na")
    ((b'ab', 8), (b'ab', 13), None)
    """
    end = data.find(b"\r\n", at, at + 12)
    if end < 0 or data[at] != 36 or not (size := data[at + 1 : end]).isdigit():
        return None
    after = end + 4 + int(size)
    return (data[end + 2 : after - 2], after) if data[after - 2 : after] == b"\r\n" else None


class Replies:
    """The replies that are owed on a connection, read from bytes as they come (RESP 2).

    A reply is bytes, an integer, None, a list of these, or a `ResponseError`. All together have at most so many bytes:
    one that says it has more is not waited for.

    >>> replies = Replies(2)
    >>> replies.feed(b"+OK\\r\\n$3\\r\\nab"), replies.feed(b"c\\r\\n"), replies.found
    (False, True, [b'OK', b'abc'])
    """

    __slots__ = ("_data", "_left", "_most", "_open", "_owed", "found")

    def __init__(self, owed: int, most: int = LARGEST) -> None:
        self.found: list[Any] = []
        self._most = self._left = most
        self._owed = owed
        self._data = bytearray()
        self._open: list[tuple[list[Any], int]] = []

    def feed(self, data: bytes) -> bool:
        """Read on; whether all have come. Raises `InvalidResponse` for what is no reply, or more than was owed."""
        after = self.take(data)
        if after is not None and after < len(data):
            raise InvalidResponse("more than was asked for")
        return after is not None

    def take(self, data: bytes, start: int = 0) -> int | None:
        """Read on from a place; the place behind the last that is owed, or None while there is more to come. Raises
        `InvalidResponse` for what is no reply."""
        buffer = self._data
        if self._owed == 1 and not buffer and not self._open:
            first = string_at(data, start)
            if first is not None:  # Nearly every reply is one that comes at once; what follows would find the same.
                self.found.append(first[0])
                return first[1]
        new = data[start:]
        start -= len(buffer)
        self._left -= len(new)
        if self._left < 0:
            raise InvalidResponse("a reply that is larger than any to this question")
        buffer += new
        at = 0
        while len(self.found) < self._owed:
            end = buffer.find(b"\r\n", at, at + LONGEST_LINE)
            if end < 0:
                if len(buffer) - at >= LONGEST_LINE:
                    raise InvalidResponse("a line without an end")
                break
            kind, line = buffer[at], bytes(buffer[at + 1 : end])
            at_next = end + 2
            if kind == 36:  # $
                size = _size(line, self._most)
                reply: Any = None
                if size >= 0:
                    at_next += size + 2
                    if len(buffer) < at_next:
                        break
                    reply = bytes(buffer[end + 2 : at_next - 2])
                    if buffer[at_next - 2 : at_next] != b"\r\n":
                        raise InvalidResponse("a reply longer than it says")
            elif kind == 43:  # +
                reply = line
            elif kind == 45:  # -
                reply = error_of(line)
            elif kind == 58:  # :
                reply = _number(line)
            elif kind == 42:  # *
                size = _size(line, self._most // SMALLEST)
                if size > 0:
                    if len(self._open) >= DEEPEST:
                        raise InvalidResponse("arrays in arrays in arrays")
                    self._open.append(([], size))
                    at = at_next
                    continue
                reply = [] if size == 0 else None
            else:
                raise InvalidResponse(f"no reply: {bytes(buffer[at : at + 40])!r}")
            at = at_next
            self._add(reply)
        del buffer[:at]
        return start + at if len(self.found) == self._owed else None

    @property
    def is_owed(self) -> bool:
        return self._owed > 0

    @property
    def is_between(self) -> bool:
        """Whether nothing of the next reply has come yet."""
        return not self._data and not self._open

    def _add(self, reply: Any) -> None:
        while self._open:
            items, size = self._open[-1]
            items.append(reply)
            if len(items) < size:
                return
            self._open.pop()
            reply = items
        self.found.append(reply)


Exchange = Generator[tuple[bytes, Replies], list[Any], Any]
"""Yields what to send, and the replies that are owed for it; is sent what these are; returns the answer."""


def _number(line: bytes) -> int:
    digits = line[1:] if line[:1] == b"-" else line
    if not digits.isdigit() or len(digits) > 19:
        raise InvalidResponse(f"no number: {line[:40]!r}")
    return int(line)


def _size(line: bytes, most: int) -> int:
    size = _number(line)
    if not -1 <= size <= most:
        raise InvalidResponse(f"no size: {line[:40]!r}")
    return size


def error_of(line: bytes) -> ResponseError:
    """The error that a reply is."""
    text = line.decode(errors="replace")
    return ReadOnlyError(text) if text.startswith("READONLY") else ResponseError(text)


Address = tuple[str, int]


class Unreachable(RedisConnectionError):  # noqa: N818 - named as redis-py names its own
    """Nobody is there to connect to: nothing was sent."""


class Question(NamedTuple):
    """One command, what to make of its reply, and what goes with it.

    - `read`: makes the answer of the reply. Raises `InvalidResponse` (or any other error) for a reply that the command
      cannot have, and `StaleRules`;
    - `program`: the one that the command calls by its digest;
    - `ahead`: a command to be sent right before that one;
    - `most`: the bytes that its reply can have.
    """

    command: bytes
    read: Callable[[Any], Any]
    program: Program | None = None
    ahead: bytes = b""
    most: int = LARGEST_USUAL

    def exchange(self, loading: set[bytes]) -> Exchange:
        """Ask. Where the program is unknown, load it and ask again: it has not run; and where it is unknown even then,
        send it.

        `loading`: the digests of the programs that are being loaded by what was sent before on the same connection.
        """
        ahead, message = (1 if self.ahead else 0), self.command
        replies = yield self.ahead + message, Replies(ahead + 1, self.most)
        if self.program is not None and _is_unknown(replies[-1]):
            replies = yield from self._load(self.program, message, loading)
        if ahead and _checked(replies[0]) != b"OK":
            raise InvalidResponse("no reply to what was sent ahead")
        reply = replies[-1]
        return self.read(_checked(reply) if isinstance(reply, ResponseError) else reply)

    def _load(self, program: Program, message: bytes, loading: set[bytes]) -> Exchange:
        ahead = 1 if self.ahead else 0
        if program.sha in loading:  # By somebody else, whose turn comes before this one's.
            replies = yield self.ahead + message, Replies(ahead + 1, self.most)
            if not _is_unknown(replies[-1]):
                return replies
        loading.add(program.sha)
        try:
            load = command(b"SCRIPT", b"LOAD", program.source)
            replies = yield load + self.ahead + message, Replies(ahead + 2, self.most)
        finally:
            loading.discard(program.sha)
        if _checked(replies.pop(0)) != program.sha:
            raise InvalidResponse("another script than ours was loaded")
        if _is_unknown(replies[-1]):  # Somebody removed it in between.
            by_source = message.replace(_named(b"EVALSHA", program.sha), _named(b"EVAL", program.source), 1)
            replies = yield self.ahead + by_source, Replies(ahead + 1, self.most)
        return replies


RULES, RESET, ANNEX, UNPUBLISHED = b"rules", b"reset", b"annex", b"unpublished"
# Whoever may not publish deletes all the same. The register, if there is one, is of all bans: they only leave it.
# If a server forbids TIME in scripts, the message has no moment.
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
FOREVER = 2**63
"""Later than any moment."""
MAX_MOMENT_DIGITS = 18


def to_decide(call: Call) -> Question:
    """Decide a call: the answer is the decision. Raises `StaleRules`."""
    token = chance.getrandbits(64).to_bytes(TOKEN_SIZE, "little")
    limits: tuple[tuple[Limit, int, bool], ...] = ()
    varying: tuple[bytes, ...] = ()
    is_usual = call.hit_at is None and not call.subjects and len(call.charges) <= MOST_LIMITS
    bans: tuple[bytes, ...] = ()
    for limit, digest, cost, banned, reports in call.charges:
        limits += ((limit, cost, reports),)
        varying += (digest,)
        if limit.ban is not None and call.operation not in ("charge", "refund"):
            bans += (banned or digest,)
        is_usual = is_usual and cost <= MOST_UNITS
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
    return Question(sent, partial(call.read, token=token), PROGRAM)


def _evalsha(call: Call, token: bytes) -> bytes:
    keys = call.keys()
    return command(b"EVALSHA", PROGRAM.sha, b"%d" % len(keys), *keys, *call.args(token))


@lru_cache(maxsize=FORMS)
def _form(rest: tuple[Any, ...], limits: tuple[tuple[Limit, int, bool], ...]) -> bytes:
    """The command for calls that differ in their identities alone, with places for these and for the token. Empty where
    more than that differs: with the moment, or because limits have one name. `rest`: of the call, behind its charges.
    """
    places = [bytes([number]) * DIGEST_SIZE for number in range(1, 2 * len(limits) + 1)]
    charges = [
        Charge(limit, place, cost, banned, reports)
        for (limit, cost, reports), place, banned in zip(limits, places, places[len(limits) :], strict=False)
    ]
    call = Call(charges, *rest)
    varies = any(limit.wants_more or not limit.packed for limit, _, _ in limits)
    if varies or len({limit.key_part for limit, _, _ in limits}) < len(limits):
        return b""
    form = _evalsha(call, bytes(TOKEN_SIZE)).removesuffix(bytes(TOKEN_SIZE) + b"\r\n").replace(b"%", b"%%")
    for place in (*places, b"%d" % _MOMENT):  # Those of whoever cannot be banned are in no key.
        form = form.replace(place, b"%b", 1)
    form = form.replace(_SLOT, b"%b")  # One for each limit of slots.
    return form + b"%b\r\n"


class Pipeline(NamedTuple):
    """Questions that are answered one after the other, on one trip; the answer is the list of their answers.

    They are written and sent in parts, so that the server answers the first while the last are still written. All call
    the same program, or none. It is loaded ahead of them, every time: what an unknown program leaves undecided in the
    middle could only be decided after those that should follow it.
    """

    questions: Iterable[Question]

    def exchange(self, loading: set[bytes]) -> Exchange:
        read: list[Callable[[Any], Any]] = []
        program: Program | None = None
        questions, most = iter(self.questions), 0
        while part := list(islice(questions, SENT_AT_ONCE)):
            commands = [question.command for question in part]
            if not read and (program := part[0].program) is not None:
                commands.insert(0, command(b"SCRIPT", b"LOAD", program.source))
                read.append(_checked)
            read += [question.read for question in part]
            most += sum([question.most for question in part])
            yield b"".join(commands), Replies(0)
        replies = yield b"", Replies(len(read), most + LARGEST_USUAL)
        answers = [make(_checked(reply)) for make, reply in zip(read, replies, strict=True)]
        if program is not None and answers.pop(0) != program.sha:
            raise InvalidResponse("another script than ours was loaded")
        return answers


def to_delete(call: Call, channel: bytes) -> Question:
    """Delete what a call's limits have counted, and their bans, and tell all processes whose that was. The answer is
    the moment of it (microseconds since 1970, Redis's)."""
    keys, registers = call.state_keys(), call.registers and bool(call.banning)
    if registers:
        keys.append(call.prefix + REGISTER)
    digests = dict.fromkeys(digest for charge in call.charges for digest in (charge.digest, charge.ban_digest))
    told = (channel, b" ".join([RESET, *digests]), b"%d" % registers)
    parts = (b"EVAL", _DELETE, b"%d" % len(keys), *keys, *told)
    return Question(command(*parts), lambda reply: _whole_number(reply) or FOREVER)


def read_reset(words: Iterable[bytes]) -> tuple[set[bytes], int]:
    """Read what follows `RESET` in a message.

    Returns:
        The digests, and the moment up to which their units are not counted any more; `FOREVER` if there is none, as in
        a message of an earlier version.
    """
    digests = set(words)
    moments = {word for word in digests if word.startswith(b"@")}
    number = b"".join(moments)[1:]
    is_known = number.isdigit() and len(number) <= MAX_MOMENT_DIGITS
    return digests - moments, int(number) if is_known else FOREVER


_TELL = b"redis.pcall('PUBLISH', ARGV[1], ARGV[2]) return 1"


def to_tell_reset(call: Call, channel: bytes) -> Question:
    """Tell all processes that what they remember of those whom a call is about does not hold any more. What is counted
    holds: it was counted after the moment 0."""
    message = b" ".join([RESET, *dict.fromkeys(charge.ban_digest for charge in call.charges), b"@0"])
    return Question(command(b"EVAL", _TELL, b"0", channel, message), _whole_number)


def to_execute(*parts: bytes) -> Question:
    """Any other command; its reply has the form that the command's have."""

    def read(reply: Any) -> Any:
        form = _FORMS.get(parts[0])
        if form is not None and not form(reply, len(parts)):
            raise InvalidResponse(f"no reply to {parts[0].decode()}: {reply!r:.80}")
        return reply

    return Question(command(*parts), read, most=LARGEST)


def to_run(program: Program, keys: Sequence[bytes], args: Sequence[bytes]) -> Question:
    """Run a program that answers with a whole number for each of its keys."""

    def read(reply: Any) -> list[int]:
        if not isinstance(reply, list) or len(reply) != len(keys) or not all(map(_is_number, reply)):
            raise InvalidResponse(f"no number for each key: {reply!r:.80}")
        return reply

    return Question(command(b"EVALSHA", program.sha, b"%d" % len(keys), *keys, *args), read, program)


def to_ask(program: Program, keys: Sequence[bytes], arguments: Sequence[bytes]) -> Question:
    """Run a program that answers with an array; it is loaded where it is not known."""

    def read(reply: Any) -> Any:
        if not isinstance(reply, list):
            raise InvalidResponse(f"no reply of a program: {reply!r:.80}")
        return reply

    sent = command(b"EVALSHA", program.sha, b"%d" % len(keys), *keys, *arguments)
    return Question(sent, read, program)


def to_find_master(service: str) -> Question:
    """Asks a sentinel; the answer is the master's address, or None."""
    return Question(command(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", service.encode()), _address)


def _address(reply: Any) -> Address | None:
    if reply is None:
        return None
    host, port = reply
    return host.decode(), int(port)


def to_ping() -> Question:
    return Question(PING, _pong)


def _pong(reply: Any) -> bool:
    if reply != b"PONG":
        raise InvalidResponse(f"no reply to PING: {reply!r:.80}")
    return True


def _whole_number(reply: Any) -> int:
    if not isinstance(reply, int) or reply < 0:
        raise InvalidResponse(f"no whole number: {reply!r:.80}")
    return reply


def _is_number(reply: Any, parts: int = 0) -> bool:
    return isinstance(reply, int)


def _is_text(reply: Any, parts: int = 0) -> bool:
    return reply is None or isinstance(reply, bytes)


def _is_text_of_each(reply: Any, parts: int) -> bool:
    return isinstance(reply, list) and len(reply) == parts - 2 and all(map(_is_text, reply))


def _is_pairs(reply: Any, parts: int) -> bool:
    return isinstance(reply, list) and len(reply) % 2 == 0 and all(isinstance(text, bytes) for text in reply)


_FORMS: dict[bytes, Callable[[Any, int], bool]] = {
    b"GET": _is_text,
    b"HGET": _is_text,
    b"HGETALL": _is_pairs,
    b"HMGET": _is_text_of_each,
    **dict.fromkeys((b"EXPIRE", b"HDEL", b"HINCRBY", b"HSET", b"PFCOUNT"), _is_number),
}
"""What the replies to a command of so many parts may be; a script's may be anything."""


def _is_unknown(reply: Any) -> bool:
    """Whether a server says that it does not know the script; then it has not run."""
    return isinstance(reply, ResponseError) and str(reply).startswith("NOSCRIPT")


def _checked(reply: Any) -> Any:
    if isinstance(reply, ResponseError):
        raise reply
    return reply


def greet(credentials: Sequence[str], database: int, name: str | None, *, needs_master: bool) -> Exchange:
    """What a new connection says first. Raises `RedisError` where it cannot be used."""
    commands = []
    if credentials:
        commands.append(command(b"AUTH", *[part.encode() for part in credentials]))
    if name:
        commands.append(command(b"CLIENT", b"SETNAME", name.encode()))
    if database:
        commands.append(command(b"SELECT", b"%d" % database))
    if commands:
        replies = yield b"".join(commands), Replies(len(commands), LARGEST_USUAL)
        if any(_checked(reply) != b"OK" for reply in replies):
            raise InvalidResponse("no reply of a server that was greeted")
    if needs_master:
        # A sentinel may not have heard yet who the master is: decisions are made by masters only.
        (role,) = yield command(b"ROLE"), Replies(1, LARGEST_USUAL)
        if not isinstance(_checked(role), list) or role[:1] != [b"master"]:
            raise RedisConnectionError(f"the sentinels named a server that is no master: {role!r:.80}")


def ended_by(error: BaseException, close: Callable[[], None], *, connecting: bool = False) -> BaseException:
    """What to raise where an error ended an exchange, or the making of a connection; closes the connection unless it
    was answered fully and exactly.

    What is no error of Redis's becomes one: a reply that could not be read, a connection that broke: for whoever asked
    there is no answer. `connecting`: nothing was sent that could count, which `Unreachable` tells.
    """
    is_answer = isinstance(error, (ResponseError, StaleRules))
    # A master that was demoted says so: who asks next has to look for the new one.
    if connecting or not is_answer or isinstance(error, ReadOnlyError):
        close()
    kind = Unreachable if connecting else RedisConnectionError
    if is_answer or not isinstance(error, Exception) or isinstance(error, kind if connecting else RedisError):
        return error
    broken = kind(f"{type(error).__name__}: {error}")
    broken.__cause__ = error
    return broken
