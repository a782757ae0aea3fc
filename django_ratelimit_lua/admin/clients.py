"""The page of one client: what refuses it, its counts, bans, slots and overrides, with buttons."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _

from ..exceptions import StoreError
from ..extension import extensions
from ..identity import is_digest
from ..identity.names import Part
from ..models import RateLimitOverride
from ..operations.clients import (
    MAX_LISTED,
    ExplainedClient,
    explain_client,
    find_clients,
    is_prefix,
    override_subject,
)
from ..operations.reference import BadReferenceError, open_reference
from ..operations.subjects import Subject, end
from .bans import lift, offence_rows
from .client_links import client_url, known_clients, override_url
from .forms import DURATIONS, own_digests
from .identities import (
    WHO,
    client_words,
    may_see_names,
    may_see_overrides,
    override_words,
    readable_parts,
)
from .inspector import block_words, limit_rows, may_inspect, reset_counts, save_override
from .pages import ActionPage, may_see_rules, page_response
from .slots import purpose_words, release
from .times import moment_of

MAX_TEXT_LENGTH = 500


class ClientPage(ActionPage):
    """A search, and the page of one client with its buttons."""

    may_see = staticmethod(may_inspect)

    def view(self, request: HttpRequest, **context: Any) -> HttpResponse:
        """Show the client of the digest in the query, or search for clients."""
        text = request.GET.get("q", "").strip()[:MAX_TEXT_LENGTH]
        digest = request.GET.get("digest", "")
        context = {"text": text, **context}
        try:
            if is_digest(digest):
                context |= self._client(request, digest, text)
            elif text:
                found = self._search(request, text)
                if isinstance(found, HttpResponse):
                    return found
                context["results"] = found
        except StoreError as error:
            context["error"] = error
        return page_response(self, request, "client.html", context)

    def _search(self, request: HttpRequest, text: str) -> HttpResponse | list[dict[str, Any]]:
        """Return the clients that a text names, or a redirect if it names only one."""
        try:
            reference = open_reference(text).reference
        except BadReferenceError:
            pass
        else:
            inspector = reverse("admin:django_ratelimit_lua_inspect")
            return HttpResponseRedirect(f"{inspector}?{urlencode({'reference': reference})}")
        if is_digest(text.lower()):
            return HttpResponseRedirect(client_url(text.lower()))
        rows = [
            {
                "digest": found.digest,
                "words": found.label,
                "url": client_url(found.digest, q=text),
            }
            for found in find_clients(text)
        ]
        if is_prefix(text.lower()):
            for digest, name in known_clients(request, text.lower()).items():
                words = ", ".join(part.words for part in readable_parts(request, [name])[0])
                rows.append({"digest": digest, "words": words, "url": client_url(digest)})
        if len(rows) == 1:
            return HttpResponseRedirect(rows[0]["url"])
        return rows[:MAX_LISTED]

    def _client(self, request: HttpRequest, digest: str, text: str) -> dict[str, Any]:
        """Return the context for one client."""
        entered = _entered(digest, text)
        client = _explain(request, digest, entered)
        records = [
            record
            for extension in extensions
            for record in [extension.client(request, digest).get(digest)]
            if record is not None
        ]
        parts = list(entered)
        if not parts and request.user.has_perm(WHO):
            recorded = [client.name, *(record.name for record in records)]
            parts = next(filter(None, map(list, recorded)), [])
        words = readable_parts(request, [parts])[0]
        title = client_words(", ".join(part.words for part in words), digest)
        rows = limit_rows(request, client.found)
        ask = request.GET.get("ask", "")
        return {
            "title": title,
            "client": client,
            "parts": words,
            "lead": _lead(client, rows),
            "rows": rows,
            "records": [
                (record, [list(zip(record.headings, row, strict=True)) for row in record.rows])
                for record in records
            ],
            "offences": offence_rows(client.offences),
            "slots": _slot_rows(request, client) if may_see_rules(request) else [],
            "bans": [
                (active, moment_of(active.ban.since), active.key.decode(errors="replace"))
                for active in client.bans
            ],
            "url": client_url(digest, request.GET.get("name", ""), q=text),
            "override_url": override_url(request, digest, parts),
            "inspect": urlencode(_described(entered or parts)),
            "ask": ask if ask in ("block", "exempt") else "",
            "durations": DURATIONS.items(),
            "hour": "3600",
            "may_see_overrides": may_see_overrides(request),
            "may_see_names": may_see_names(request),
        }

    def act(self, request: HttpRequest) -> dict[str, Any]:
        """Perform the action of a button."""
        digest = request.GET.get("digest", "")
        if not is_digest(digest):
            raise PermissionDenied
        action, _colon, target = request.POST.get("action", "").partition(":")
        if action in ("block", "exempt"):
            self._override(request, digest, action)
            return {}
        if action == "release" and may_see_rules(request):
            release(request, target)
            return {}
        text = request.GET.get("q", "").strip()[:MAX_TEXT_LENGTH]
        client = _explain(request, digest, _entered(digest, text))
        if action == "reset":
            reset_counts(self, request, client.found, target)
        elif action == "end":
            self._end(request, [each for each in client.overrides if str(each.pk) == target])
        elif action in ("lift", "forget"):
            lift(request, client.bans, target, forget=action == "forget")
        else:
            raise PermissionDenied
        return {}

    def _override(self, request: HttpRequest, digest: str, action: Any) -> None:
        duration = request.POST.get("duration", "")
        if duration not in DURATIONS:
            raise PermissionDenied
        if action == "block" and digest in own_digests(request):
            messages.error(
                request, _("This includes your own account: you would lock yourself out.")
            )
            return
        subject = Subject(digest=digest)
        reason = _("from the page of the client")
        override = subject.override(action, int(duration), reason=reason)
        placeholders = {"client": subject, "duration": DURATIONS[duration]}
        if save_override(request, override, placeholders):
            self.log_addition(request, override, _("From the page of the client."))

    def _end(self, request: HttpRequest, overrides: list[RateLimitOverride]) -> None:
        if not overrides:
            messages.warning(request, _("This override has ended already."))
            return
        for override in end(overrides):
            self.log_change(request, override, _("Ended."))
            words = override_words(request, override)
            messages.success(request, _("Ended: %(override)s.") % {"override": words})


def _entered(digest: str, text: str) -> tuple[Part, ...]:
    """Return the name of a client if a search for this text finds the client."""
    return next((each.name for each in find_clients(text) if each.digest == digest), ())


def _explain(request: HttpRequest, digest: str, name: Iterable[Part]) -> ExplainedClient:
    field, value = override_subject(digest, name)
    address = value if field == "network" else ""
    return explain_client(digest, request.GET.get("name", ""), address)


def _lead(client: ExplainedClient, rows: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """Return the state in force, as a CSS class and in words."""
    block = client.found.block
    if block is not None:
        return "refused", block_words(block)
    reasons = [row["reason"] for row in rows if row.get("reason")]
    if reasons:
        return "refused", reasons[0]
    if not rows:
        return "unsure", _("No limit has counted this client recently")
    return "allowed", _("No limit refuses this client now")


def _slot_rows(request: HttpRequest, client: ExplainedClient) -> list[dict[str, Any]]:
    return [
        {
            "holder": holder,
            "what": purpose_words(request, holder),
            "since": datetime.datetime.fromtimestamp(holder.since, datetime.UTC),
            "seconds": max(1.0, time.time() - holder.since),
        }
        for holder in client.slots
    ]


def _described(parts: Iterable[Part]) -> dict[str, str]:
    """Return the fields of the inspector's form that describe a client, without masked ones."""
    fields = {"ip": "address", "user": "user"}
    return {fields[kind]: value for kind, value in parts if kind in fields and "/" not in value}
