"""`durable`: the field that statistics add to rules."""

from __future__ import annotations

from django import forms
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from ...extension import RuleField
from ...limits.rate import LimitError

LABEL = _("keep statistics")


def _form_field() -> forms.Field:
    help_text = _(
        "The counts of each hour are kept in the database. Otherwise they are kept for 90 days."
    )
    return forms.BooleanField(required=False, label=capfirst(LABEL), help_text=help_text)


def _clean(value: object) -> bool:
    if not isinstance(value, bool):
        raise LimitError(f"durable is {value!r}; write true or false")
    return value


DURABLE = RuleField("durable", LABEL, _form_field, _clean)
