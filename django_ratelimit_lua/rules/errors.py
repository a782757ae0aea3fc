"""`RuleError`: why a rule is invalid, as the form, YAML, the settings and the checks show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from django.core.exceptions import ImproperlyConfigured
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from ..limits import algorithms
from ..limits.rate import LimitError
from .options import option_table


class RuleError(ImproperlyConfigured):
    """An invalid rule. Its text is English, and contains the place of the rule.

    - `field`: the invalid field; `tier`: the group of the tier that contains it, if there is one;
    - `code`, `params`: the message without its parameters, by which it is translated, and those;
    - `where`: the text and the rule that contain it;
    - `each`: all errors. This error is the first of them, and its text lists up to a hundred.
    """

    MAX_SHOWN = 100

    def __init__(
        self,
        field: str,
        code: str,
        params: Mapping[str, Any] | None = None,
        *,
        where: str = "",
        tier: str = "",
    ) -> None:
        self.field = field
        self.code = code
        self.params = params or {}
        self.where = where
        self.tier = tier
        self.each: Sequence[RuleError] = (self,)
        text = code
        if params:
            text %= params
        self._set_text(text)

    def _set_text(self, text: str) -> None:
        """Set the text of the error, with the place and the tier in front."""
        if self.tier:
            text = f"tier of {self.tier!r}: {text}"
        if self.where:
            text = f"{self.where}: {text}"
        self.args = (text,)

    @classmethod
    def of(cls, field: str, error: Exception, *, where: str = "", tier: str = "") -> Self:
        """Return the error for one that a part of a rule has raised.

        If that names another field, the error is about that field.
        """
        if not isinstance(error, LimitError):
            return cls(field, str(error), where=where, tier=tier)
        if error.field and not tier:
            field = error.field
        rule_error = cls(field, error.text, error.params, where=where, tier=tier)
        rule_error._set_text(error.args[0])
        return rule_error

    @classmethod
    def of_all(cls, errors: Sequence[RuleError]) -> RuleError:
        """Return one error that contains all of these errors."""
        each = [error for several in errors for error in several.each]
        first = each[0]
        whole = cls(first.field, first.code, first.params, where=first.where, tier=first.tier)
        whole.each = each
        lines = [str(error) for error in each[: cls.MAX_SHOWN]]
        if len(each) > cls.MAX_SHOWN:
            lines.append(f"and {len(each) - cls.MAX_SHOWN} more")
        whole.args = ("\n".join(lines),)
        return whole

    def localized(self) -> str:
        """Return the message in the current language, with labels instead of names.

        >>> text = "%(option)s needs %(other)s as well"
        >>> RuleError("ban_after", text, {"option": "ban_after", "other": "ban_for"}).localized()
        '“Ban after” needs “Ban for” as well.'
        """
        text = _(self.code)
        if self.params:
            text %= {name: _label(name, value) for name, value in self.params.items()}
        return text.removesuffix(".") + "."


def _label(name: str, value: Any) -> object:
    """Return the label of a parameter's value, or the value if it has no label."""
    table = option_table()
    if name in ("option", "other"):
        return f"“{capfirst(_(table[value].label))}”"
    if name in ("algorithm", "algorithms"):
        return _(" or ").join(
            _(algorithms.find(each).label).partition(":")[0] for each in value.split(", ")
        )
    if name in table and isinstance(value, str) and value in table[name].names:
        return _(table[name].names[value])
    return value
