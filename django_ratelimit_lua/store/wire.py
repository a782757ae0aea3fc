"""A call as the bytes that go to Redis (RESP: https://redis.io/docs/latest/develop/reference/protocol-spec/)."""

from __future__ import annotations

from dataclasses import replace

from ..limits import program
from ..limits.call import Call


def command(*parts: bytes) -> bytes:
    """One command.

    >>> command(b"GET", b"key")
    b'*2\\r\\n$3\\r\\nGET\\r\\n$3\\r\\nkey\\r\\n'
    """
    return b"*%d\r\n%b" % (len(parts), b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts]))


def evalsha(call: Call, token: bytes) -> bytes:
    """The one command that decides a call; its reply ends with the token."""
    keys = call.keys()
    return command(b"EVALSHA", program.SHA, b"%d" % len(keys), *keys, *call.args(token))


def with_source(evalsha: bytes) -> bytes:
    """The same command for a server that does not know the script."""
    return evalsha.replace(_BY_NAME, b"$4\r\nEVAL\r\n$%d\r\n%b\r\n" % (len(program.PROGRAM), program.PROGRAM), 1)


def delete(call: Call) -> bytes:
    """The one command that forgets what a call's limits have counted."""
    return command(b"DEL", *replace(call, revision=None).keys())


def key_of(*parts: bytes) -> bytes:
    """The key of a command that `Store.execute` takes: of a script, the first of its keys.

    >>> key_of(b"HGET", b"key", b"field"), key_of(b"EVAL", b"return 1", b"1", b"key")
    (b'key', b'key')
    """
    return parts[3] if parts[0] == b"EVAL" else parts[1]


_BY_NAME = b"$7\r\nEVALSHA\r\n$%d\r\n%b\r\n" % (len(program.SHA), program.SHA)
PING = command(b"PING")
SCRIPT_LOAD = command(b"SCRIPT", b"LOAD", program.PROGRAM)
