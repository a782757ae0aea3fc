"""The history: changes with their author and time, and undo."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from django.contrib import admin
from django.db import models, router, transaction
from django.http import HttpRequest
from django.utils import formats
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.text import capfirst
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ..extension import rule_fields
from ..models import RateLimitChange, RateLimitRule
from ..models.audit import model_of
from ..operations.formatting import moment_words
from ..operations.history_names import MAX_NAMED
from ..operations.rules_yaml import build_rule, save_rule
from ..rules.describe import key_label, rate_words, reading
from ..rules.rule import RuleError
from .base import ActingAdmin
from .times import moment_element

COLUMNS = {"rate": "limit", "method": "methods"}
"""What declarations call otherwise than forms do."""
NAMES = {"tiers": _("tiers"), "client": _("who")}
"""Words that are not columns."""
DIGESTS = {"subject", "digests"}
MOMENTS = ("starts", "ends", "until")
LETTERS = 12
"""Letters of a digest that stand for a client, as on the page of bans and in the command."""
WHO = "django_ratelimit_lua.view_identities"
"""May see the names of identities."""


def changed_words(change: RateLimitChange, *, may_see_who: bool = False) -> list[str]:
    """The differences of a change, field by field, old and new, in the words of the forms; of a
    created or deleted row, its values.

    Digests are left out, unless the name of the client is hidden.
    """
    if change.kind == RateLimitChange.Kind.IDENTITY:
        return _done(change, may_see_who=may_see_who)
    before, after = (
        declared if isinstance(declared, Mapping) else {}
        for declared in (change.before, change.after)
    )
    model = model_of(change.kind)  # None: of an annex that was removed.
    columns = (
        {column.name: column for column in model._meta.concrete_fields} if model is not None else {}
    )
    order = ["client", *columns]
    labels = {**NAMES, **{name: added.label for name, added in rule_fields().items()}}
    names = {COLUMNS.get(name, name): name for name in {*before, *after} - DIGESTS}
    lines = []
    for own in sorted(
        names, key=lambda own: (order.index(own) if own in order else len(order), own)
    ):
        name, column = names[own], columns.get(own)
        old, new = before.get(name), after.get(name)
        if old == new or (own == "client" and change.name in (old, new)):
            continue
        label = capfirst(str(labels.get(own) or (own if column is None else column.verbose_name)))
        values = [
            _value(name, column, value) for value, side in ((old, before), (new, after)) if side
        ]
        if name in MOMENTS and old and new and values[0] == values[-1]:  # Within one minute.
            values = [
                f"{words}:{value[17:19]}" for words, value in zip(values, (old, new), strict=True)
            ]
        lines.append(f"{label}: {' → '.join(values)}")
    return lines


def _done(change: RateLimitChange, *, may_see_who: bool) -> list[str]:
    """An action of an operator on a client."""
    after = change.after if isinstance(change.after, Mapping) else {}
    why, slot = after.get("why"), after.get("slot")
    reason = [str(why)] if why else []
    if change.action == RateLimitChange.Action.ENDED and not slot:
        return [gettext("Counts are reset."), *reason]
    digests, names = after.get("digests") or ["—"], after.get("who") or {}
    named = []
    for digest in digests[:MAX_NAMED]:
        parts = names.get(digest) if may_see_who else None
        words = ", ".join(
            f"{key_label(kind)} {value}" if kind else value for kind, value in parts or ()
        )
        named.append(f"{words} ({digest[:LETTERS]})" if words else digest[:LETTERS])
    more = len(digests) - len(named)
    if more:
        named.append(ngettext("%(number)s more", "%(number)s more", more) % {"number": more})
    placeholders = {"client": ", ".join(named), "what": slot}
    if slot:
        text = gettext("A slot of %(client)s is released: %(what)s")
    elif change.action == RateLimitChange.Action.BANNED:
        text = gettext("Banned by hand: %(client)s.")
    else:
        text = ngettext(
            "The ban of %(client)s is lifted.", "The bans of %(client)s are lifted.", len(digests)
        )
    forgotten = [gettext("Earlier bans are forgotten.")] if after.get("forget") else []
    return [text % placeholders, *forgotten, *reason]


def _value(name: str, column: Any, value: Any) -> str:
    if (
        value is None
        and column is not None
        and (column.flatchoices or isinstance(column, models.BooleanField))
    ):
        value = column.get_default()  # Declarations leave it out.
    if value in (None, ""):
        return "—"
    if name == "rate":
        return rate_words(value)
    if name in MOMENTS:
        try:
            return moment_words(datetime.datetime.fromisoformat(value))
        except (TypeError, ValueError):
            return str(value)
    if isinstance(value, bool):
        return gettext("yes") if value else gettext("no")
    if isinstance(value, float) and math.isfinite(value):
        return str(formats.number_format(Decimal(repr(value)).normalize()))
    if isinstance(value, list):
        return ", ".join(_value(name, column, one) for one in value)
    if isinstance(value, Mapping):  # A tier.
        return " ".join(
            rate_words(part) if key == "rate" else str(part) for key, part in value.items()
        )
    names = dict(getattr(column, "flatchoices", None) or ())
    return str(names.get(value, value) if isinstance(value, str) else value)


def versions(changes: Iterable[RateLimitChange]) -> list[dict[str, Any]]:
    """Changes of a rule for a template, the latest first."""
    return [
        {
            "change": change,
            "at": moment_element(change.at),
            "words": changed_words(change),
            "reading": reading(change.after or {}),
        }
        for change in changes
    ]


def restore(change: RateLimitChange) -> RateLimitRule:
    """Make a rule what it was after a change, or before it was deleted.

    Raises `RuleError`, also where another rule has its name by now.
    """
    given = change.after if change.after is not None else change.before
    rule, tiers = build_rule(given or {})
    with transaction.atomic(router.db_for_write(RateLimitRule)):
        if RateLimitRule.objects.filter(name=rule.name).exclude(pk=change.object_id or 0).exists():
            problem = _("another rule has this name now; rename or delete it first")
            raise RuleError(repr(rule.name), "name", str(problem))
        return save_rule(rule, tiers, change.object_id)


class ChangeAdmin(ActingAdmin):
    """The history. It cannot be added to, changed or deleted by hand."""

    list_display = ("moment", "by", "what", "words")
    list_filter = ("kind", "action", "at")
    search_fields = ("name", "by")
    date_hierarchy = "at"
    fields = ("moment", "by", "what", "words", "revision")
    readonly_fields = fields
    change_form_template = "admin/django_ratelimit_lua/ratelimitchange/change_form.html"

    @admin.display(description=_("when"), ordering="at")
    def moment(self, change: RateLimitChange) -> SafeString:
        return moment_element(change.at)

    @admin.display(description=_("what"), ordering="name")
    def what(self, change: RateLimitChange) -> SafeString:
        """What was changed, and what was done to it."""
        words = f"{change.get_kind_display()}, {change.get_action_display()}"
        return format_html('{}<div class="quiet">{}</div>', change.name, words)

    @admin.display(description=_("what changed"))
    def words(self, change: RateLimitChange) -> SafeString:
        return self._words(change, may_see_who=False)

    @admin.display(description=_("what changed"))
    def named_words(self, change: RateLimitChange) -> SafeString:
        """The same, for users who may see names."""
        return self._words(change, may_see_who=True)

    def _words(self, change: RateLimitChange, *, may_see_who: bool) -> SafeString:
        whole = (
            change.after
            if change.before is None
            else change.before
            if change.after is None
            else None
        )
        if whole is not None and change.kind == RateLimitChange.Kind.RULE:
            return format_html("{}", reading(whole))
        lines = changed_words(change, may_see_who=may_see_who)
        return format_html_join(mark_safe("<br>"), "{}", ((line,) for line in lines))

    def get_list_display(self, request: HttpRequest) -> Any:
        """With names, for users who may see them."""
        return _columns(request, super().get_list_display(request))

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """With names, for users who may see them."""
        return _columns(request, super().get_fields(request, obj))

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return _columns(request, super().get_readonly_fields(request, obj))

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def render_change_form(
        self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any
    ) -> Any:
        change = kwargs.get("obj")
        is_rule = (
            change is not None
            and change.kind == RateLimitChange.Kind.RULE
            and (change.before or change.after)
        )
        permissions = (
            "django_ratelimit_lua.change_ratelimitrule",
            "django_ratelimit_lua.add_ratelimitrule",
        )
        context["may_restore"] = is_rule and request.user.has_perms(permissions)
        return super().render_change_form(request, context, *args, **kwargs)


def _columns(request: HttpRequest, columns: Iterable[Any]) -> list[Any]:
    return [
        "named_words" if one == "words" and request.user.has_perm(WHO) else one for one in columns
    ]
