"""The inspector: what holds for somebody at the moment, with buttons."""

from __future__ import annotations

import datetime
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import label_for_field
from django.core.exceptions import NON_FIELD_ERRORS, PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.translation import gettext as _

from ..conf import conf
from ..exceptions import StoreError
from ..models import RateLimitChange, RateLimitOverride, RateLimitRevision, RateLimitRule
from ..models.audit import acting, current_actor
from ..operations.described import build_request, find_user
from ..operations.explain import Explanation, explain, reset
from ..publishing.publish import primary
from .forms import DURATIONS, InspectForm, covers, own_address

BLOCK_PERMISSION = "django_ratelimit_lua.block_identity"


def may_inspect(request: HttpRequest) -> bool:
    """Whether the inspector answers them: who sees rules, or overrides."""
    view = ("view_ratelimitrule", "view_ratelimitoverride", "change_ratelimitoverride", "block_identity")
    return any(request.user.has_perm(f"django_ratelimit_lua.{permission}") for permission in view)


class Inspector(admin.ModelAdmin):  # type: ignore[type-arg]
    """The part of the admin of overrides that looks at one request."""

    def has_block_permission(self, request: HttpRequest) -> bool:
        """May block and unblock."""
        return request.user.has_perm(BLOCK_PERMISSION)

    def inspect_view(self, request: HttpRequest) -> HttpResponse:
        """What somebody meets: used, remaining, when it frees up; with buttons for those who may."""
        if not may_inspect(request):
            raise PermissionDenied
        may_act = self.has_block_permission(request)
        form = InspectForm(request.POST) if request.method == "POST" else InspectForm(initial={"path": "/"})
        context = {
            **self.admin_site.each_context(request),
            "title": _("Inspector"),
            "opts": self.opts,
            "form": form,
            "may_act": may_act,
            "may_see_overrides": self.has_view_permission(request),
            "ignores_address": callable(conf.IP_META_KEY),
            "durations": [(seconds, name) for seconds, name in DURATIONS.items() if seconds],
            "media": self.media,
        }
        if form.is_bound and form.is_valid():
            self._inspect(request, form, context, may_act)
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/django_ratelimit_lua/inspect.html", context)

    def _inspect(self, request: HttpRequest, form: InspectForm, context: dict[str, Any], may_act: bool) -> None:
        given = form.cleaned_data
        user = find_user(given["user"]) if given["user"] else None
        if given["user"] and user is None:
            form.add_error("user", _("No user has this name or primary key."))
            return
        name, _colon, value = given["header"].partition(":")
        headers = {name.strip(): value.strip()} if name else {}
        imagined = build_request(
            given["path"], given["method"], given["address"] or own_address(request), user, headers
        )
        action, _slash, target = request.POST.get("action", "").partition(":")
        if action:
            if not may_act:
                raise PermissionDenied
            with acting(request.user):
                self._act(request, action, target, explain(imagined), given, user)
        explanation = explain(imagined)
        if explanation.decision.source == "fallback":
            messages.warning(request, _("Redis is unavailable: the counts are not known."))
        context["found"] = explanation
        context["subjects"] = [
            (kind, label)
            for kind, label, there in (
                ("user", _("user %s") % user, user),
                ("address", given["address"], given["address"]),
                ("header", _("header %s") % name, name),
            )
            if there
        ]

    def _act(
        self, request: HttpRequest, action: str, target: str, explanation: Explanation, given: dict[str, Any], user: Any
    ) -> None:
        if action == "reset":
            self._reset(request, explanation, target)
            return
        subject = request.POST.get("subject", "")
        duration = request.POST.get("duration", "")
        if action not in ("exempt", "block") or duration not in DURATIONS or not duration:
            raise PermissionDenied
        override = RateLimitOverride(effect=action, created_by=current_actor(), reason=_("from the inspector"))
        override.ends = timezone.now() + datetime.timedelta(seconds=int(duration))
        if target:
            override.rule = RateLimitRule.objects.filter(name=target).first()
            if override.rule is None:  # Without a rule, it would be for all of them.
                messages.error(request, _("There is no rule “%(name)s” in the admin.") % {"name": target})
                return
        if subject == "user" and user is not None:
            override.user = user
        elif subject == "address" and given["address"]:
            override.network = given["address"]
            if action == "block" and covers(override.network, own_address(request) or ""):
                messages.error(request, _("This includes your own address: you would lock yourself out."))
                return
        elif subject == "header" and given["header"]:
            name, _colon, value = given["header"].partition(":")
            override.field = f"header:{name.strip()}"
            override.set_value(value.strip())
        else:
            messages.error(request, _("Enter who it is: a user, an address or a header."))
            return
        try:
            override.full_clean(exclude=["subject", "kind"])
        except ValidationError as error:
            for name, problems in error.message_dict.items():
                label = label_for_field(name, RateLimitOverride) if name != NON_FIELD_ERRORS else ""
                messages.error(request, f"{label}: {' '.join(problems)}" if label else " ".join(problems))
            return
        override.save()
        self.log_addition(request, override, _("From the inspector."))
        done = _("%(whom)s is exempt") if action == "exempt" else _("%(whom)s is blocked")
        messages.success(request, f"{done % {'whom': override.whom()}} {DURATIONS[duration]}.")

    def _reset(self, request: HttpRequest, explanation: Explanation, target: str) -> None:
        try:
            if explanation.decision.source == "fallback":
                raise StoreError(_("Redis is unavailable"))
            names = reset(explanation, {target} if target else None)
        except StoreError as error:
            messages.error(request, _("Nothing was reset: %s") % error)
            return
        identities = {limit.charge.digest.decode() for limit in explanation.met}
        RateLimitChange.objects.create(
            revision=RateLimitRevision.read(primary()).revision,
            by=current_actor(), kind=RateLimitChange.Kind.IDENTITY, action=RateLimitChange.Action.ENDED,
            name=", ".join(names)[:300], after={"digests": sorted(identities)},
        )  # fmt: skip
        for limit in explanation.met:
            if limit.name in names and limit.rule is not None and limit.rule.pk:
                rule = RateLimitRule.objects.filter(pk=limit.rule.pk).first()
                if rule is not None:
                    self.log_change(request, rule, _("Reset counts in the inspector."))
        messages.success(request, _("Counts are reset: %(names)s.") % {"names": ", ".join(names) or "—"})
