"""The history: changes with their author and time, and undo."""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from django.contrib import admin
from django.db import models
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.text import capfirst
from django.utils.translation import gettext, gettext_noop, ngettext
from django.utils.translation import gettext_lazy as _

from ..models import RateLimitChange, RateLimitRule
from ..models.audit import AUDITED, Spec
from ..operations.formatting import moment_element, moment_words
from ..operations.history import MAX_NAMED
from ..rules import RuleError
from ..rules.describe import describe_difference, rate_words
from ..views.call_sites import describe_rule
from .identities import SEE_NAMES, client_words, identity_words, may_see_names, numbered_override
from .pages import Context, ReadOnlyAdmin, may

DIGESTS = {"subject", "digests"}
"""Fields that are never shown."""
NAMING = {"client", "reason"}
"""Fields of an override that name its client."""
MOMENTS = ("starts", "ends", "until")
MIN_RESTORED_REVISION = 2**30
"""The revision of a restored rule is random, and higher than any that edits reach."""


def annotate_visibility(
    request: HttpRequest, changes: models.QuerySet[RateLimitChange]
) -> models.QuerySet[RateLimitChange]:
    """Annotate each change with whether the user of a request may see its client and its reason.

    The permissions are those of the pages about overrides, and of the pages about clients.
    """
    is_override = models.Q(kind=RateLimitChange.Kind.OVERRIDE)
    sees_override = models.When(is_override, then=models.Value(may_see_names(request)))
    sees_client = models.Value(request.user.has_perm(SEE_NAMES))
    return changes.annotate(may_see_who=models.Case(sees_override, default=sees_client))


def change_name(change: RateLimitChange) -> str:
    """Return the name of the row of an annotated change; the number of an override may replace it.

    Args:
        change: A change that `annotate_visibility` has annotated.
    """
    may_see_who = change.may_see_who  # type: ignore[attr-defined]
    if change.kind == RateLimitChange.Kind.OVERRIDE and not may_see_who:
        return numbered_override(change.object_id)
    return change.name


def describe_change(change: RateLimitChange, *, may_see_who: bool = False) -> list[str]:
    """Describe a change field by field, old and new, in the words of the forms.

    Digests are left out.

    Args:
        change: Any entry of the history. For a created or deleted row, all values are listed.
        may_see_who: Whether names of clients and reasons may be shown.
    """
    before = _stored_fields(change.before)
    after = _stored_fields(change.after)
    if change.kind == RateLimitChange.Kind.IDENTITY:
        return _describe_action(change.action, after, may_see_who=may_see_who)
    hidden = set()
    if change.kind == RateLimitChange.Kind.OVERRIDE and not may_see_who:
        hidden = NAMING
    elif change.name in (before.get("client"), after.get("client")):
        hidden = {"client"}  # The page shows it as the name of the row.
    return describe_versions(change.kind, before, after, hidden)


def describe_versions(
    kind: str, before: Spec, after: Spec, hidden: Collection[str] = ()
) -> list[str]:
    """Return the fields in which two versions of a row differ, with their values in words.

    Args:
        kind: The kind of the row, see `RateLimitChange.kind`.
        before: The older version; empty if the row was created.
        after: The newer version; empty if the row was deleted.
        hidden: Fields to leave out, in addition to digests.
    """
    if kind == RateLimitChange.Kind.RULE:
        return describe_difference(before, after)
    columns: dict[str, Any] = {}
    if kind in AUDITED:  # Otherwise its optional app is not installed.
        columns = {column.name: column for column in AUDITED[kind]._meta.concrete_fields}
    labels = {"client": _("client")}
    labels |= {name: column.verbose_name for name, column in columns.items()}
    lines = []
    for name in dict.fromkeys((*labels, *sorted({*before, *after}))):
        if name in DIGESTS or name in hidden or before.get(name) == after.get(name):
            continue
        values = [
            _describe_value(name, columns.get(name), version.get(name))
            for version in (before, after)
            if version
        ]
        lines.append(f"{capfirst(str(labels.get(name, name)))}: {' → '.join(values)}")
    return lines


def _stored_fields(spec: object) -> Spec:
    """Return the fields of a stored version, or no fields if it is not a mapping."""
    if isinstance(spec, dict):
        return spec
    return {}


def _describe_action(action: str, after: Spec, *, may_see_who: bool) -> list[str]:
    """Describe an operator's action on clients, of which the first ones are named."""
    digests = after.get("digests") or ["—"]
    names: Spec = {}
    if may_see_who:
        names = _stored_fields(after.get("who"))
    clients = [
        client_words(identity_words(names.get(digest, ())), digest)
        for digest in digests[:MAX_NAMED]
    ]
    more = len(digests) - len(clients)
    if more:
        clients.append(ngettext("%(number)s more", "%(number)s more", more) % {"number": more})
    if action == RateLimitChange.Action.ENDED:
        text = gettext("The counts of %(client)s are reset.")
    else:
        text = ngettext(
            "The ban of %(client)s is lifted.", "The bans of %(client)s are lifted.", len(digests)
        )
    lines = [text % {"client": ", ".join(clients)}]
    if after.get("forget"):
        lines.append(gettext("Earlier bans are forgotten."))
    if may_see_who and after.get("why"):
        lines.append(after["why"])
    return lines


