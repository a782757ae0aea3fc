"""Reads the identity of a client from a request, and computes its digest.

It imports only from the ground floor. It must not know limits, rules or Redis.

An identity is text, bytes, a number, a UUID, None, or a tuple of these. Only its digest is stored.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import uuid
from functools import lru_cache
from typing import Union

from django.utils.encoding import force_bytes
from django.utils.functional import Promise

from ..conf import conf

__all__ = [
    "Identity",
    "address",
    "digest",
    "fields",
    "keys",
    "names",
    "request_state",
]

Identity = Union[  # noqa: UP007
    str, bytes, int, float, uuid.UUID, None, Promise, tuple["Identity", ...], list["Identity"]
]
DIGEST_SIZE = 16
_DIGEST = re.compile(f"[0-9a-f]{{{2 * DIGEST_SIZE}}}")


def _encode(identity: object) -> bytes:
    """Return bytes that no other identity has: every part includes its kind and its length.

    Raises `TypeError` if the value is not an identity.
    """
    if isinstance(identity, str):
        part = b"s" + identity.encode("utf-8", "surrogatepass")
    elif identity is None:
        part = b"n"
    elif isinstance(identity, (tuple, list)):
        part = b"t" + b"".join([_encode(item) for item in identity])
    elif isinstance(identity, (bytes, bytearray, memoryview)):
        part = b"b" + bytes(identity)
    elif isinstance(
        identity, (int, float, uuid.UUID, Promise, ipaddress.IPv4Address, ipaddress.IPv6Address)
    ):
        # As text: a primary key is the same identity whether it comes from a model or from a URL.
        part = b"s" + str(identity).encode()
    else:
        kind = f"{type(identity).__module__}.{type(identity).__qualname__}"
        raise TypeError(
            f"An identity cannot be a {kind}: use text, bytes, a number, a UUID, None, or a tuple "
            "of these (for a model instance, its primary key)"
        )
    return len(part).to_bytes(8, "big") + part


@lru_cache(maxsize=8)
def _keyed_hash(secret: str | bytes) -> hashlib.blake2b:
    """Return the hash with the key of a secret, and without content. Copy it before use."""
    key = hashlib.blake2b(force_bytes(secret), digest_size=32, person=b"ratelimit-key").digest()
    return hashlib.blake2b(key=key, digest_size=DIGEST_SIZE)


@lru_cache(maxsize=8)
def _key_id(secret: str | bytes) -> str:
    """Return 8 hexadecimal digits that identify the key of a secret."""
    hashed = _keyed_hash(secret).copy()
    hashed.update(b"id")  # Never a client's digest, because an identity begins with its length.
    return hashed.hexdigest()[:8]


def secrets_by_id() -> dict[str, str | bytes]:
    """Return the secrets that digests are keyed with, by the short id of their key.

    The current one comes first, then the earlier ones that are still accepted.
    """
    return {_key_id(secret): secret for secret in conf.KEY_SECRET}


def key_id() -> str:
    """Return the id of the key that new digests are made with."""
    return _key_id(conf.KEY_SECRET[0])


def key_ids() -> str:
    """Return the ids of all keys that this process knows, as one text."""
    return ",".join(secrets_by_id())


def digest(identity: Identity, secret: str | bytes | None = None) -> bytes:
    """Return the digest of an identity: 32 hexadecimal digits of keyed BLAKE2b (RFC 7693).

    Only digests are stored, so identities cannot be read from Redis. `secret` replaces the current
    secret by an earlier one. Raises `TypeError` if the value is not an identity.

    >>> digest(("ip", "192.0.2.1")) == digest(("ip", "192.0.2.2"))
    False
    >>> digest(7) == digest("7"), digest(("a", "b")) == digest("ab"), len(digest("x" * 1_000_000))
    (True, False, 32)
    """
    if secret is None:
        secret = conf.KEY_SECRET[0]
    hashed = _keyed_hash(secret).copy()
    if type(identity) is tuple:  # As `_encode` does, without a call for each text.
        parts = [b"t"]
        for item in identity:
            if type(item) is str:
                text = b"s" + item.encode("utf-8", "surrogatepass")
                parts += (len(text).to_bytes(8, "big"), text)
            else:
                parts.append(_encode(item))
        part = b"".join(parts)
        hashed.update(len(part).to_bytes(8, "big") + part)
    else:
        hashed.update(_encode(identity))
    return hashed.hexdigest().encode()


def is_digest(text: str) -> bool:
    """Return whether a text can be a digest.

    >>> is_digest(digest(7).decode()), is_digest("7")
    (True, False)
    """
    return bool(_DIGEST.fullmatch(text))
