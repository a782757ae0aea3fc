"""The base classes of the pages, their URLs, and pages without a model in the admin's index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.admin.utils import flatten
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, transaction
from django.db.models import Model
from django.db.models.base import ModelBase
from django.db.models.options import Options
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import SimpleTemplateResponse, TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _

from ..conf import conf
from ..exceptions import StoreError
from ..extension import Extension, Section, extensions
from ..models.audit import Conflict, acting
from ..models.rule import rules_database
from ..publishing import triggers
from ..store import page_deadline

MAX_SEARCH_LENGTH = 500
View = Callable[..., HttpResponse]
Context = dict[str, Any]
"""The values that a template shows, by name."""


def admin_url(request: HttpRequest, name: str, *arguments: object) -> str:
    """Return the URL of a page of the admin site that serves a request.

    A project may have several admin sites. `{% url %}` in templates does the same.

    Args:
        request: The request for a page of the admin.
        name: The name of the URL without its namespace, such as `ratelimit_statistics_statistics`.
        arguments: Its arguments.

    Raises:
        NoReverseMatch: The site has no such page.
    """
    match = request.resolver_match
    site = match.namespace if match else None
    return reverse(f"admin:{name}", args=arguments, current_app=site)


def search_text(request: HttpRequest) -> str:
    """Return the text that a page is asked to search for, cut to `MAX_SEARCH_LENGTH`."""
    return request.GET.get("q", "").strip()[:MAX_SEARCH_LENGTH]


def page_query(request: HttpRequest, **values: str) -> str:
    """Return the query of a link to a page: these values, and the period of the present page."""
    values["period"] = request.GET.get("period", "")
    return urlencode({name: value for name, value in values.items() if value}, errors="replace")


class ActingAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """A `ModelAdmin` that records changes as made by the logged-in user."""

    class Media:
        """The style sheet of the pages."""

        css = {"all": ("django_ratelimit_lua/admin.css",)}  # noqa: RUF012 - Django's way

    def added_views(self) -> Iterable[tuple[str, View, str]]:
        """Return the views in addition to Django's: the path, the view and the name of each."""
        return ()

    def get_urls(self) -> list[URLPattern]:
        """Return the URLs of all views, each of which is `audited`."""
        added = [
            path(route, self.admin_site.admin_view(view), name=f"{self.opts.app_label}_{name}")
            for route, view, name in self.added_views()
        ]
        patterns = [*added, *super().get_urls()]
        for pattern in patterns:
            pattern.callback = audited(pattern.callback)
        return patterns

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Show or save a form. If the row has changed since it was read, it is read again."""
        try:
            return super().changeform_view(request, *args, **kwargs)
        except Conflict:  # The form shows both versions.
            return super().changeform_view(request, *args, **kwargs)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Save a row, unless another user has changed it since it was read."""
        obj.save(expected=obj.revision if change else None)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Open the folded sections that have values."""
        adminform = context["adminform"]
        adminform.fieldsets = list(_visible_sections(adminform.form, adminform.fieldsets))
        return super().render_change_form(request, context, *args, **kwargs)


def _visible_sections(
    form: ModelForm[Model], sections: Iterable[tuple[Any, dict[str, Any]]]
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the sections of a form. None is folded if it has a value, or if the form was sent.

    “Confirm” is left out, unless a warning asks for it.
    """
    for title, section in sections:
        names = flatten(section["fields"])
        if names == ["confirm"] and not getattr(form, "asks", False):
            continue
        classes = set(section.get("classes", ()))
        if form.is_bound or any(_has_value(form, name) for name in names):
            classes.discard("collapse")
        yield title, {**section, "classes": sorted(classes)}


def _has_value(form: ModelForm[Model], name: str) -> bool:
    """Return whether a field has a value that a new row does not have."""
    new_row = vars(type(form.instance)())
    value = form.initial.get(name, vars(form.instance).get(name))
    return value not in (new_row.get(name), None, "", [])


def audited(view: View) -> View:
    """Wrap the view of a page.

    Its changes are recorded as made by the user. All its calls of Redis have one deadline. The page
    says once that Redis does not answer, or that saved changes are not in force.
    """

    @wraps(view)
    def audited_view(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
        with acting(request.user), page_deadline() as deadline:
            response = view(request, *args, **kwargs)
            _warn_about_redis(request, response, deadline.error)
            if isinstance(response, SimpleTemplateResponse):
                response.render()  # Its columns may read Redis.
        return response

    return audited_view


def _warn_about_redis(
    request: HttpRequest, response: HttpResponse, error: StoreError | None
) -> None:
    """Add a message if saved changes are not in force, or if a page met an error of Redis."""
    is_saved = request.method == "POST" and response.status_code == 302
    context = getattr(response, "context_data", None) or {}
    is_page = "title" in context  # A part of a page shows no messages.
    if is_saved and triggers.unpublished:
        text = _("Saved, but not published yet: %s")
        messages.warning(request, text % triggers.unpublished)
    elif is_page and error is not None:
        text = _("Redis does not answer (%(error)s). Limits use their policy: %(policy)s.")
        values = {"error": error, "policy": conf.ON_STORE_ERROR}
        messages.warning(request, text % values)


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
        request, f"admin/{model_admin.opts.app_label}/{template}", frame | context
    )


def may(request: HttpRequest, *names: str) -> bool:
    """Return whether the user has one of these permissions of the core."""
    return any(request.user.has_perm(f"django_ratelimit_lua.{name}") for name in names)


def may_see_rules(request: HttpRequest) -> bool:
    """Return whether the user may see the rules, and the page of processes."""
    return may(request, "view_ratelimitrule")


def extension_sections(request: HttpRequest, name: str = "") -> list[Section]:
    """Return the sections that optional apps add to a page, problems first.

    `sections.html` shows them. There are none if Redis is unavailable.

    Args:
        request: The request for the page.
        name: The limit that the page is about; empty: the page *Overview*.
    """
    sections: list[Section] = []
    try:
        for extension in extensions:
            sections += _sections_of(extension, request, name)
    except StoreError:  # The page reports it, see `audited`.
        return []
    return sorted(sections, key=lambda section: not section.is_problem)


def _sections_of(extension: Extension, request: HttpRequest, name: str) -> list[Section]:
    """Return the sections of an optional app, or the problem that it has no tables yet."""
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
