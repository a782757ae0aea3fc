"""The list of breakers in the admin: their states, and buttons to force one."""

from __future__ import annotations

from contextlib import suppress

from django.contrib import admin, messages
from django.core.exceptions import BadRequest, PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from ...admin.pages import ActingAdmin, page_response
from ...exceptions import StoreError
from .models import RateLimitBreaker
from .shared_state import NAME, read_states, shared_states


@admin.register(RateLimitBreaker)
class BreakerAdmin(ActingAdmin):
    """The admin of breakers: one page."""

    readonly_fields = ("name",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def changelist_view(self, request: HttpRequest, extra_context: object = None) -> HttpResponse:
        """Show the breakers of this process and those used lately, or force the state of one."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        may_change = self.has_change_permission(request)
        if request.method == "POST":
            if not may_change:
                raise PermissionDenied
            self._force(request, request.POST.get("name", ""), request.POST.get("forced"))
            return HttpResponseRedirect(request.get_full_path())
        rows = {row.name: row for row in RateLimitBreaker.objects.all()}
        names = {*rows, *(state.name for state in shared_states())}
        states = dict.fromkeys(sorted(names), "")
        with suppress(StoreError):  # The page says it.
            states = read_states(names)
        context = {
            "title": capfirst(str(self.opts.verbose_name_plural)),
            "breakers": [(name, state, rows.get(name)) for name, state in states.items()],
            "may_change": may_change,
            "choices": RateLimitBreaker.Forced,
        }
        return page_response(self, request, "overview.html", context)

    def _force(self, request: HttpRequest, name: str, forced: str | None) -> None:
        """Store a forced state, write it to the history, and inform the operator."""
        if not NAME.fullmatch(name) or forced not in RateLimitBreaker.Forced.values:
            raise BadRequest("Unknown breaker or state.")
        row, _is_new = RateLimitBreaker.objects.update_or_create(
            name=name, defaults={"forced": forced}
        )
        text = _("Breaker “%(name)s”: %(state)s")
        text %= {"name": name, "state": row.get_forced_display()}
        self.log_change(request, row, text)
        messages.success(request, text)
