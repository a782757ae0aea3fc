"""The inspector: the limits that apply to a client at the moment, with buttons."""

from __future__ import annotations

import datetime
import re
from typing import Any, NamedTuple

from django.contrib import admin, messages
from django.contrib.admin.utils import label_for_field
from django.core.exceptions import NON_FIELD_ERRORS, PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..conf import conf
from ..exceptions import StoreError
from ..extension import extensions
from ..identity.forwarded import covers
from ..identity.names import original
from ..limits.ban import Ban
from ..limits.decision import LimitState
from ..models import RateLimitOverride, RateLimitRule
from ..models.audit import acting
from ..operations.explain import ExplainedLimit, Explanation, explain, reset
from ..operations.formatting import moment_words
from ..operations.identity import ExplainedIdentity, explain_identity
from ..operations.subjects import Subject, add, end
from ..publishing import triggers
from ..rules.describe import field_words, key_label
from ..web.durations import duration_words
from ..web.overrides import is_unknown
from .forms import DURATIONS, own_address, own_digests, own_proxy
from .history import WHO
from .pages import Page, page_response
from .request_form import ReferenceForm, RequestDescription, RequestForm
from .times import moment_element

BLOCK_PERMISSION = "django_ratelimit_lua.block_identity"
HOUR, FOR_GOOD = "3600", ""
_IS_DIGEST = re.compile("[0-9a-f]{32}").fullmatch
HOW_LONG = DURATIONS | {FOR_GOOD: gettext_lazy("for good")}


def may_inspect(request: HttpRequest) -> bool:
    """Whether the user may use the inspector: who may see rules, or overrides."""
    view = (
        "view_ratelimitrule",
        "view_ratelimitoverride",
        "change_ratelimitoverride",
        "block_identity",
    )
    return any(request.user.has_perm(f"django_ratelimit_lua.{permission}") for permission in view)


class Row(NamedTuple):
    """A limit as the page shows it.

    `verdict` is "refused", "allowed", "exempt", or "over": it does not refuse. `history`: what is
    known of the client that it counts.
    """

    met: ExplainedLimit
    verdict: str
    words: str
    resets: str
    history: str = ""


class Pending(NamedTuple):
    """Actions that need a confirmation."""

    action: str
    subject: str
    duration: str
    title: str
    consequence: str
    button: str
    warnings: list[str]
    label: str


class InspectorPage(Page):
    """The entry of the inspector in the index."""

    may_see = staticmethod(may_inspect)

    def view(self, request: HttpRequest) -> HttpResponse:
        return HttpResponseRedirect(
            reverse("admin:django_ratelimit_lua_inspect", current_app=self.admin_site.name)
        )


