"""The reference of a refusal: which limit, who and when, sealed so that only this site can read it.

A refusal carries it along, so nothing has to be written down for it, however many there are. It is AES-SIV (RFC 5297)
over 24 bytes, which makes 40: the same refusal has the same reference, and one that was changed or made up is not
opened. They are written in the 32 letters of Crockford's alphabet (no I, L, O, U), which capitals, spaces and
look-alikes do not spoil, with one more letter that tells what was mistyped from what was never ours. As the seal proves
which is the right one, one slip of a hand is put right: a letter that is wrong, missing or too many, or two that have
changed places.

It is no shorter: the digest alone, by which the count is found, has 16 bytes, and AES-SIV adds as many.
"""

from __future__ import annotations

import base64
import hashlib
import time
import zlib
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from struct import Struct
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from django.utils.translation import gettext as _

from ..conf import conf
from ..identity.sealed import cipher
from ..limits.decision import Decision

_PAYLOAD = Struct(">16sI4s")  # Whom (a digest), when (seconds since 1970), and which limit (see `_tag`).
_SIZE = _PAYLOAD.size + 16
LETTERS = _SIZE * 8 // 5 + 1
"""Of a reference, without the hyphens."""
_GROUP = 5
_RFC4648 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_CROCKFORD = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_WRITTEN = bytes.maketrans(_RFC4648, _CROCKFORD)
_READ = bytes.maketrans(_CROCKFORD, _RFC4648)
_LOOK_ALIKES = str.maketrans("OIL", "011", "- \t\r\n\N{NO-BREAK SPACE}\N{NON-BREAKING HYPHEN}")
_KINDS = {False: [b"limit"], True: [b"block"]}
"""What is sealed along, and not written: whether a limit or a block refused."""


class BadReferenceError(ValueError):
    """Text that is no reference, or none of this site; says which, and what would be right."""


class SealedRefusal(NamedTuple):
    """What a reference holds.

    - `identity`: the digest of whom the limit counts, or of whom the block is about if `is_block`;
    - `moment`: seconds since 1970; `secret`: the number of the secret that opened it (0: the one in force);
    - `reference`: as it was written to the client and to the log.
    """

    identity: bytes
    moment: int
    tag: bytes
    is_block: bool
    secret: int
    reference: str

    def is_of_limit(self, name: str) -> bool:
        """Whether the limit of that name refused."""
        return _tag(name) == self.tag

    def is_of_place(self, name: str) -> bool:
        """Whether a limit in the same place refused: of the same group, scope or rule, perhaps at another rate."""
        return _tag(name)[:3] == self.tag[:3]


def reference_of(decision: Decision) -> str:
    """The reference of a refusal; empty where `RATELIMIT_REFERENCE` is off, or it is not known who was refused."""
    if not conf.REFERENCE or not decision.identity:
        return ""
    state = decision.refusing[0]
    moment = decision.moment // 1_000_000 or int(time.time())
    payload = _PAYLOAD.pack(bytes.fromhex(decision.identity.decode()), moment & 0xFFFFFFFF, _tag(state.name))
    sealed = _cipher(conf.KEY_SECRET[0]).encrypt(payload, _KINDS[state.is_block])
    return _in_groups((base64.b32encode(sealed).translate(_WRITTEN) + _check(sealed)).decode())


def _in_groups(letters: str) -> str:
    return "-".join([letters[at : at + _GROUP] for at in range(0, LETTERS, _GROUP)])


def open_reference(text: str) -> SealedRefusal:
    """What a reference holds, however it was written down. Raises `BadReferenceError`.

    >>> open_reference("7ZK4M-…")
    Traceback (most recent call last):
    ...
    django_ratelimit_lua.web.reference.BadReferenceError: '…' is no letter of a reference; these are digits ...
    """
    letters = text[: LETTERS * 4].upper().translate(_LOOK_ALIKES)
    foreign = next((letter for letter in letters if letter.encode() not in _CROCKFORD), None)
    if foreign is not None:
        problem = _("%(letter)r is no letter of a reference; these are digits and capitals, without I, L, O, U")
        raise BadReferenceError(problem % {"letter": foreign})
    candidates = chain([letters], _slips(letters)) if abs(len(letters) - LETTERS) <= 1 else ()
    opened = next(filter(None, map(_opened, candidates)), None)
    if opened is not None:
        return opened
    if len(letters) != LETTERS:
        if len(letters) < LETTERS:
            cut = _("this looks cut off: a reference has %(right)d letters and digits, and this has %(number)d")
            raise BadReferenceError(cut % {"right": LETTERS, "number": len(letters)})
        problem = _("a reference has %(right)d letters and digits, and this has %(number)d")
        raise BadReferenceError(problem % {"right": LETTERS, "number": len(letters)})
    if _check(_sealed(letters)) != letters[-1].encode():
        raise BadReferenceError(_("this is mistyped: compare it with the original, letter by letter"))
    raise BadReferenceError(
        _(
            "this was not sealed by this site: it is made up, or of another site, or of a RATELIMIT_KEY_SECRET or "
            "SECRET_KEY that is not among the fallbacks any more"
        )
    )


def _slips(letters: str) -> Iterator[str]:
    """What may have been meant, if a hand slipped once."""
    for at in range(len(letters)):
        before, letter, after = letters[:at], letters[at], letters[at + 1 :]
        yield before + after
        yield before + after[:1] + letter + after[1:]
        for other in _CROCKFORD.decode():
            yield before + other + after
            yield before + other + letter + after
    yield from (letters + other for other in _CROCKFORD.decode())


def _opened(letters: str) -> SealedRefusal | None:
    """What so many letters hold, if they are a reference of this site."""
    if len(letters) != LETTERS:
        return None
    sealed = _sealed(letters)
    if _check(sealed) != letters[-1].encode():
        return None
    for number, secret in enumerate(conf.KEY_SECRET):
        for is_block, kind in _KINDS.items():
            try:
                identity, moment, tag = _PAYLOAD.unpack(_cipher(secret).decrypt(sealed, kind))
            except InvalidTag:
                continue
            return SealedRefusal(identity.hex().encode(), moment, tag, is_block, number, _in_groups(letters))
    return None


def _sealed(letters: str) -> bytes:
    return base64.b32decode(letters[:-1].encode().translate(_READ))


def _cipher(secret: str | bytes) -> AESSIV:
    return cipher(secret, b"ratelimit-refer")


@lru_cache(maxsize=4096)
def _tag(name: str) -> bytes:
    """Which limit: three bytes of the place where it stands, which is what its name begins with, and one of the whole
    name, which may have a rate in it."""
    place = hashlib.blake2b(name.partition(":")[0].encode(errors="surrogatepass"), digest_size=3).digest()
    return place + hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=1).digest()


def _check(sealed: bytes) -> bytes:
    at = zlib.crc32(sealed) & 31
    return _CROCKFORD[at : at + 1]
