"""The base class of the model admins: records the author of a change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import flatten
from django.db.models import Model
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse
from django.template.response import SimpleTemplateResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext as _

from ..conf import conf
from ..models.audit import Conflict, acting
from ..publishing import triggers
from ..store import page_deadline

View = Callable[..., HttpResponse]


class ActingAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """A `ModelAdmin` that records changes as made by the logged-in user."""

    class Media:
        """The style sheet of the pages."""

        css = {"all": ("django_ratelimit_lua/admin.css",)}  # noqa: RUF012 - Django's way

    def own_views(self) -> Iterable[tuple[str, View, str]]:
        """Return the views in addition to Django's: the path, the view and the name of each."""
        return ()

    def get_urls(self) -> list[URLPattern]:
        own = [
            path(route, self.admin_site.admin_view(view), name=f"{self.opts.app_label}_{name}")
            for route, view, name in self.own_views()
        ]
        patterns = [*own, *super().get_urls()]
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
        expected = None
        if change:
            expected = obj.revision
        obj.save(expected=expected)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Open the folded sections that have values."""
        adminform = context["adminform"]
        adminform.fieldsets = list(_shown_sections(adminform.form, adminform.fieldsets))
        return super().render_change_form(request, context, *args, **kwargs)


def _shown_sections(
    form: ModelForm[Model], sections: Iterable[tuple[Any, dict[str, Any]]]
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the sections of a form. None is folded if it has a value, or if the form was sent.

    “Confirm” is only there if a warning asks for it.
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
    """Return whether a field differs from its value in a new row."""
    default = vars(type(form.instance)()).get(name)
    value = form.initial.get(name, vars(form.instance).get(name))
    return value not in (default, None, "", [])


def audited(view: View) -> View:
    """Wrap the view of a page.

    Its changes are recorded as made by the user. All its calls of Redis have one deadline. The page
    says once that Redis does not answer, or that saved changes are not in force.
    """

    @wraps(view)
    def audited_view(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
        with acting(request.user), page_deadline() as deadline:
            response = view(request, *args, **kwargs)
            is_saved = request.method == "POST" and response.status_code == 302
            if is_saved and triggers.unpublished:
                words = _("Saved, but not published yet: %s")
                messages.warning(request, words % triggers.unpublished)
            elif "title" in _context(response) and deadline.error is not None:
                words = _("Redis does not answer (%(error)s). Limits use their policy: %(policy)s.")
                values = {"error": deadline.error, "policy": conf.ON_STORE_ERROR}
                messages.warning(request, words % values)
            if isinstance(response, SimpleTemplateResponse):
                response.render()  # Its columns may read Redis.
        return response

    return audited_view


def _context(response: HttpResponse) -> Mapping[str, object]:
    """Return the context of a page; empty for a part of a page, which shows no messages."""
    return getattr(response, "context_data", None) or {}
