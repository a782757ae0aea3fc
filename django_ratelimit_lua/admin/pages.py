"""Pages about no model, and their entries in the admin's index, which lists only models."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models.options import Options
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import path


def page_response(
    model_admin: Any, request: HttpRequest, template: str, context: dict[str, Any]
) -> TemplateResponse:
    """Render a page in the frame of the admin.

    `context` has its title; `template` is one of the app that registered it.
    """
    request.current_app = model_admin.admin_site.name
    frame = {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "media": model_admin.media,
    }
    return TemplateResponse(
        request, f"admin/{model_admin.opts.app_label}/{template}", {**frame, **context}
    )


VIEW_RULES = "django_ratelimit_lua.view_ratelimitrule"


class Page(admin.ModelAdmin):  # type: ignore[type-arg]
    """A page of its own: `view` answers requests of users if `may_see` is true for them."""

    class Media:
        css = {"all": ("django_ratelimit_lua/admin.css",)}  # noqa: RUF012 - Django's way

    @staticmethod
    def may_see(request: HttpRequest) -> bool:
        """Whether the user may see the page."""
        raise NotImplementedError

    def view(self, request: HttpRequest) -> HttpResponse:
        raise NotImplementedError

    def get_urls(self) -> list[Any]:
        """The one page, at the URL where the admin expects the list of a model."""
        name = f"{self.opts.app_label}_{self.opts.model_name}_changelist"
        return [path("", self.admin_site.admin_view(self.page_view), name=name)]

    def page_view(self, request: HttpRequest) -> HttpResponse:
        """The page, for users who may see it."""
        if not self.may_see(request):
            raise PermissionDenied
        return self.view(request)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.may_see(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.may_see(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def register_page(
    name: str,
    title: Any,
    page: type[admin.ModelAdmin],  # type: ignore[type-arg]
    app: str = "django_ratelimit_lua",
) -> None:
    """Register a page with the admin, as a model of an app that has no table."""
    options: Any = Options(None, app)
    options.object_name = name
    options.model_name = name.lower()
    options.verbose_name = title
    options.verbose_name_plural = title
    admin.site.register([type(name, (), {"_meta": options})], page)
