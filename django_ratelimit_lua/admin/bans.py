"""The page of bans: the banned clients, the evidence, and buttons that end or make bans."""

from __future__ import annotations

import datetime
from typing import Any, NamedTuple

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import NoReverseMatch, reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..engine.evidence import Offence
from ..exceptions import StoreError
from ..extension import extensions
from ..limits.rate import SECOND, LimitError
from ..models import RateLimitRule
from ..models.audit import acting
from ..operations.bans import (
    MAX_ENTRIES,
    ActiveBan,
    active_bans,
    ban_client,
    banning_limits,
    evidence_of_bans,
    lift_bans,
    number_of_bans,
)
from ..operations.formatting import breakable, moment_words
from ..operations.subjects import Subject, add
from ..publishing import triggers
from ..web.durations import duration_words
from .forms import DURATIONS, own_digests
from .history import LETTERS, WHO
from .identities import ReadablePart, readable_parts
from .inspector import BLOCK_PERMISSION, may_inspect
from .pages import Page, page_response
from .times import moment_element

SHOWN = 100
"""Bans on the page: those that began last."""
LENGTHS = {
    "": gettext_lazy("as long as the next ban"),
    "10m": gettext_lazy("for 10 minutes"),
    "1h": gettext_lazy("for 1 hour"),
    "1d": gettext_lazy("for 1 day"),
    "7d": gettext_lazy("for 1 week"),
}


BLOCKED_FOR = {seconds: words for seconds, words in DURATIONS.items() if seconds}


class Row(NamedTuple):
    """A ban as the page shows it."""

    active: ActiveBan
    key: str
    limit: SafeString
    rule_url: str
    limit_url: str
    parts: list[ReadablePart]
    digest: str
    words: str
    since: SafeString
    until: SafeString
    why: str
    following: str
    offences: list[tuple[SafeString, Offence]]
    span: str


class HandForm(forms.Form):
    """Whom to ban by hand, by which limit, how long and why."""

    limit = forms.ChoiceField(label=gettext_lazy("Limit"))
    address = forms.CharField(
        label=gettext_lazy("Address"),
        required=False,
        max_length=49,
        help_text=gettext_lazy("For example 203.0.113.9."),
    )
    user = forms.CharField(
        label=gettext_lazy("User"),
        required=False,
        max_length=254,
        help_text=gettext_lazy("Name or primary key."),
    )
    value = forms.CharField(
        label=gettext_lazy("Value of the field"),
        required=False,
        max_length=500,
        help_text=gettext_lazy("Where the limit counts by a form field, a header or the like."),
    )
    length = forms.ChoiceField(
        label=gettext_lazy("How long"), required=False, choices=list(LENGTHS.items())
    )
    why = forms.CharField(label=gettext_lazy("Reason"), max_length=200)

    def __init__(self, data: Any = None) -> None:
        super().__init__(data, label_suffix="")
        self.limits = banning_limits()
        field: Any = self.fields["limit"]
        field.choices = [
            (name, f"{name} ({banning.key_label})") for name, banning in self.limits.items()
        ]


