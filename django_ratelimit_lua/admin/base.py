"""The base class of the model admins: records the author of a change, and accepts any input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import flatten
from django.contrib.admin.widgets import AutocompleteSelect
from django.core.exceptions import ValidationError
from django.db import DataError
from django.db.models import DateTimeField, ForeignKey, Model, QuerySet
from django.forms import ModelChoiceField, ModelForm
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.translation import gettext as _

from ..models.audit import acting
from ..models.override import within
from ..publishing import triggers
from ..rules.rule import is_unwritable

View = Callable[..., HttpResponse]
UNSTORABLE = (OverflowError, DataError)
"""Databases raise these for a number that no column can hold."""


class Autocomplete(AutocompleteSelect):
    """Django's widget, which also renders a form with an invalid key."""

    def optgroups(
        self, name: str, value: Sequence[str], attr: dict[str, object] | None = None
    ) -> Any:
        try:
            return super().optgroups(name, value, attr)
        except (ValueError, ValidationError, *UNSTORABLE):
            return super().optgroups(name, [""], attr)


class ActingAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """A `ModelAdmin` that records changes as made by the logged-in user, and accepts any input."""

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

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, object] | None = None
    ) -> HttpResponse:
        texts = [text for _name, values in request.GET.lists() for text in values]
        unfiltered = f"{request.path}?e=1"  # Django's answer to a filter that it cannot apply.
        if any(map(is_unwritable, texts)):
            return HttpResponseRedirect(unfiltered)
        try:
            return super().changelist_view(request, extra_context)
        except UNSTORABLE:
            return HttpResponseRedirect(unfiltered)

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Model | None:
        """Return a row. An empty name of a field, which a link may contain, is ignored."""
        return super().get_object(request, object_id, from_field or None)

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Model], *args: Any, **kwargs: Any
    ) -> HttpResponse | None:
        if not all(map(str.isdecimal, request.POST.getlist(ACTION_CHECKBOX_NAME))):
            messages.error(request, _("The selection is not in the list. Nothing was changed."))
            return HttpResponseRedirect(request.get_full_path())
        return super().response_action(request, queryset, *args, **kwargs)

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Return the initial values in a link that are valid for their fields."""
        initial: dict[str, Any] = super().get_changeform_initial_data(request)
        for field in self.opts.concrete_fields:
            if isinstance(field, DateTimeField) and field.name in initial:
                text = initial.pop(field.name)
                with suppress(ValidationError):
                    initial[field.name] = within(field.to_python(text))
        return initial

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Open the folded sections that have values, and the tiers of a rule that has some."""
        adminform = context["adminform"]
        adminform.fieldsets = list(_shown_sections(adminform.form, adminform.fieldsets))
        for inline in context["inline_admin_formsets"]:
            if inline.formset.forms:
                inline.classes = ""
        return super().render_change_form(request, context, *args, **kwargs)

    def formfield_for_foreignkey(
        self, db_field: ForeignKey[Model, Model], request: HttpRequest, **kwargs: Any
    ) -> ModelChoiceField[Model] | None:
        if db_field.name in self.get_autocomplete_fields(request):
            kwargs.setdefault(
                "widget", Autocomplete(db_field, self.admin_site, using=kwargs.get("using"))
            )
        return super().formfield_for_foreignkey(db_field, request, **kwargs)


def _shown_sections(
    form: ModelForm[Model], sections: Iterable[tuple[Any, dict[str, Any]]]
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the sections of a form. Those with a value or an error are not folded.

    “Confirm” is only there if a warning asks for it.
    """
    for title, section in sections:
        names = flatten(section["fields"])
        if names == ["confirm"] and not getattr(form, "asks", False):
            continue
        classes = set(section.get("classes", ()))
        if "collapse" in classes and any(
            name in form.errors or _has_value(form, name) for name in names
        ):
            classes.remove("collapse")
        yield title, {**section, "classes": sorted(classes)}


def _has_value(form: ModelForm[Model], name: str) -> bool:
    """Return whether a field differs from its value in a new row."""
    default = vars(type(form.instance)()).get(name)
    if form.is_bound and name in form.fields:
        return form.fields[name].has_changed(default, form[name].value())
    value = form.initial.get(name, vars(form.instance).get(name))
    return value not in (default, None, "")


def audited(view: View) -> View:
    """Wrap a view: its changes are recorded as made by the user.

    It warns if saved changes are not live.
    """

    @wraps(view)
    def audited_view(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
        with acting(request.user):
            response = view(request, *args, **kwargs)
        is_saved = request.method == "POST" and getattr(response, "status_code", 0) == 302
        if is_saved and triggers.unpublished:
            messages.warning(request, _("Saved, but not published yet: %s") % triggers.unpublished)
        return response

    return audited_view
