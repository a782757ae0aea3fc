"""The inspector: the limits that apply to a client at the moment, with buttons."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..conf import conf
from ..exceptions import StoreError
from ..identity.forwarded import covers
from ..identity.names import Name, original
from ..limits.ban import Ban
from ..limits.decision import LimitState
from ..models import RateLimitOverride, RateLimitRule
from ..operations.admin_urls import admin_url
from ..operations.call_sites import rule_names
from ..operations.confirmations import override_confirmations
from ..operations.explain import ExplainedLimit, Explanation, explain, reset
from ..operations.formatting import moment_words
from ..operations.reference import OpenedReference
from ..operations.subjects import Subject, add, end
from ..rules.describe import key_label
from ..web.durations import duration_words
from ..web.overrides import is_unknown
from .client_links import client_links, known_clients
from .forms import DURATIONS, own_address, own_digests, own_proxy
from .identities import may_see_names, may_see_overrides, override_words
from .pages import Context, Page, may, may_see_rules, page_response
from .request_form import ReferenceForm, RequestForm

HOUR = "3600"
FOR_GOOD = ""
HOW_LONG = DURATIONS | {FOR_GOOD: gettext_lazy("for good")}
DONE = {
    "block": gettext_lazy("%(client)s is blocked %(duration)s."),
    "exempt": gettext_lazy("%(client)s is exempt %(duration)s."),
}


def may_inspect(request: HttpRequest) -> bool:
    """Return whether the user may use the inspector: any user who may see rules or overrides."""
    return may_see_rules(request) or may_see_overrides(request)


def save_override(
    model_admin: Any,
    request: HttpRequest,
    override: RateLimitOverride,
    placeholders: Context,
    origin: str,
) -> None:
    """Save an override, log it with its origin, and show a message.

    `placeholders` contains the client and the duration for the message.
    """
    if add([override]) == [override]:
        model_admin.log_addition(request, override, origin)
    else:
        messages.info(request, _("The same override is already present, so none was added."))
    messages.success(request, DONE[override.effect] % placeholders)


def end_override(
    model_admin: Any,
    request: HttpRequest,
    overrides: Iterable[RateLimitOverride],
    key: str,
    problem: str,
) -> None:
    """End the override with this key, and log and report the end.

    If there is no such override, show `problem` instead.
    """
    chosen = [override for override in overrides if str(override.pk) == key]
    if not chosen:
        messages.warning(request, problem)
        return
    ended = end(chosen)
    for override in ended:
        model_admin.log_change(request, override, _("Ended."))
    for words in dict.fromkeys(override_words(request, override) for override in ended):
        messages.success(request, _("Ended: %(override)s.") % {"override": words})


def reset_counts(model_admin: Any, request: HttpRequest, found: Explanation, target: str) -> None:
    """Reset the counts under the limit of this name (empty: all), and report it."""
    names = {limit.name: limit.rule for limit in found.met if target in ("", limit.name)}
    try:
        done = reset(found, set(names))
    except StoreError as error:
        messages.error(request, _("Nothing was reset: %s") % error)
        return
    pks = [rule.pk for rule in map(names.get, done) if rule and rule.pk]
    for row in RateLimitRule.objects.filter(pk__in=pks):
        model_admin.log_change(request, row, _("Reset counts in the inspector."))
    if done:
        messages.success(request, _("Counts are reset: %(names)s.") % {"names": ", ".join(done)})
    else:
        messages.warning(request, _("Nothing was reset: no limit counts this request."))


def block_words(block: RateLimitOverride) -> str:
    """Return the state of a client that an override blocks, in words."""
    if block.ends is None:
        return _("Blocked by an override, for good")
    return _("Blocked by an override until %(until)s") % {"until": moment_words(block.ends)}


class InspectorPage(Page):
    """The entry of the inspector in the admin's index."""

    may_see = staticmethod(may_inspect)

    def view(self, request: HttpRequest) -> HttpResponse:
        return redirect(admin_url(request, "django_ratelimit_lua_inspect"))


