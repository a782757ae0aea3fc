"""Pages without a model, and their entries in the admin's index, which lists only models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, transaction
from django.db.models import Model
from django.db.models.base import ModelBase
from django.db.models.options import Options
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext as _

from ..exceptions import StoreError
from ..extension import Extension, Section, extensions
from ..models.rule import rules_database
from .base import ActingAdmin, audited

Context = dict[str, Any]
"""The values that a template shows, by name."""


def page_response(
    model_admin: admin.ModelAdmin[Model],
    request: HttpRequest,
    template: str,
    context: Context,
) -> TemplateResponse:
    """Render a page in the frame of the admin.

    Args:
        model_admin: The page, or the model admin that it belongs to.
        request: The request.
        template: The name of a template of the app that registered the page.
        context: What the page shows; `title`, if it is not the name of the page.
    """
    request.current_app = model_admin.admin_site.name
    frame = {
        **model_admin.admin_site.each_context(request),
        "title": model_admin.opts.verbose_name,
        "opts": model_admin.opts,
        "media": model_admin.media,
    }
    return TemplateResponse(
        request, f"admin/{model_admin.opts.app_label}/{template}", {**frame, **context}
    )


def may(request: HttpRequest, *names: str) -> bool:
    """Return whether the user has one of these permissions of the core."""
    return any(request.user.has_perm(f"django_ratelimit_lua.{name}") for name in names)


def may_see_rules(request: HttpRequest) -> bool:
    """Return whether the user may see the rules, and the page of processes."""
    return may(request, "view_ratelimitrule")


def extension_sections(request: HttpRequest, name: str = "") -> list[Section]:
    """Return the sections that optional apps add to a page, problems first.

    `sections.html` shows them.

    Args:
        request: The request for the page.
        name: The limit that the page is about; empty: the page *Overview*.

    Raises:
        StoreError: Redis is unavailable.
    """
    found = [section for each in extensions for section in _sections_of(each, request, name)]
    return sorted(found, key=lambda section: not section.is_problem)


def _sections_of(extension: Extension, request: HttpRequest, name: str) -> list[Section]:
    try:
        with transaction.atomic(rules_database()):
            return list(extension.sections(request, name))
    except DatabaseError:  # It is not migrated.
        words = _("%(name)s is not migrated. Run “manage.py migrate”.")
        return [Section(words % {"name": extension.name}, "", is_problem=True)]


class ReadOnlyAdmin(ActingAdmin):
    """An admin without buttons to add, change or delete."""

    def has_add_permission(self, request: HttpRequest, *args: object, **kwargs: object) -> bool:
        return False

    has_change_permission = has_add_permission
    has_delete_permission = has_add_permission


class Page(ReadOnlyAdmin):
    """A page without a model. `view` handles the requests of users that `may_see` allows."""

    may_see: Callable[[HttpRequest], bool]
    """Whether the user of a request may see the page: `staticmethod(function)`."""
    view: Callable[..., HttpResponse]
    """Answers a request."""

    def get_urls(self) -> list[URLPattern]:
        """Return the URL of the page, which is where the admin expects the list of a model."""
        name = f"{self.opts.app_label}_{self.opts.model_name}_changelist"
        return [path("", audited(self.admin_site.admin_view(self.page_view)), name=name)]

    def page_view(self, request: HttpRequest) -> HttpResponse:
        """Show the page to users who may see it."""
        if not self.may_see(request):
            raise PermissionDenied
        return self.view(request)

    def has_view_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return self.may_see(request)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.may_see(request)


class ActionPage(Page):
    """A page with buttons, for users who may block identities."""

    act: Callable[[HttpRequest, str, str], Context]
    """Performs the action of a button, which sends `action:target`.

    Returns what the page shows in addition if the action needs another step; empty: it is done.
    """

    def page_view(self, request: HttpRequest) -> HttpResponse:
        """Show the page, or perform the action of a button, which posts to the same URL."""
        if request.method != "POST":
            return super().page_view(request)
        if not (self.may_see(request) and may(request, "block_identity")):
            raise PermissionDenied
        action, _colon, target = request.POST.get("action", "").partition(":")
        next_step: Context = {}
        try:
            next_step = self.act(request, action, target)
        except StoreError as error:
            messages.error(request, _("Nothing was done: %s") % error)
        if not next_step:
            return HttpResponseRedirect(request.get_full_path())
        return self.view(request, **next_step)


class PageModel(ModelBase):
    """The type of a page that is registered as a model. No app gets a model or a table."""

    def __new__(cls, *arguments: Any) -> Any:
        return type.__new__(cls, *arguments)


def register_page(
    name: str,
    title: object,
    page: type[admin.ModelAdmin[Model]],
    app: str = "django_ratelimit_lua",
) -> None:
    """Register a page with the admin, as a model of an app that has no table."""
    options: Any = Options(None, app)
    options.object_name = name
    options.model_name = name.lower()
    options.verbose_name = title
    options.verbose_name_plural = title
    admin.site.register(PageModel(name, (), {"_meta": options}), page)