class Inspector(admin.ModelAdmin):  # type: ignore[type-arg]
    """The part of the admin of overrides that looks at one request."""

    def has_block_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(BLOCK_PERMISSION)

    def inspect_view(self, request: HttpRequest) -> HttpResponse:
        """The limits that apply to a request: used, remaining, when units get free.

        With buttons for users with permission.

        The URL describes the request, so that it can be shared. Buttons send to the same URL.
        """
        if not may_inspect(request):
            raise PermissionDenied
        given = request.POST if "path" in request.POST else request.GET
        form = RequestForm(given if "path" in given else None, own_address(request), request.GET)
        may_act = self.has_block_permission(request)
        reference = ReferenceForm(
            request.GET if "reference" in request.GET else None, label_suffix=""
        )
        context: dict[str, Any] = {
            "title": _("Inspector"),
            "form": form,
            "reference": reference,
            "may_act": may_act,
            "may_see_overrides": self.has_view_permission(request),
            "may_see_rules": request.user.has_perm("django_ratelimit_lua.view_ratelimitrule"),
            "ignores_address": callable(conf.IP_META_KEY),
            "durations": [(seconds, words) for seconds, words in HOW_LONG.items()],
            "hour": HOUR,
        }
        if reference.is_bound and reference.is_valid():
            context["opened"] = reference.opened
        name, digest = request.GET.get("name", ""), request.GET.get("digest", "")
        if name and _IS_DIGEST(digest):
            identity = explain_identity(name, digest)
            if request.POST.get("action"):
                if not may_act or request.POST["action"] != "reset":
                    raise PermissionDenied
                with acting(request.user):
                    self._reset_found(request, identity.found, "")
                return HttpResponseRedirect(request.get_full_path())
            context |= _identified(request, identity)
        description = form.description if form.is_bound and form.is_valid() else None
        if description is not None:
            if request.POST.get("action"):
                if not may_act:
                    raise PermissionDenied
                with acting(request.user):
                    pending = self._act(request, description)
                if pending is None:
                    return HttpResponseRedirect(f"{request.path}?{form.query}")
                context["pending"] = pending
            context |= self._found(request, description)
            if "opened" in context:
                context["is_of"] = context["opened"].is_of(context["found"])
        return page_response(self, request, "inspect.html", context)

    def _found(self, request: HttpRequest, description: RequestDescription) -> dict[str, Any]:
        """The page's context for the request."""
        found = explain(description.request())
        named = _subjects(description, found)
        if found.decision.source == "fallback":
            messages.warning(request, _("Redis is unavailable: the counts are not known."))
        return {
            "found": found,
            "findings": [
                (finding, any(map(request.user.has_perm, finding.permissions)))
                for finding in found.findings
            ],
            "rows": [_row(met)._replace(history=_history(met)) for met in found.met],
            "reasons": [_reason(met) for met in found.met if met.refuses],
            "missing": [(field, field_words(field)) for field in found.missing],
            "subjects": [(name, str(subject)) for name, subject in named.items()],
            "may_label": any(subject.field or subject.digest for subject in named.values()),
            "counted": _counted(found, named),
            "network": description.address if description.network_size > 1 else "",
            "network_overrides": description.network_overrides(),
            "looked_at": description.request().META.get("REMOTE_ADDR"),
        }

    def _act(self, request: HttpRequest, description: RequestDescription) -> Pending | None:
        """Perform the action of a button, or return what needs confirmation first."""
        action, _colon, target = request.POST["action"].partition(":")
        if action == "reset":
            self._reset(request, description, target)
        elif action == "end":
            self._end(request, description, target)
        elif action in ("exempt", "block"):
            return self._override(request, description, action, target)
        else:
            raise PermissionDenied
        return None

    def _override(
        self, request: HttpRequest, description: RequestDescription, action: Any, target: str
    ) -> Pending | None:
        kind, duration = request.POST.get("subject", ""), request.POST.get("duration", HOUR)
        if duration not in HOW_LONG:
            raise PermissionDenied
        rule = RateLimitRule.objects.named(target).first() if target else None
        if target and rule is None:  # Without a rule, it would be for all of them.
            messages.error(
                request, _("There is no rule “%(name)s” in the admin.") % {"name": target}
            )
            return None
        subject = _subjects(description, explain(description.request())).get(kind)
        if subject is None:
            messages.error(
                request, _("Enter who it is: a user, an address, or a field and its value.")
            )
            return None
        if action == "block" and _is_oneself(request, subject):
            messages.error(request, _("This includes yourself: you would lock yourself out."))
            return None
        seconds = int(duration) if duration else None
        client = request.POST.get("label", "").strip() if subject.field or subject.digest else ""
        try:
            override = subject.override(
                action, seconds, rule=rule, reason=_("from the inspector"), label=client
            )
        except ValidationError as error:
            for name, problems in error.message_dict.items():
                label = label_for_field(name, RateLimitOverride) if name != NON_FIELD_ERRORS else ""
                messages.error(
                    request, f"{label}: {' '.join(problems)}" if label else " ".join(problems)
                )
            return None
        words = {"client": subject, "duration": HOW_LONG[duration]}
        warnings = subject.confirmations(action, own_proxy(request))
        if request.POST.get("confirm") != "yes" and (
            action == "block" or duration == FOR_GOOD or warnings
        ):
            return _pending(request.POST["action"], kind, duration, words, warnings)._replace(
                label=client
            )
        (there,) = add([override])
        if there is override:
            self.log_addition(request, override, _("From the inspector."))
        else:
            messages.info(request, _("The same override is there already, so none was added."))
        if action == "block":
            messages.success(request, _("%(client)s is blocked %(duration)s.") % words)
        else:
            messages.success(request, _("%(client)s is exempt %(duration)s.") % words)
        if subject.user is not None:
            text = _(
                "This holds only while %(client)s is logged in, not at a login form. Enter its "
                "field for that."
            )
            messages.warning(request, text % words)
        if triggers.unpublished:
            messages.warning(request, _("Saved, but not live yet: %s") % triggers.unpublished)
        return None

    def _end(self, request: HttpRequest, description: RequestDescription, target: str) -> None:
        """End an override that the request meets."""
        found = explain(description.request())
        overrides = [found.block, *(met.override for met in found.met)]
        overrides += [one.override for one in description.network_overrides()]
        ending = [
            override
            for override in overrides
            if override is not None and str(override.pk) == target
        ][:1]
        ended = end(ending)
        for override in ended:
            self.log_change(request, override, _("Ended."))
        for name in dict.fromkeys(map(str, ended)):
            messages.success(request, _("Ended: %(override)s.") % {"override": name})
        if not ending:
            messages.warning(
                request, _("This has ended already, or this request does not meet it any more.")
            )

    def _reset(self, request: HttpRequest, description: RequestDescription, target: str) -> None:
        self._reset_found(request, explain(description.request()), target)

    def _reset_found(self, request: HttpRequest, explanation: Explanation, target: str) -> None:
        names = [met.name for met in explanation.met if target in ("", met.name)]
        try:
            done = reset(explanation, {target} if target else None)
        except StoreError as error:
            messages.error(request, _("Nothing was reset: %s") % error)
            return
        for limit in explanation.met:
            if limit.name in done and limit.rule is not None and limit.rule.pk:
                rule = RateLimitRule.objects.filter(pk=limit.rule.pk).first()
                if rule is not None:
                    self.log_change(request, rule, _("Reset counts in the inspector."))
        if done:
            messages.success(
                request, _("Counts are reset: %(names)s.") % {"names": ", ".join(done)}
            )
        elif names:
            text = _("Nothing was reset: for this request, nothing is counted under %(names)s.")
            messages.warning(request, text % {"names": ", ".join(names)})
        else:
            messages.warning(request, _("Nothing was reset: this request meets no limit."))


