"""One spelling for text from clients, so that another spelling does not create another count.

A login form accepts a name with a trailing space, in full-width letters or in capitals for the same
user: Django's `UsernameField` strips and applies NFKC, and many user models ignore case. Texts that
the view treats as equal must share a count.
"""

from __future__ import annotations

import unicodedata
from contextlib import suppress

NO_NUMBER = "INVALID"
"""The spelling of every text that is no number. Normalized text has no capitals."""
MAX_NUMBER_LENGTH = 8600
"""Characters of a number: `int` accepts 4,300 digits with an underscore between each."""
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


def number_spelling(text: str) -> str:
    """Return the one spelling of all texts that Python reads as the same whole number.

    Python's `int` cuts off the fraction of a JSON number, so the fraction is cut off here as well.
    The spelling of all other texts is `NO_NUMBER`.

    >>> [number_spelling(text) for text in ("7", " +0_7 ", "\uff17", "7.5", "seven")]
    ['7', '7', '7', '7', 'INVALID']
    """
    if len(text.strip()) <= MAX_NUMBER_LENGTH:
        for read in (int, float):
            with suppress(ValueError, OverflowError):
                return str(int(read(text)))
    return NO_NUMBER
