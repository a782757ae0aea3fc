"""What was changed, by whom and when; and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.db import router, transaction
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext_lazy as _

from ..models import RateLimitChange, RateLimitRule
from ..operations.rules_yaml import build_rule, save_rule
from ..rules.describe import difference, reading
from ..rules.rule import RuleError
from .base import ActingAdmin


def versions(changes: Iterable[RateLimitChange]) -> list[dict[str, Any]]:
    """Changes of a rule for a template, the latest first."""
    return [
        {"change": change, "words": difference(change.before, change.after), "reading": reading(change.after or {})}
        for change in changes
    ]


def restore(change: RateLimitChange) -> RateLimitRule:
    """Make a rule what it was after a change, or before it was deleted. Raises `RuleError`, also where another rule has
    its name by now."""
    given = change.after if change.after is not None else change.before
    rule, tiers = build_rule(given or {})
    with transaction.atomic(router.db_for_write(RateLimitRule)):
        if RateLimitRule.objects.filter(name=rule.name).exclude(pk=change.object_id or 0).exists():
            problem = _("another rule has this name now; rename or delete it first")
            raise RuleError(repr(rule.name), "name", str(problem))
        return save_rule(rule, tiers, change.object_id)


class ChangeAdmin(ActingAdmin):
    """The history: nobody adds to it, changes it or deletes it by hand."""

    list_display = ("at", "by", "kind", "name", "action", "words")
    list_filter = ("kind", "action", "at")
    search_fields = ("name", "by")
    date_hierarchy = "at"
    fields = ("at", "by", "kind", "name", "action", "words", "revision")
    readonly_fields = fields
    change_form_template = "admin/django_ratelimit_lua/ratelimitchange/change_form.html"

    @admin.display(description=_("what changed"))
    def words(self, change: RateLimitChange) -> SafeString:
        """Old and new."""
        if change.before is None and change.after is not None and change.kind == RateLimitChange.Kind.RULE:
            return format_html("{}", reading(change.after))
        lines = difference(change.before, change.after)
        return format_html_join(mark_safe("<br>"), "{}", ((line,) for line in lines))

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> Any:
        """With a way back."""
        change = kwargs.get("obj")
        is_rule = change is not None and change.kind == RateLimitChange.Kind.RULE and (change.before or change.after)
        permissions = ("django_ratelimit_lua.change_ratelimitrule", "django_ratelimit_lua.add_ratelimitrule")
        context["may_restore"] = is_rule and request.user.has_perms(permissions)
        return super().render_change_form(request, context, *args, **kwargs)