def _identified(request: HttpRequest, identity: ExplainedIdentity) -> dict[str, Any]:
    """Return the page's context for the digest of an identity."""
    found = identity.found
    if found.decision.source == "fallback":
        messages.warning(request, _("Redis is unavailable: the counts are not known."))
    last = identity.offences[-1] if identity.offences and request.user.has_perm(WHO) else None
    return {
        "identity": identity,
        "identity_rows": [_row(met)._replace(history=_history(met)) for met in found.met],
        "identity_reasons": [_reason(met) for met in found.met if met.refuses],
        "identity_last": last if last is not None and last.path else None,
        "identity_last_at": moment_element(_moment(last.moment)) if last is not None else "",
    }


def _subjects(description: RequestDescription, found: Explanation) -> dict[str, Subject]:
    """The subjects that overrides can be about: each that was entered by itself, and the clients of
    the limits that the request meets, those first that refuse it.

    Of these, only the digest is known.
    """
    named = description.subjects
    known = {subject.client() for subject in named.values()}
    for met in sorted(found.met, key=lambda met: not met.refuses):
        client = met.charge.digest.decode()
        identity = original(None if met.planned is None else met.planned.identity)
        if (
            met.key
            and client not in known
            and description.network_size == 1
            and not is_unknown(identity)
        ):
            named.setdefault(met.key, Subject(digest=client, label=key_label(met.key.split("+"))))
    return named


def _counted(found: Explanation, named: dict[str, Subject]) -> str:
    """Which of them the limit counts that refuses the request; empty if none does."""
    refusing = [met.charge.digest.decode() for met in found.met if met.refuses]
    return next(
        (
            name
            for client in refusing
            for name, subject in named.items()
            if subject.client() == client
        ),
        "",
    )


def _is_oneself(request: HttpRequest, subject: Subject) -> bool:
    """Whether the operator's own requests are meant.

    A value that the operator sends can be left out.
    """
    is_own_network = bool(subject.address) and covers(subject.address, own_address(request) or "")
    return is_own_network or subject.client() in own_digests(request)


