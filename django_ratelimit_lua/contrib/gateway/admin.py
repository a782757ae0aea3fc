"""The clients of the gateway and their rights. A token is shown once, when it is created."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...admin.base import ActingAdmin, View
from ...admin.pages import page_response
from ...operations.formatting import moment_element
from .models import RateLimitClient

ALONE = "http://127.0.0.1:8001/ratelimit/decide"
"""The URL in the example if the site has no URLs of the gateway, which then runs by itself."""
EXAMPLE = """\
curl {url} \\
  --header 'Authorization: Bearer {token}' \\
  --data {data}"""
"""A shell command with which a client takes a unit of one of its limits."""


@admin.action(
    description=gettext_lazy("Revoke the tokens of the selected clients"), permissions=["change"]
)
def revoke(
    modeladmin: ActingAdmin, request: HttpRequest, queryset: QuerySet[RateLimitClient]
) -> None:
    """Revoke the tokens of clients, from the next request on."""
    for client in queryset.filter(is_active=True):
        client.is_active = False
        client.save(update_fields=["is_active"])
        modeladmin.log_change(request, client, [{"changed": {"fields": [str(_("active"))]}}])
    messages.success(request, _("Revoked. This applies to the next request."))


@admin.register(RateLimitClient)
class ClientAdmin(ActingAdmin):
    """The admin of the gateway's clients, with the limits they may use, and their last use."""

    list_display = ("name", "may_ask", "may_refund", "is_active", "used")
    list_filter = ("is_active", "may_refund")
    search_fields = ("name", "limits")
    fields = ("name", "limits", "may_refund", "is_active", "used")
    readonly_fields = ("used",)
    actions = (revoke,)

    @admin.display(description=gettext_lazy("may use"))
    def may_ask(self, client: RateLimitClient) -> SafeString:
        """Return the names of the limits that a client may use, one per line."""
        return format_html_join(mark_safe("<br>"), "{}", ((name,) for name in client.names()))

    @admin.display(description=gettext_lazy("last used"), ordering="last_used")
    def used(self, client: RateLimitClient) -> str:
        """Return when the client's token was last used, to the minute."""
        if client.last_used is None:
            return "—"
        return moment_element(client.last_used)

    def own_views(self) -> Iterable[tuple[str, View, str]]:
        return [("<int:pk>/token/", self.token_view, "token")]

    def save_model(self, request: HttpRequest, obj: Any, form: object, change: bool) -> None:
        """Save. A new client gets its token, which is shown on the next page and nowhere again."""
        if not change:
            obj.token = obj.new_token()
        super().save_model(request, obj, form, change)

    def response_add(
        self, request: HttpRequest, obj: Any, post_url_continue: object = None
    ) -> HttpResponse:
        """Show the token of a new client. There is no redirect, so no message stores the token."""
        return self._show(request, obj, obj.token)

    def token_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Replace the token of a client. The previous one becomes invalid."""
        client = get_object_or_404(RateLimitClient, pk=pk)
        if request.method != "POST" or not self.has_change_permission(request, client):
            raise PermissionDenied
        token = client.new_token()
        client.save(update_fields=["digest"])
        self.log_change(request, client, _("Token replaced."))
        return self._show(request, client, token)

    def _show(self, request: HttpRequest, client: RateLimitClient, token: str) -> HttpResponse:
        url = _decide_url(request)
        charge = {"limit": _limit(client), "identity": "example"}
        context = {
            "title": _("The token of %(client)s") % {"client": client},
            "client": client,
            "token": token,
            "url": url,
            "command": EXAMPLE.format(
                url=url or ALONE, token=token, data=shlex.quote(json.dumps({"charges": [charge]}))
            ),
        }
        response = page_response(self, request, "ratelimitclient/token.html", context)
        response.headers["Cache-Control"] = "no-store"
        return response


def _decide_url(request: HttpRequest) -> str:
    """Return the URL of `decide`; empty: the site does not serve it."""
    try:
        return request.build_absolute_uri(reverse("ratelimit-decide"))
    except NoReverseMatch:
        return ""


def _limit(client: RateLimitClient) -> str:
    """Return a limit that a client may use: an exact name, or the text before a star."""
    name = min(client.names(), key=lambda name: name.endswith("*"))
    return name.removesuffix("*") or "mail"