class Inspector(admin.ModelAdmin):  # type: ignore[type-arg]
    """The part of the admin of overrides that inspects one request."""

    def has_block_permission(self, request: HttpRequest) -> bool:
        return may(request, "block_identity")

    def inspect_view(self, request: HttpRequest) -> HttpResponse:
        """Show the limits that apply to a request, with buttons for users with permission.

        The URL describes the request, so that it can be shared. Buttons send to the same URL.
        """
        action = request.POST.get("action", "")
        if not may_inspect(request) or (action and not self.has_block_permission(request)):
            raise PermissionDenied
        entered = next((data for data in (request.POST, request.GET) if "path" in data), None)
        form = RequestForm(entered, own_address(request), request.GET)
        looked_up = request.GET if "reference" in request.GET else None
        reference = ReferenceForm(looked_up, label_suffix="")
        context: Context = {
            "title": _("Inspector"),
            "form": form,
            "reference": reference,
            "may_see_overrides": self.has_view_permission(request),
            "may_see_names": may_see_names(request),
            "ignores_address": callable(conf.IP_META_KEY),
            "durations": HOW_LONG.items(),
            "hour": HOUR,
        }
        if reference.is_valid():
            context |= _opened(request, reference.opened)
        if form.is_valid():
            if action:
                pending = self._act(request, form, action)
                if pending is None:
                    return HttpResponseRedirect(f"{request.path}?{form.query}")
                context["pending"] = pending
            context |= self._found(request, form)
            if "opened" in context:
                context["is_of"] = context["opened"].is_of(context["found"])
        return page_response(self, request, "inspect.html", context)

    def _found(self, request: HttpRequest, form: RequestForm) -> Context:
        """Return the page's context for the request."""
        described = form.build()
        found = explain(described)
        subjects = _subjects(form, found)
        rows = limit_rows(request, found)
        block = next(filter(None, [found.block, *(row.get("block") for row in rows)]), None)
        reasons = {row["reason"]: row.get("block") for row in rows if "reason" in row}
        return {
            "found": found,
            "blocked_by": block,
            "lead": block and block_words(block),
            "reasons": [reason for reason, by in reasons.items() if by is None or by != block],
            "rows": rows,
            "subjects": [(name, str(subject)) for name, subject in subjects.items()],
            "may_label": any(subject.field or subject.digest for subject in subjects.values()),
            "counted": _counted(found, subjects),
            "network_overrides": form.network_overrides(),
            "looked_at": described.META.get("REMOTE_ADDR"),
        }

    def _act(self, request: HttpRequest, form: RequestForm, button: str) -> Context | None:
        """Perform the action of a button, or return the warnings to confirm first."""
        action, _colon, target = button.partition(":")
        found = explain(form.build())
        if action == "reset":
            reset_counts(self, request, found, target)
        elif action == "end":
            overrides = [found.block, *(limit.override for limit in found.met)]
            overrides += [one.override for one in form.network_overrides()]
            problem = _("This override has already ended, or no longer applies to this request.")
            end_override(self, request, filter(None, overrides), target, problem)
        elif action in DONE:
            try:
                return self._override(request, form, found, action, target)
            except ValidationError as error:
                for text in error.messages:
                    messages.error(request, text)
        else:
            raise PermissionDenied
        return None

    def _override(
        self, request: HttpRequest, form: RequestForm, found: Explanation, action: Any, target: str
    ) -> Context | None:
        """Add an override. Raises `ValidationError` if it is invalid."""
        kind = request.POST.get("subject", "")
        duration = request.POST.get("duration", HOUR)
        if duration not in HOW_LONG:
            raise PermissionDenied
        if target and target not in rule_names():
            raise ValidationError(_("There is no rule “%(name)s”.") % {"name": target})
        subject = _subjects(form, found).get(kind)
        if subject is None:
            raise ValidationError(
                _("Enter the client: a user, an address, or a field and its value.")
            )
        if action == "block" and _is_oneself(request, subject):
            raise ValidationError(_("This includes your own account: you would lock yourself out."))
        is_unnamed = subject.field or subject.digest
        label = request.POST.get("label", "").strip() if is_unnamed else ""
        seconds = int(duration or 0) or None
        reason = _("from the inspector")
        override = subject.override(action, seconds, rule=target, reason=reason, label=label)
        placeholders = {"client": subject, "duration": HOW_LONG[duration]}
        warnings = override_confirmations([subject.address], own_proxy(request))
        if request.POST.get("confirm") != "yes" and (
            action == "block" or duration == FOR_GOOD or warnings
        ):
            return {
                "button": request.POST["action"],
                "is_block": action == "block",
                "subject": kind,
                "duration": duration,
                "placeholders": placeholders,
                "warnings": warnings,
                "label": label,
            }
        save_override(self, request, override, placeholders, _("From the inspector."))
        if subject.user is not None:
            text = _(
                "This applies only while %(client)s is logged in, not at a login form. To "
                "cover a login form, enter its field."
            )
            messages.warning(request, text % placeholders)
        return None


def _opened(request: HttpRequest, opened: OpenedReference) -> Context:
    """Return the page's context for a reference, with links to the clients that it may name."""
    names = {limit.place for limit in opened.limits}
    name = names.pop() if len(names) == 1 else ""
    known = {each.client_digest: Name() for each in opened.overrides if each.client_digest}
    try:
        if not opened.is_block:
            known |= known_clients(request, opened.digest_prefix, name)
    except StoreError as error:
        messages.warning(request, _("Redis is unavailable: %s") % error)
    links = client_links(request, sorted(known.items()), name)
    return {"opened": opened, "clients": links}