def _describe_value(name: str, column: Any, value: Any) -> str:
    """Return the value of a field in words, with the labels of choices.

    Args:
        name: The name of the field.
        column: The field of the model; None if the model has no such field.
        value: Its value; None if the version does not contain it.
    """
    choices = dict(getattr(column, "flatchoices", ()))
    if value is None and (choices or isinstance(column, models.BooleanField)):
        value = column.get_default()  # Specs leave it out.
    if value in (None, ""):
        return "—"
    if name == "rate":
        return rate_words(value)
    if isinstance(value, bool):
        return gettext("yes") if value else gettext("no")
    if name in MOMENTS:
        with suppress(TypeError, ValueError):
            return moment_words(datetime.datetime.fromisoformat(value))
    return str(choices.get(str(value), value))


def restored_rule(change: RateLimitChange) -> RateLimitRule:
    """Return a rule, also a deleted one, as it was before a change. It is not saved yet.

    Raises:
        RuleError: That version is invalid today, or another rule has its name.
    """
    row = rule_of(change)
    if row is None:
        # A form of the deleted rule that is still open must not have the revision of the new row.
        revision = MIN_RESTORED_REVISION + secrets.randbelow(MIN_RESTORED_REVISION // 2)
        row = RateLimitRule(pk=change.object_id, revision=revision)
    row.assign(change.before or {})
    if RateLimitRule.objects.filter(name=row.name).exclude(pk=row.pk).exists():
        text = gettext_noop("Another rule has this name. Rename or delete it first.")
        raise RuleError("name", text)
    row.compiled()
    return row


def rule_of(change: RateLimitChange) -> RateLimitRule | None:
    """Return the rule that a change is about; None if it was deleted."""
    return RateLimitRule.objects.filter(pk=change.object_id or 0).first()


def revision_of(rule: RateLimitRule | None) -> str:
    """Return the revision of a rule as a page sends it; empty if the rule was deleted."""
    return str(rule.revision) if rule else ""


def undo_label(change: RateLimitChange, row: RateLimitRule | None) -> str:
    """Return the label of the button that undoes a change of a rule.

    It is empty if there is nothing to undo: the rule was created, or is as before the change.

    Args:
        change: The change.
        row: The rule as it is now, if it exists.
    """
    current = row.spec if row else None
    if change.kind != RateLimitChange.Kind.RULE or change.before in (None, current):
        return ""
    if change.after == current:
        return gettext("Undo this change")
    return gettext("Undo this and all later changes")


def may_undo(request: HttpRequest) -> bool:
    """Return whether the user may undo changes of rules, including deletions."""
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
        """Return what changed, one line for each field; a created or deleted rule in a sentence."""
        spec = change.before or change.after
        is_one_version = None in (change.before, change.after)
        if is_one_version and spec and change.kind == RateLimitChange.Kind.RULE:
            return describe_rule(spec)
        lines = describe_change(change, may_see_who=change.may_see_who)  # type: ignore[attr-defined]
        return format_html_join(mark_safe("<br>"), "{}", ((line,) for line in lines))

    def get_queryset(self, request: HttpRequest) -> Any:
        """Return the changes, each annotated with whether the user may see names."""
        return annotate_visibility(request, super().get_queryset(request))

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> models.Model | None:
        """Return a change, without a name that its title would show to the user; None: unknown."""
        change = super().get_object(request, object_id, from_field)
        if isinstance(change, RateLimitChange):
            change.name = change_name(change)
        return change

    def get_search_results(
        self, request: HttpRequest, queryset: models.QuerySet[models.Model], search_term: str
    ) -> tuple[models.QuerySet[models.Model], bool]:
        """Search the names that the user may see."""
        visible = queryset
        if search_term and not may_see_names(request):
            visible = queryset.exclude(kind=RateLimitChange.Kind.OVERRIDE)
        return super().get_search_results(request, visible, search_term)

    def render_change_form(
        self, request: HttpRequest, context: Context, *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Show a change, with a button to undo it for users who may do that."""
        change = kwargs.get("obj")
        if isinstance(change, RateLimitChange) and may_undo(request):
            rule = rule_of(change)
            context |= {"undo_label": undo_label(change, rule), "undo_revision": revision_of(rule)}
        return super().render_change_form(request, context, *args, **kwargs)
