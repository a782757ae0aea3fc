"""The reference of a refusal: the time, the limit and the client, in 20 letters and digits.

- 28 bits: the second, modulo 2**28 (8.5 years);
- 16 bits: a keyed hash of the limit: 10 bits of its group, scope or rule, with which its name
  begins, and 6 of its full name;
- 32 bits: the beginning of the identity's digest, which is keyed as well;
- 24 bits: a MAC of these, which rejects mistyped and foreign references.

The reference contains all of this itself, so a flood of refusals writes nothing. Keyed hashes
reveal no name and no client. A comparison of two references shows only whether they agree in one of
these parts.
"""

from __future__ import annotations

import hashlib
import time
from functools import lru_cache
from typing import NamedTuple

from django.utils.encoding import force_bytes
from django.utils.translation import gettext as _

from ..conf import conf
from ..limits.decision import Decision

LENGTH = 20
"""Letters and digits of a reference, without the hyphens."""
_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32: no I, L, O or U.
_LOOK_ALIKES = str.maketrans("OIL", "011", "- \t\r\n\N{NO-BREAK SPACE}\N{NON-BREAKING HYPHEN}")
_SECONDS = 1 << 28
_DAY = 86_400
_BLOCK = ""
"""Stands for the name of a limit if a block refused; no limit has an empty name."""


class BadReferenceError(ValueError):
    """A text is not a reference of this site."""


class Reference(NamedTuple):
    """The contents of a reference.

    - `text`: the reference as shown to the client and written to the log;
    - `moment`: seconds since 1970;
    - `digest_prefix`: 8 of the 32 digits of the identity's digest;
    - `limit`: the hash of the limit;
    - `secret`: the secret with which it was made.
    """

    text: str
    moment: int
    limit: int
    digest_prefix: str
    secret: str | bytes

    @property
    def is_block(self) -> bool:
        """Return whether a block refused, rather than a limit."""
        return self.is_of_limit(_BLOCK)

    def is_of_limit(self, name: str) -> bool:
        """Return whether the limit of that name may be the one that refused the request.

        The reference contains only a hash of the name. The name of another limit has the same hash
        with a probability of 1 in 65,536.
        """
        return _hash_of_limit(self.secret, name) == self.limit

    def is_of_place(self, name: str) -> bool:
        """Return whether a limit of this group, scope or rule may have refused the request.

        Another name has the same hash with a probability of 1 in 1,024.
        """
        return _hash_of_limit(self.secret, name) >> 6 == self.limit >> 6


def reference_of(decision: Decision) -> str:
    """Return the reference of a refusal; empty if the refused identity is not known."""
    if not decision.identity:
        return ""
    state = decision.refusing[0]
    second = (decision.moment // 1_000_000 or int(time.time())) % _SECONDS
    secret = conf.KEY_SECRET[0]
    limit = _hash_of_limit(secret, _BLOCK if state.is_block else state.name)
    payload = (second << 16 | limit) << 32 | int(decision.identity[:8], 16)
    return _text(payload << 24 | _mac(secret, payload))


def open_reference(text: str) -> Reference:
    """Parse a reference, in capitals or not, with or without hyphens and spaces.

    Raises `BadReferenceError`.

    >>> open_reference("7ZK4M-…")
    Traceback (most recent call last):
    ...
    django_ratelimit_lua.web.reference.BadReferenceError: a reference has 20 letters and ...
    """
    letters = text[:200].upper().translate(_LOOK_ALIKES)
    if len(letters) != LENGTH:
        problem = _("a reference has %(right)d letters and digits, but this text has %(number)d")
        raise BadReferenceError(problem % {"right": LENGTH, "number": len(letters)})
    if set(letters) <= set(_LETTERS):
        number = 0
        for letter in letters:
            number = number << 5 | _LETTERS.index(letter)
        payload = number >> 24
        for secret in conf.KEY_SECRET:
            if _mac(secret, payload) == number & 0xFFFFFF:
                limit = payload >> 32 & 0xFFFF
                prefix = f"{payload & 0xFFFFFFFF:08x}"
                return Reference(_text(number), _latest(payload >> 48), limit, prefix, secret)
    raise BadReferenceError(
        _(
            "this text is mistyped, or not a reference of this site: it matches no secret of "
            "RATELIMIT_KEY_SECRET, or of SECRET_KEY and its fallbacks"
        )
    )


def _text(number: int) -> str:
    letters = "".join([_LETTERS[number >> shift & 31] for shift in range(95, -1, -5)])
    return f"{letters[:5]}-{letters[5:10]}-{letters[10:15]}-{letters[15:]}"


def _latest(second: int) -> int:
    """Return the latest moment with that remainder; clocks of several hosts may differ by a day."""
    limit = int(time.time()) + _DAY
    return limit - (limit - second) % _SECONDS


@lru_cache(maxsize=16)
def _key(secret: str | bytes) -> bytes:
    return hashlib.blake2b(force_bytes(secret), digest_size=32, person=b"ratelimit-refer").digest()


@lru_cache(maxsize=4096)
def _hash_of_limit(secret: str | bytes, name: str) -> int:
    place, whole = [
        hashlib.blake2b(
            text.encode(errors="surrogatepass"), digest_size=2, key=_key(secret)
        ).digest()
        for text in (name.partition(":")[0], name)
    ]
    return int.from_bytes(place, "big") & 0xFFC0 | int.from_bytes(whole, "big") & 0x3F


def _mac(secret: str | bytes, payload: int) -> int:
    mac = hashlib.blake2b(payload.to_bytes(10, "big"), digest_size=3, key=_key(secret))
    return int.from_bytes(mac.digest(), "big")
