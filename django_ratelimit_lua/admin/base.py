"""What our pages have in common: changes are recorded as made by the logged-in user, and odd values
are no failure.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.widgets import AutocompleteSelect
from django.core.exceptions import ValidationError
from django.db.models import DateTimeField, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from ..models.audit import acting
from ..models.override import within
from ..publishing import triggers
from ..rules.rule import UNWRITABLE


def is_key(field: Any, value: Any) -> bool:
    """Whether that can be a value of a key at all.

    Django asks the database for whatever is sent, which fails.
    """
    try:
        field.clean(value, None)
    except ValidationError:
        return False
    return True


class Autocomplete(AutocompleteSelect):
    """Django's, which also shows a form again in which something else than a key was sent."""

    def optgroups(self, name: str, value: Any, attr: Any = None) -> Any:
        key = self.field.remote_field.model._meta.pk
        return super().optgroups(
            name, [chosen for chosen in value if not chosen or is_key(key, chosen)], attr
        )


class ActingAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """A `ModelAdmin` that records changes as made by the logged-in user, and has an answer to
    whatever is sent.
    """

    class Media:
        css = {"all": ("django_ratelimit_lua/admin.css",)}  # noqa: RUF012 - Django's way

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        with acting(request.user):
            return with_warnings(request, super().changeform_view(request, *args, **kwargs))

    def changelist_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        texts = [text for _name, values in request.GET.lists() for text in values]
        if any(UNWRITABLE.search(text) for text in texts):
            return HttpResponseRedirect(
                f"{request.path}?e=1"
            )  # Django's answer to a filter that it cannot apply.
        with acting(request.user):
            return with_warnings(request, super().changelist_view(request, *args, **kwargs))

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: Any = None
    ) -> HttpResponse:
        with acting(request.user):
            response: HttpResponse = with_warnings(
                request, super().delete_view(request, object_id, extra_context)
            )
            return response

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        """A row. An empty name of a field, as a link may have it, is ignored."""
        return super().get_object(request, object_id, from_field or None)

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **kwargs: Any
    ) -> Any:
        chosen = request.POST.getlist(ACTION_CHECKBOX_NAME)
        if not all(is_key(self.opts.pk, key) for key in chosen):
            messages.error(request, _("The selection is not in the list. Nothing was changed."))
            return HttpResponseRedirect(request.get_full_path())
        return super().response_action(request, queryset, *args, **kwargs)

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """The initial values of a link, if they are valid for their fields."""
        initial: dict[str, Any] = dict(super().get_changeform_initial_data(request))
        for field in self.opts.concrete_fields:
            if isinstance(field, DateTimeField) and field.name in initial:
                try:
                    initial[field.name] = within(field.to_python(initial[field.name]))
                except ValidationError:
                    del initial[field.name]
        return initial

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name in self.get_autocomplete_fields(request):
            kwargs.setdefault(
                "widget", Autocomplete(db_field, self.admin_site, using=kwargs.get("using"))
            )
        return super().formfield_for_foreignkey(db_field, request, **kwargs)


def with_warnings(request: HttpRequest, response: Any) -> Any:
    """The response, with a warning if what was saved is not live."""
    is_saved = request.method == "POST" and getattr(response, "status_code", 0) == 302
    if is_saved and triggers.unpublished:
        messages.warning(request, _("Saved, but not live yet: %s") % triggers.unpublished)
    return response
