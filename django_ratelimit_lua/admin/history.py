"""The history: changes with their author and time, and undo."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from django.contrib import admin
from django.db import models, router, transaction
from django.http import HttpRequest, HttpResponse
from django.utils import formats
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.text import capfirst
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ..extension import rule_fields
from ..models import RateLimitChange, RateLimitRule
from ..models.audit import AUDITED
from ..operations.formatting import moment_element, moment_words
from ..operations.history_names import MAX_NAMED
from ..operations.rules_yaml import build_rule, save_rule
from ..rules.describe import rate_words, reading
from ..rules.rule import Declared, RuleError
from .identities import WHO, client_words, identity_words, may_see_names, numbered_override
from .pages import Context, ReadOnlyAdmin, may

COLUMNS = {"rate": "limit", "method": "methods"}
"""Names in declarations that differ from the columns in forms."""
DIGESTS = {"subject", "digests"}
NAMING = {"client", "reason"}
"""Fields of an override that name its client."""
MOMENTS = ("starts", "ends", "until")


def seen_by(
    request: HttpRequest, changes: models.QuerySet[RateLimitChange]
) -> models.QuerySet[RateLimitChange]:
    """Annotate each change with whether the user of a request may see its client and its reason.

    The permissions are those of the pages about overrides, and of the pages about clients.
    """
    is_override = models.Q(kind=RateLimitChange.Kind.OVERRIDE)
    sees_override = models.When(is_override, then=models.Value(may_see_names(request)))
    sees_client = models.Value(request.user.has_perm(WHO))
    return changes.annotate(may_see_who=models.Case(sees_override, default=sees_client))


def change_name(change: RateLimitChange) -> str:
    """Return the name of the row of an annotated change; the number of an override may replace it.

    Args:
        change: A change that `seen_by` has annotated.
    """
    may_see_who = change.may_see_who  # type: ignore[attr-defined]
    if change.kind == RateLimitChange.Kind.OVERRIDE and not may_see_who:
        return numbered_override(change.object_id)
    return change.name


def changed_words(change: RateLimitChange, *, may_see_who: bool = False) -> list[str]:
    """Describe a change field by field, old and new, in the words of the forms.

    Digests are left out, unless the name of the client is hidden.

    Args:
        change: Any entry of the history. For a created or deleted row, all values are listed.
        may_see_who: Whether names of clients and reasons may be shown.
    """
    before = _mapping(change.before)
    after = _mapping(change.after)
    if change.kind == RateLimitChange.Kind.IDENTITY:
        return _action_words(change.action, after, may_see_who=may_see_who)
    model = AUDITED.get(change.kind)
    fields = () if model is None else model._meta.concrete_fields  # An optional app may be gone.
    columns = {column.name: column for column in fields}
    labels = {
        "client": _("client"),
        **{name: column.verbose_name for name, column in columns.items()},
        "tiers": _("tiers"),
        **{name: added.label for name, added in rule_fields().items()},
    }
    hidden = DIGESTS
    if change.kind == RateLimitChange.Kind.OVERRIDE and not may_see_who:
        hidden = DIGESTS | NAMING
    names = {COLUMNS.get(name, name): name for name in {*before, *after} - hidden}
    lines = []
    for own in (*labels, *sorted(names.keys() - labels.keys())):
        name = names.get(own, "")
        both = (before.get(name), after.get(name))
        if both[0] == both[1] or (own == "client" and change.name in both):
            continue
        values = [
            _value(name, columns.get(own), side.get(name)) for side in (before, after) if side
        ]
        if name in MOMENTS and len(set(values)) < len(values):  # Within one minute.
            values = [
                f"{value}:{str(moment)[17:19]}" for value, moment in zip(values, both, strict=True)
            ]
        lines.append(f"{capfirst(str(labels.get(own, own)))}: {' → '.join(values)}")
    return lines


def _mapping(declared: object) -> Declared:
    """Return the fields of a stored declaration, or no fields if it is not a mapping."""
    if isinstance(declared, Mapping):
        return declared
    return {}


def _action_words(action: str, after: Declared, *, may_see_who: bool) -> list[str]:
    """Describe an operator's action on a client."""
    reason = list(filter(None, [may_see_who and after.get("why")]))
    if action == RateLimitChange.Action.ENDED:
        return [gettext("Counts are reset."), *reason]
    digests = after.get("digests") or ["—"]
    names = _mapping(may_see_who and after.get("who"))
    named = [
        client_words(identity_words(names.get(digest, ())), digest)
        for digest in digests[:MAX_NAMED]
    ]
    more = len(digests) - len(named)
    if more:
        named.append(ngettext("%(number)s more", "%(number)s more", more) % {"number": more})
    text = ngettext(
        "The ban of %(client)s is lifted.", "The bans of %(client)s are lifted.", len(digests)
    )
    lines = [text % {"client": ", ".join(named)}]
    if after.get("forget"):
        lines.append(gettext("Earlier bans are forgotten."))
    return lines + reason