def _pending(
    action: str, subject: str, duration: str, words: dict[str, Any], warnings: list[str]
) -> Pending:
    if action.startswith("block"):
        title = _("Block %(client)s %(duration)s?")
        consequence = _(
            "Until the block ends, every request of theirs is refused, whatever it asks for: "
            "%(client)s."
        )
        button = _("Block %(client)s")
    else:
        title = _("Exempt %(client)s %(duration)s?")
        consequence = _("No limit applies to them until the exemption ends: %(client)s.")
        button = _("Exempt %(client)s")
        if duration == FOR_GOOD:
            consequence = _("No limit applies to them until the exemption is ended: %(client)s.")
            button = _("Exempt %(client)s for good")
    return Pending(
        action, subject, duration, title % words, consequence % words, button % words, warnings, ""
    )


def _row(met: ExplainedLimit) -> Row:
    state = met.state
    if state is None:
        return Row(met, "exempt", capfirst(_("exempt")), "")
    if state.allowed:
        return Row(met, "allowed", _("Allowed"), _resets(state))
    if not met.refuses:
        return Row(met, "over", _("Over the limit, but does not refuse"), _resets(state))
    if state.is_slots and state.retry_after is not None and state.banned_until is None:
        words = _("Refused: %(used)s of %(limit)s slots are in use") % {
            "used": state.used,
            "limit": state.limit,
        }
        return Row(met, "refused", words, _resets(state))
    again = (
        _("never") if state.retry_after is None else _("in %s") % duration_words(state.retry_after)
    )
    return Row(met, "refused", _("Refused; allowed again: %s") % again, _resets(state))


def _reason(met: ExplainedLimit) -> str:
    """Why a limit refuses, in one sentence."""
    state = met.state
    assert state is not None
    again = (
        _("never") if state.retry_after is None else _("in %s") % duration_words(state.retry_after)
    )
    words = {
        "name": met.counted_as or met.name,
        "limit": state.limit,
        "used": state.used,
        "again": again,
    }
    if state.ban is not None and state.banned_until is not None:
        return _banned(met.counted_as or met.name, state.ban, state.banned_until)
    if state.is_slots and state.retry_after is not None:
        return (
            _(
                "Refused by %(name)s: %(used)s of %(limit)s slots are in use; one may be free at "
                "any moment."
            )
            % words
        )
    since = _counted_since(met, state)
    if since is None:
        return _("Refused by %(name)s: %(used)s of %(limit)s used, frees up %(again)s.") % words
    text = _(
        "Refused by %(name)s: %(used)s of %(limit)s used, frees up %(again)s; used %(used)s since "
        "%(moment)s."
    )
    return text % {**words, "moment": moment_words(since)}


def _banned(name: str, ban: Ban, until: datetime.datetime) -> str:
    """Why a ban refuses, in one sentence."""
    words = {
        "name": name,
        "until": moment_words(until),
        "since": moment_words(_moment(ban.first or ban.since)),
    }
    if ban.by_hand:
        return _("Banned by %(name)s by hand, since %(since)s until %(until)s.") % words
    text = ngettext(
        "Banned by %(name)s until %(until)s; %(offences)d offence since %(since)s.",
        "Banned by %(name)s until %(until)s; %(offences)d offences since %(since)s.",
        ban.offences,
    )
    return text % {**words, "offences": ban.offences}


def _moment(microseconds: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(microseconds / 1e6, datetime.UTC)


def _counted_since(met: ExplainedLimit, state: LimitState) -> datetime.datetime | None:
    """The moment from which the units count; None if they drain continuously, as from a bucket."""
    kind = met.charge.limit.kind
    if kind.is_bucket or kind.holds:
        return None
    seconds = state.period - state.reset_after if kind.ends_together else state.period
    return timezone.now() - datetime.timedelta(seconds=seconds)


def _history(met: ExplainedLimit) -> str:
    """What annexes know about the client that a limit counts."""
    return " ".join(filter(None, (extension.history(met) for extension in extensions)))


def _resets(state: LimitState) -> str:
    return duration_words(state.reset_after) if state.used or state.reset_after else "—"
