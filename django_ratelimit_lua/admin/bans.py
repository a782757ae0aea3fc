"""The page of bans: the banned clients, the evidence, and buttons that lift or add bans."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse, QueryDict
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..exceptions import StoreError
from ..extension import extensions
from ..limits.rate import SECOND, LimitError
from ..models import RateLimitRule
from ..operations.bans import (
    ActiveBan,
    active_bans,
    ban_client,
    banning_limits,
    evidence_of_bans,
    lift_bans,
    number_of_bans,
)
from ..operations.formatting import moment_words
from ..operations.subjects import Subject
from .forms import DURATIONS, own_digests
from .history import WHO
from .identities import ReadablePart, client_words, readable_parts
from .inspector import may_inspect, save_override
from .pages import ActionPage, page_response
from .times import moment_of

SHOWN = 100
"""Bans on the page: those that began last."""
LENGTHS = [
    ("", gettext_lazy("as long as the next ban")),
    ("10m", gettext_lazy("for 10 minutes")),
    ("1h", gettext_lazy("for 1 hour")),
    ("1d", gettext_lazy("for 1 day")),
    ("7d", gettext_lazy("for 1 week")),
]
LIFTED = {
    "lift": gettext_lazy("The ban of %(client)s by %(limit)s is lifted."),
    "forget": gettext_lazy(
        "The ban of %(client)s by %(limit)s is lifted; the next one is as short as the first."
    ),
}


class BanForm(forms.Form):
    """A ban by hand: the client, the limit, the duration and the reason."""

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
        help_text=gettext_lazy("If the limit counts by a form field, a header or similar."),
    )
    length = forms.TypedChoiceField(
        label=gettext_lazy("How long"), required=False, choices=LENGTHS, empty_value=None
    )
    why = forms.CharField(label=gettext_lazy("Reason"), max_length=200)

    def __init__(self, data: QueryDict | None = None) -> None:
        super().__init__(data, label_suffix="")
        self.limits = banning_limits()
        field: Any = self.fields["limit"]
        field.choices = [
            (name, f"{name} ({banning.key_label})") for name, banning in self.limits.items()
        ]


class BanPage(ActionPage):
    """The page of bans and the actions of its buttons."""

    may_see = staticmethod(may_inspect)

    def view(self, request: HttpRequest, **context: object) -> HttpResponse:
        """Show the banned clients."""
        context = {"form": BanForm(), "chosen": request.GET.get("rule", ""), **context}
        try:
            context |= self._found(request)
        except StoreError as error:
            context["error"] = error
        return page_response(self, request, "bans.html", context)

    def _found(self, request: HttpRequest) -> dict[str, object]:
        chosen = request.GET.get("rule", "")
        found = active_bans()
        listed = [active for active in found if chosen in ("", active.rule, active.limit)]
        listed.sort(key=lambda active: -active.ban.since)
        number = len(listed)
        if not chosen:
            number = max(number, number_of_bans())
        bans = listed[:SHOWN]
        rules = RateLimitRule.objects.filter(name__in={active.rule for active in bans})
        pks = dict(rules.values_list("name", "pk"))
        evidences = evidence_of_bans(bans)
        rows = []
        for active, evidence, parts in zip(bans, evidences, _parts(request, bans), strict=True):
            name = active.rule or active.limit
            urls = (extension.limit_url(request, name) for extension in extensions)
            rows.append(
                {
                    "active": active,
                    "key": _key(active),
                    "name": name,
                    "rule": pks.get(active.rule),
                    "limit_url": next(filter(None, urls), ""),
                    "parts": parts,
                    "client": _client(parts, active),
                    "since": moment_of(active.ban.since),
                    "next_seconds": (active.next_us or 0) / SECOND,
                    "offences": [
                        (moment_of(offence.moment), offence) for offence in reversed(evidence)
                    ],
                }
            )
        return {
            "rows": rows,
            "names": sorted({active.rule or active.limit for active in found}),
            "more": number - len(rows),
            "number": number,
        }

    def act(self, request: HttpRequest) -> dict[str, object]:
        """Perform the action of a button: lift a ban, add one, or block its client."""
        action, _colon, key = request.POST.get("action", "").partition(":")
        if action == "add":
            return self._add(request, BanForm(request.POST))
        if action not in ("block", *LIFTED):
            raise PermissionDenied
        named = [active for active in active_bans() if _key(active) == key]
        if not named:
            messages.warning(request, _("This ban has ended already."))
        elif action == "block":
            return self._block(request, named[0])
        else:
            lift_bans(named, forget=action == "forget")
            messages.success(request, LIFTED[action] % _placeholders(request, named[0]))
        return {}

    def _block(self, request: HttpRequest, active: ActiveBan) -> dict[str, object]:
        if active.identity in own_digests(request):
            messages.error(
                request, _("This includes your own account: you would lock yourself out.")
            )
            return {}
        rule = RateLimitRule.objects.named(active.rule).first()
        placeholders = _placeholders(request, active)
        duration = request.POST.get("duration", "")
        if duration not in DURATIONS:  # It has to be chosen first, which confirms the block.
            pending = {"subject": placeholders["client"], "rule": rule, "key": _key(active)}
            return {"pending": {**pending, "durations": DURATIONS.items()}}
        subject = Subject(digest=active.identity)
        reason = (_("from a ban by %(limit)s") % placeholders)[:300]
        override = subject.override("block", int(duration), rule=rule, reason=reason)
        save_override(request, override, {**placeholders, "duration": DURATIONS[duration]})
        return {}

    def _add(self, request: HttpRequest, form: BanForm) -> dict[str, object]:
        if not form.is_valid():
            return {"form": form}
        limit = form.limits[form.cleaned_data.pop("limit")]
        try:
            made = ban_client(limit, **form.cleaned_data, spared=own_digests(request))
        except ValidationError as error:
            form.add_error(None, error)
        except LimitError as error:
            form.add_error(None, str(error))
        else:
            until = moment_words(moment_of(made.until))
            messages.success(request, _("Banned until %(until)s.") % {"until": until})
            return {}
        return {"form": form}


def _key(active: ActiveBan) -> str:
    """Return the key of a ban, as a button sends it."""
    return active.key.decode(errors="replace")


def _parts(request: HttpRequest, bans: list[ActiveBan]) -> list[list[ReadablePart]]:
    if not request.user.has_perm(WHO):
        return [[] for _active in bans]
    return readable_parts(request, [active.who for active in bans])


def _client(parts: list[ReadablePart], active: ActiveBan) -> str:
    return client_words(", ".join(part.words for part in parts), active.identity)


def _placeholders(request: HttpRequest, active: ActiveBan) -> dict[str, str]:
    (parts,) = _parts(request, [active])
    return {"client": _client(parts, active), "limit": active.limit}
