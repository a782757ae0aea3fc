"""Thresholds of breakers as items of the rules' YAML file: `breaker: payments`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...extension import Document
from ...limits.rate import time_text, time_us
from ...rules.rule import RuleError
from .models import RateLimitBreaker
from .operations import in_code, meant_by
from .rows import TIMES, TUNED, row_problems

Declared = Mapping[str, Any]
WORD = "breaker"
WORDS = ("description", *TUNED)


def stored() -> dict[str, Declared]:
    """The rows of breakers, by name, without forced states, which are not code."""
    rows = {row.name: row.thresholds_declared() for row in RateLimitBreaker.objects.all()}
    return {name: declared for name, declared in rows.items() if declared}


def build(given: Declared, where: str) -> Declared:
    """The thresholds of an item as a row has them. Raises `RuleError`."""
    words = {word: value for word, value in given.items() if word in WORDS and value is not None}
    row = RateLimitBreaker(name=given[WORD])
    where = f"{where}: breaker {given[WORD]!r}"
    # Of the text, because a row makes whole numbers of 1.5 and of true.
    problems = [
        RuleError(where, wrong.field, wrong) for wrong in row_problems({**words, "name": row.name})
    ]
    if unknown := sorted(map(str, set(given) - {WORD, *WORDS})):
        problems.append(
            RuleError(where, WORD, f"unknown {', '.join(unknown)}; there are {', '.join(TUNED)}")
        )
    if not isinstance(words.get("description", ""), str):
        problems.append(
            RuleError(
                where, "description", f"description is {words['description']!r}: must be text"
            )
        )
    if problems:
        raise RuleError.of(problems)
    for word, value in words.items():
        is_number = word in TIMES and not isinstance(value, str)
        setattr(row, word, time_text(time_us(value)) if is_number else value)
    return row.thresholds_declared()


def save(name: str, declared: Declared | None) -> None:
    """Save a breaker's row, and keep its forced state."""
    row = RateLimitBreaker.objects.filter(name=name).first() or RateLimitBreaker(name=name)
    if declared is None and not row.is_forced():
        row.delete()
        return
    empty = RateLimitBreaker()
    for word in WORDS:
        setattr(row, word, (declared or {}).get(word, getattr(empty, word)))
    row.save()


def notices(name: str) -> list[str]:
    """That no breaker in the code has this name."""
    known = in_code()
    if name in known:
        return []
    text = _(
        "No breaker in the code has this name, as far as it is imported here or was called "
        "lately: it would do nothing."
    )
    meant = meant_by(name, known)
    return [f"{text} {_('Did you mean “%(name)s”?') % {'name': meant}}" if meant else text]


def applied(number: int) -> str:
    """The message of the admin."""
    text = ngettext(
        "%(number)d breaker is that of the file: it holds everywhere within milliseconds.",
        "%(number)d breakers are those of the file: they hold everywhere within milliseconds.",
        number,
    )
    return text % {"number": number}


PERMISSIONS = [
    f"ratelimit_breakers.{action}_ratelimitbreaker" for action in ("add", "change", "delete")
]
DOCUMENT = Document(WORD, stored, build, save, notices, applied, PERMISSIONS)