class BanPage(Page):
    """The page and what its buttons do."""

    may_see = staticmethod(may_inspect)

    def view(self, request: HttpRequest) -> HttpResponse:
        """The banned clients. Buttons send to the same URL."""
        may_act = request.user.has_perm(BLOCK_PERMISSION)
        form, pending = HandForm(), None
        if request.method == "POST":
            if not may_act:
                raise PermissionDenied
            try:
                with acting(request.user):
                    if request.POST.get("action") == "add":
                        form = HandForm(request.POST)
                        is_done = self._add(request, form)
                    else:
                        pending = self._act(request)
                        is_done = pending is None
            except StoreError as error:
                messages.error(request, _("Nothing was done: %s") % error)
                is_done = True
            if is_done:
                return HttpResponseRedirect(request.get_full_path())
        context = {
            "title": _("Bans"),
            "may_act": may_act,
            "may_see_who": request.user.has_perm(WHO),
            "form": form if form.limits else None,
            "is_open": form.is_bound,
            "pending": pending,
            "chosen": request.GET.get("rule", ""),
            **self._found(request),
        }
        return page_response(self, request, "bans.html", context)

    def _found(self, request: HttpRequest) -> dict[str, Any]:
        chosen = request.GET.get("rule", "")
        try:
            found, number = active_bans(), number_of_bans()
            names = sorted({active.rule or active.limit for active in found})
            listed = [active for active in found if chosen in ("", active.rule, active.limit)]
            listed.sort(key=lambda active: -active.ban.since)
            shown = listed[:SHOWN]
            rows = self._rows(request, shown)
        except StoreError as error:
            return {"error": str(error), "names": []}
        beyond = number - len(found) if not chosen and number > len(found) else 0
        return {
            "rows": rows,
            "names": names,
            "more": len(listed) - len(shown) + beyond,
            "number": len(listed) + beyond,
        }

    def _rows(self, request: HttpRequest, shown: list[ActiveBan]) -> list[Row]:
        pks = dict(
            RateLimitRule.objects.filter(name__in={active.rule for active in shown}).values_list(
                "name", "pk"
            )
        )
        may_see_rules = request.user.has_perm("django_ratelimit_lua.view_ratelimitrule")
        may_see_who = request.user.has_perm(WHO)
        named = readable_parts(request, [active.who if may_see_who else [] for active in shown])
        rows = []
        for active, evidence, parts in zip(shown, evidence_of_bans(shown), named, strict=True):
            ban, name = active.ban, active.rule or active.limit
            pk = pks.get(active.rule) if may_see_rules else None
            offences = [
                (moment_element(_moment(offence.moment)), offence) for offence in reversed(evidence)
            ]
            rows.append(
                Row(
                    active,
                    active.key.decode(errors="replace"),
                    breakable(name),
                    _url("ratelimitrule_change", pk) if pk is not None else "",
                    next(
                        filter(
                            None, (extension.limit_url(request, name) for extension in extensions)
                        ),
                        "",
                    ),
                    parts,
                    active.identity[:LETTERS],
                    _words(parts, active),
                    moment_element(_moment(ban.since)),
                    moment_element(_moment(ban.until)),
                    active.why or (_("by hand") if ban.by_hand else ""),
                    "" if active.next_us is None else duration_words(active.next_us / SECOND),
                    offences if may_see_who else [],
                    ""
                    if ban.by_hand
                    else ngettext("%(number)d offence", "%(number)d offences", ban.offences)
                    % {"number": ban.offences},
                )
            )
        return rows

    def _act(self, request: HttpRequest) -> dict[str, Any] | None:
        """Perform the action of a button, or return what needs confirmation first."""
        action, _colon, key = request.POST.get("action", "").partition(":")
        active = next(
            (
                active
                for active in active_bans(MAX_ENTRIES)
                if active.key.decode(errors="replace") == key
            ),
            None,
        )
        if action not in ("lift", "forget", "block"):
            raise PermissionDenied
        if active is None:
            messages.warning(request, _("This ban has ended already."))
            return None
        words: dict[str, Any] = {"client": _client_words(request, active), "limit": active.limit}
        if action != "block":
            lift_bans([active], forget=action == "forget")
            if action == "forget":
                text = _(
                    "The ban of %(client)s by %(limit)s is lifted; the next one is as short as "
                    "the first."
                )
            else:
                text = _("The ban of %(client)s by %(limit)s is lifted.")
            messages.success(request, text % words)
            return None
        if active.identity in own_digests(request):
            messages.error(request, _("This includes yourself: you would lock yourself out."))
            return None
        rule, duration = (
            RateLimitRule.objects.named(active.rule).first(),
            request.POST.get("duration", ""),
        )
        if duration not in BLOCKED_FOR:  # It has to be chosen first, which confirms the block.
            name = "" if rule is None else rule.name
            return {
                "subject": words["client"],
                "rule": name,
                "key": key,
                "durations": BLOCKED_FOR.items(),
            }
        subject = Subject(digest=active.identity)
        reason = (_("from a ban by %(limit)s") % words)[:300]
        (there,) = add(
            [override := subject.override("block", int(duration), rule=rule, reason=reason)]
        )
        if there is not override:
            messages.info(request, _("The same override is there already, so none was added."))
        else:
            words["duration"] = BLOCKED_FOR[duration]
            messages.success(request, _("%(client)s is blocked %(duration)s.") % words)
        if triggers.unpublished:
            messages.warning(request, _("Saved, but not live yet: %s") % triggers.unpublished)
        return None

    def _add(self, request: HttpRequest, form: HandForm) -> bool:
        if not form.is_valid():
            return False
        given = form.cleaned_data
        try:
            made = ban_client(
                form.limits[given["limit"]],
                given["address"],
                given["user"],
                given["value"],
                length=given["length"] or None,
                why=given["why"],
                spared=own_digests(request),
            )
        except (LimitError, ValidationError) as error:
            form.add_error(None, error if isinstance(error, ValidationError) else str(error))
            return False
        messages.success(
            request, _("Banned until %(until)s.") % {"until": moment_words(_moment(made.until))}
        )
        return True


def _client_words(request: HttpRequest, active: ActiveBan) -> str:
    (parts,) = readable_parts(request, [active.who if request.user.has_perm(WHO) else []])
    return _words(parts, active)


def _words(parts: list[ReadablePart], active: ActiveBan) -> str:
    """The banned client. The digest distinguishes clients with masked names."""
    words, digest = ", ".join(part.words for part in parts), active.identity[:LETTERS]
    return f"{words} ({digest})" if words else digest


def _moment(moment_us: int) -> datetime.datetime:
    """A moment of Redis's clock."""
    return datetime.datetime.fromtimestamp(
        moment_us / SECOND, datetime.UTC if settings.USE_TZ else None
    )


def _url(name: str, *args: Any) -> str:
    try:
        return reverse(f"admin:django_ratelimit_lua_{name}", args=args)
    except NoReverseMatch:
        return ""
