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
    """Return the thresholds of rows, by name. Forced states are not part of the file."""
    rows = {row.name: row.thresholds_declared() for row in RateLimitBreaker.objects.all()}
    return {name: declared for name, declared in rows.items() if declared}


def build(given: Declared, where: str) -> Declared:
    """Return the thresholds of an item in the form of a row. Raises `RuleError`."""
    where = f"{where}: breaker {given[WORD]!r}"
    values = {word: given[word] for word in WORDS if given.get(word) not in (None, "")}
    problems = [
        RuleError(where, problem.field, problem)
        for problem in row_problems({**values, "name": given[WORD]})
    ]
    if unknown := sorted(map(str, set(given) - {WORD, *WORDS})):
        text = f"unknown {', '.join(unknown)}; known thresholds: {', '.join(TUNED)}"
        problems.append(RuleError(where, WORD, text))
    description = values.get("description", "")
    if not isinstance(description, str):
        text = f"description is {description!r}: must be text"
        problems.append(RuleError(where, "description", text))
    if problems:
        raise RuleError.of(problems)
    for word in TIMES:
        if not isinstance(values.get(word, ""), str):
            values[word] = time_text(time_us(values[word]))
    return values


def save(name: str, declared: Declared | None) -> None:
    """Save the thresholds of a row, or delete them if they are None. A forced state is kept."""
    row = RateLimitBreaker.objects.filter(name=name).first() or RateLimitBreaker(name=name)
    if declared is None and not row.is_forced():
        row.delete()
        return
    empty = RateLimitBreaker()
    for word in WORDS:
        setattr(row, word, (declared or {}).get(word, getattr(empty, word)))
    row.save()


def notices(name: str) -> list[str]:
    """Return a warning if no breaker in the code has this name."""
    known = in_code()
    if name in known:
        return []
    text = _("No imported or recently used breaker has this name: the row has no effect.")
    if meant := meant_by(name, known):
        text += " " + _("Did you mean “%(name)s”?") % {"name": meant}
    return [text]


def applied(number: int) -> str:
    """Return the message that the admin shows after an import of this number of breakers."""
    text = ngettext(
        "%(number)d breaker is now as in the file.",
        "%(number)d breakers are now as in the file.",
        number,
    )
    return text % {"number": number}


PERMISSIONS = [
    f"ratelimit_breakers.{action}_ratelimitbreaker" for action in ("add", "change", "delete")
]
DOCUMENT = Document(WORD, stored, build, save, notices, applied, PERMISSIONS)