def _value(name: str, column: Any, value: Any) -> str:
    if value is None and (
        getattr(column, "flatchoices", None) or isinstance(column, models.BooleanField)
    ):
        value = column.get_default()  # Declarations leave it out.
    if value in (None, ""):
        return "—"
    if name == "rate":
        return rate_words(value)
    if isinstance(value, bool):
        return gettext("yes") if value else gettext("no")
    if isinstance(value, float):
        return str(formats.number_format(f"{value:.15g}"))
    if isinstance(value, list):
        return ", ".join(_value(name, column, one) for one in value)
    if isinstance(value, Mapping):  # A tier.
        return " ".join(_value(key, None, part) for key, part in value.items())
    if name in MOMENTS:
        with suppress(TypeError, ValueError):
            return moment_words(datetime.datetime.fromisoformat(value))
    choices = dict(getattr(column, "flatchoices", ()))
    return str(choices.get(str(value), value))


def restore(change: RateLimitChange) -> RateLimitRule:
    """Restore a rule to its version after a change, or before its deletion.

    Raises:
        RuleError: The version is invalid today, or another rule has its name.
    """
    rule, tiers = build_rule(change.after or change.before or {})
    with transaction.atomic(router.db_for_write(RateLimitRule)):
        if RateLimitRule.objects.filter(name=rule.name).exclude(pk=change.object_id or 0).exists():
            problem = _("another rule has this name; rename or delete it first")
            raise RuleError(repr(rule.name), "name", str(problem))
        return save_rule(rule, tiers, change.object_id)


def may_restore(request: HttpRequest) -> bool:
    """Return whether the user may restore versions of rules, including deleted rules."""
    return may(request, "change_ratelimitrule") and may(request, "add_ratelimitrule")


class ChangeAdmin(ReadOnlyAdmin):
    """The history. It cannot be added to, changed or deleted by hand."""

    list_display = ("moment", "by", "what", "changes")
    list_filter = ("kind", "action", "at")
    search_fields = ("name", "by")
    date_hierarchy = "at"
    fields = ("moment", "by", "what", "changes", "revision")
    readonly_fields = fields
    change_form_template = "admin/django_ratelimit_lua/ratelimitchange/change_form.html"

    @admin.display(description=_("when"), ordering="at")
    def moment(self, change: RateLimitChange) -> SafeString:
        return moment_element(change.at)

    @admin.display(description=_("what"), ordering="name")
    def what(self, change: RateLimitChange) -> SafeString:
        """Return the changed row, its kind and the action."""
        action = f"{change.get_kind_display()}, {change.get_action_display()}"
        return format_html('{}<div class="quiet">{}</div>', change_name(change), action)

    @admin.display(description=_("what changed"))
    def changes(self, change: RateLimitChange) -> str:
        declared = change.before or change.after
        is_whole = None in (change.before, change.after)
        if is_whole and declared and change.kind == RateLimitChange.Kind.RULE:
            return reading(declared)
        lines = changed_words(change, may_see_who=change.may_see_who)  # type: ignore[attr-defined]
        return format_html_join(mark_safe("<br>"), "{}", ((line,) for line in lines))

    def get_queryset(self, request: HttpRequest) -> Any:
        """Return the changes, each annotated with whether the user may see names."""
        return seen_by(request, super().get_queryset(request))

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> models.Model | None:
        """Return a change, without a name that its title would show to the user."""
        change = super().get_object(request, object_id, from_field)
        if isinstance(change, RateLimitChange):
            change.name = change_name(change)
        return change

    def get_search_results(
        self, request: HttpRequest, queryset: models.QuerySet[models.Model], search_term: str
    ) -> tuple[models.QuerySet[models.Model], bool]:
        """Search the names that the user may see."""
        if search_term and not may_see_names(request):
            queryset = queryset.exclude(kind=RateLimitChange.Kind.OVERRIDE)
        return super().get_search_results(request, queryset, search_term)

    def render_change_form(
        self, request: HttpRequest, context: Context, *args: Any, **kwargs: Any
    ) -> HttpResponse:
        change = kwargs.get("obj")
        context["may_restore"] = (
            change is not None
            and change.kind == RateLimitChange.Kind.RULE
            and (change.before or change.after)
            and may_restore(request)
        )
        return super().render_change_form(request, context, *args, **kwargs)
