"""Identities that only this site can read, for what may be done about somebody later, as long as it is kept."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from ..conf import conf
from . import Identity

LONGEST = 1000
"""Bytes of an identity that is kept; a longer one is not."""
_KIND = [b"identity"]


def seal(identity: Identity) -> str:
    """An identity as text that nobody else can read or make: AES-SIV (RFC 5297). Empty for one that is long, or not
    made of text, whole numbers and None.

    >>> unseal(seal(("ip", "203.0.113.9")))
    ('ip', '203.0.113.9')
    """
    try:
        text = json.dumps(identity).encode()
    except (TypeError, ValueError):
        return ""
    if len(text) > LONGEST:
        return ""
    return base64.b64encode(cipher(conf.KEY_SECRET[0], b"ratelimit-seal").encrypt(text, _KIND)).decode()


def unseal(text: str) -> Identity:
    """The identity that was sealed; None where it is none of this site's, or of a secret that is not known any more."""
    for secret in conf.KEY_SECRET:
        try:
            opened = cipher(secret, b"ratelimit-seal").decrypt(base64.b64decode(text), _KIND)
        except (InvalidTag, ValueError):
            continue
        return _tuples(json.loads(opened))
    return None


@lru_cache(maxsize=16)
def cipher(secret: str | bytes, person: bytes) -> AESSIV:
    """What seals for one purpose, the `person`: 16 bytes."""
    material = secret.encode() if isinstance(secret, str) else bytes(secret)
    return AESSIV(hashlib.blake2b(material, digest_size=64, person=person).digest())


def _tuples(value: Identity) -> Identity:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
