"""One spelling for text from clients, so that another spelling does not create another count.

A login form accepts a name with a trailing space, in full-width letters or in capitals for the same
user: Django's `UsernameField` strips and applies NFKC, and many user models ignore case. Texts that
the view treats as equal must share a count.
"""

from __future__ import annotations

import unicodedata

MAX_LENGTH = 1024
"""Characters beyond which text that is not ASCII is only stripped: NFKC takes quadratic time for
some of it.
"""
_ROUNDS = 10


def normalised(text: str) -> str:
    r"""Return the normalized spelling of a text: stripped, NFKC and in lower case.

    Normalizing the result again does not change it.

    >>> normalised(" Ada\u3000") == normalised("\uff21\uff44\uff41") == "ada"
    True
    """
    text = text.strip()
    if text.isascii():
        return text.lower()
    if len(text) > MAX_LENGTH:
        return text
    for _ in range(
        _ROUNDS
    ):  # Two are enough for every single character; folding may make what NFKC joins, and so on.
        # Through capitals, because some databases compare capitals: the dotless i has no other form
        # in common with i.
        folded = unicodedata.normalize(
            "NFKC", unicodedata.normalize("NFKC", text).upper().casefold()
        ).strip()
        if folded == text:
            break
        text = folded
    return text
