"""The rules as a file: download it, or upload one and confirm its changes."""

from __future__ import annotations

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..models import RateLimitRevision, RateLimitRule
from ..operations import rules_yaml
from ..operations.admin_urls import admin_url
from ..operations.confirmations import changed_confirmations, changed_notices
from ..publishing.publish import primary
from ..rules import RuleError
from .pages import Context, page_response
from .revisions import Values

MAX_SHOWN = 200
"""Maximum number of changes on the page. Those with warnings come first, then deletions."""
MAX_VALUE = 2 * 1024 * 1024
"""Bytes of a file: it is sent again to be confirmed, and Django takes two and a half million in a
form.
"""


class FileForm(forms.Form):
    """A file to check, and then its text to confirm."""

    file = forms.FileField(label=gettext_lazy("File"), required=False)
    missing = forms.ChoiceField(
        label=gettext_lazy("Rules that are not in the file"),
        choices=(
            ("keep", gettext_lazy("Merge: keep them")),
            ("delete", gettext_lazy("Replace: delete them")),
        ),
        initial="keep",
        required=False,
        widget=forms.RadioSelect,
    )
    text = forms.CharField(required=False, strip=False, widget=forms.HiddenInput)
    revision = forms.CharField(required=False, widget=forms.HiddenInput)
    intended = forms.BooleanField(
        label=gettext_lazy("Confirm the warnings and deletions"), required=False
    )

    def clean(self) -> Values:
        """Read the file, or check that the text of an earlier file is present."""
        given = super().clean() or {}
        file = given.get("file")
        if file is None and not given.get("text"):
            self.add_error("file", _("Choose a file."))
        elif file is not None and file.size > MAX_VALUE:
            problem = _("The file is larger than 2 MiB. Use “manage.py ratelimit rules import”.")
            self.add_error("file", problem)
        elif file is not None:
            try:
                given["text"] = file.read().decode()
            except UnicodeDecodeError:
                self.add_error("file", _("The file is not text in UTF-8."))
        return given


class RulesFile(admin.ModelAdmin):  # type: ignore[type-arg]
    """The part of the admin of rules that exports and imports them as YAML."""

    def may_upload(self, request: HttpRequest) -> bool:
        """Return whether the user may add and change rules by a file."""
        return self.has_add_permission(request) and self.has_change_permission(request)

    def download_view(self, request: HttpRequest) -> HttpResponse:
        """Return the rules, as `ratelimit rules export` writes them."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        headers = {
            "Content-Disposition": 'attachment; filename="rules.yaml"',
            "Cache-Control": "no-store",
        }
        return HttpResponse(
            rules_yaml.export(), content_type="application/yaml; charset=utf-8", headers=headers
        )

    def file_view(self, request: HttpRequest) -> HttpResponse:
        """Upload a file, show its changes, and apply them after a confirmation."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        context: Context = {
            "title": _("Rules as a file"),
            "may_upload": self.may_upload(request),
            "form": FileForm(),
        }
        if request.method == "POST":
            if not context["may_upload"]:
                raise PermissionDenied
            form = FileForm(request.POST, request.FILES)
            context["form"] = form
            try:
                with transaction.atomic(primary()):
                    if form.is_valid() and self._plan(request, form.cleaned_data, context):
                        return redirect(
                            admin_url(request, "django_ratelimit_lua_ratelimitrule_changelist")
                        )
            except RuleError as error:
                context["problems"] = [str(problem) for problem in error.each]
        return page_response(self, request, "ratelimitrule/file.html", context)

    def _plan(self, request: HttpRequest, given: Values, context: Context) -> bool:
        """Add the changes of a file to the context, or apply them after a confirmation."""
        revision = RateLimitRevision.read(primary()).text.decode()
        merge = given["missing"] != "delete"
        changes = rules_yaml.plan(given["text"], merge=merge)
        to_confirm = changed_confirmations(changes)
        deleted = [change for change in changes if change.after is None]
        may_delete = self.has_delete_permission(request)
        is_confirmed = "confirm" in request.POST
        if is_confirmed and given["revision"] != revision:
            problem = _(
                "The rules were changed in the meantime. Nothing was saved: review the changes "
                "again."
            )
            messages.warning(request, problem)
        elif is_confirmed and (deleted or to_confirm) and not given["intended"]:
            problem = _(
                "Nothing was saved: tick the box if the warnings and deletions are intended."
            )
            messages.error(request, problem)
        elif is_confirmed:
            if deleted and not may_delete:
                raise PermissionDenied
            rules_yaml.apply(changes)
            self._log(request, changes)
            return True
        notices = changed_notices(changes)
        first = sorted(
            changes, key=lambda change: (change.name not in to_confirm, change.after is not None)
        )
        context |= {
            "changes": [
                {
                    "lines": change.words(),
                    "warnings": [*to_confirm.get(change.name, ()), *notices.get(change.name, ())],
                }
                for change in first[:MAX_SHOWN]
            ],
            "number": len(changes),
            "more": len(changes[MAX_SHOWN:]),
            "is_planned": True,
            "must_confirm": to_confirm or deleted,
            "may_apply": not deleted or may_delete,
            "form": FileForm(initial={**given, "revision": revision, "intended": False}),
        }
        return False

    def _log(self, request: HttpRequest, changes: list[rules_yaml.RuleChange]) -> None:
        names = [change.name for change in changes]
        rules = RateLimitRule.objects.in_bulk(names, field_name="name").values()
        LogEntry.objects.log_actions(request.user.pk, rules, CHANGE, _("From a file."))  # type: ignore[arg-type]
        if not changes:
            messages.success(request, _("The file changes nothing."))
        if names:
            text = ngettext(
                "%(number)d rule now matches the file. It applies to the next request.",
                "%(number)d rules now match the file. They apply to the next request.",
                len(names),
            )
            messages.success(request, text % {"number": len(names)})