def _subjects(form: RequestForm, found: Explanation) -> dict[str, Subject]:
    """Return the possible subjects of overrides, by name.

    They are the values that were entered, and the clients that the limits of the request count.
    Clients of limits that refuse come first. Only the digests of the clients are known.
    """
    named = form.subjects
    if form.is_network:
        return named
    known = {subject.client() for subject in named.values()}
    for limit in sorted(found.met, key=lambda limit: not limit.refuses):
        client = limit.charge.digest.decode()
        is_known = client in known or is_unknown(original(limit.planned.identity))
        if limit.key and not is_known:
            label = key_label(limit.key.split("+"))
            named.setdefault(limit.key, Subject(digest=client, label=label))
    return named


def _counted(found: Explanation, subjects: dict[str, Subject]) -> str:
    """Return the name of the subject that a refusing limit counts, or an empty string."""
    names = {subject.client(): name for name, subject in reversed(subjects.items())}
    refusing = [limit.charge.digest.decode() for limit in found.met if limit.refuses]
    return next((names[client] for client in refusing if client in names), "")


def _is_oneself(request: HttpRequest, subject: Subject) -> bool:
    """Return whether the subject includes the operator's own requests.

    Values that the operator could omit are not considered.
    """
    is_own_network = bool(subject.address) and covers(subject.address, own_address(request))
    return is_own_network or subject.client() in own_digests(request)


def limit_rows(request: HttpRequest, found: Explanation) -> list[Context]:
    """Return the limits as the page shows them."""
    if found.decision.source == "fallback":
        messages.warning(request, _("Redis is unavailable: the counts are unknown."))
    rows = []
    for limit in found.met:
        row: Context = {"limit": limit, "verdict": _verdict(limit)}
        block = _block(limit)
        if block is not None:
            row |= {"verdict": "blocked", "reason": block_words(block), "block": block}
        elif limit.refuses and limit.state is not None:
            row |= {"reason": _reason(limit), "again": _again(limit.state)}
        rows.append(row)
    return rows


def _block(limit: ExplainedLimit) -> RateLimitOverride | None:
    """Return the override that blocks all requests that this limit counts, or None."""
    is_enforced = limit.state and limit.state.enforced and not limit.is_advice
    if is_enforced and limit.override and limit.override.effect == "block":
        return limit.override
    return None


def _verdict(limit: ExplainedLimit) -> str:
    """Return the verdict of a limit: "over" if it is exceeded but does not refuse."""
    if limit.state is None:
        return "exempt"
    if limit.state.allowed:
        return "allowed"
    if limit.refuses:
        return "refused"
    return "over"


def _again(state: LimitState) -> str:
    if state.retry_after is None:
        return _("never")
    return _("in %s") % duration_words(state.retry_after)


def _reason(limit: ExplainedLimit) -> str:
    """Return why a limit refuses, in one sentence."""
    state = limit.state
    assert state is not None
    name = limit.counted_as or limit.name
    if state.ban is not None and state.banned_until is not None:
        return _banned(name, state.ban, state.banned_until)
    placeholders = {**state._asdict(), "name": name, "again": _again(state)}
    kind = limit.charge.limit.kind
    if state.is_slots and state.retry_after is not None:
        text = _(
            "Refused by %(name)s: %(used)s of %(limit)s slots are in use; one may become free at "
            "any time."
        )
    elif kind.is_bucket or kind.holds:  # Units drain continuously, so they have no beginning.
        text = _("Refused by %(name)s: %(used)s of %(limit)s used; allowed again: %(again)s.")
    else:
        seconds = state.period
        if kind.ends_together:
            seconds -= state.reset_after
        placeholders["moment"] = moment_words(timezone.now() - datetime.timedelta(seconds=seconds))
        text = _(
            "Refused by %(name)s: %(used)s of %(limit)s used; allowed again: %(again)s; "
            "used %(used)s since %(moment)s."
        )
    return text % placeholders


def _banned(name: str, ban: Ban, until: datetime.datetime) -> str:
    """Return why a ban refuses, in one sentence."""
    placeholders = {
        "name": name,
        "until": moment_words(until),
        "offences": ban.offences,
    }
    if not ban.offences:
        return _("Banned by %(name)s by hand until %(until)s.") % placeholders
    text = ngettext(
        "Banned by %(name)s until %(until)s after %(offences)d refusal.",
        "Banned by %(name)s until %(until)s after %(offences)d refusals.",
        ban.offences,
    )
    return text % placeholders
