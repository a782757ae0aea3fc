"""The page of one client: what refuses it, its counts, bans and overrides, with buttons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from ..exceptions import StoreError
from ..extension import extensions
from ..identity import is_digest
from ..identity.names import Part
from ..operations.admin_urls import admin_url
from ..operations.clients import (
    MAX_LISTED,
    ExplainedClient,
    explain_client,
    find_clients,
    is_prefix,
    override_subject,
)
from ..operations.reference import BadReferenceError, open_reference
from ..operations.subjects import Subject
from .bans import LIFTED, ban_key, lift
from .client_links import client_url, known_clients, override_url
from .forms import DURATIONS, own_digests
from .identities import link_words, may_see_names, may_see_overrides, readable_parts, visible_name
from .inspector import (
    DONE,
    block_words,
    end_override,
    limit_rows,
    may_inspect,
    reset_counts,
    save_override,
)
from .pages import ActionPage, Context, page_response

MAX_TEXT_LENGTH = 500


class ClientPage(ActionPage):
    """A search, and the page of one client with its buttons."""

    may_see = staticmethod(may_inspect)

    def view(self, request: HttpRequest, **context: Any) -> HttpResponse:
        """Show the client of the digest in the query, or search for clients."""
        text = _search_text(request)
        digest = request.GET.get("digest", "")
        context["text"] = text
        try:
            if is_digest(digest):
                context |= self._client(request, digest)
            elif text:
                found = self._search(request, text)
                if isinstance(found, HttpResponse):
                    return found
                context["results"] = found
        except StoreError as error:
            context["error"] = error
        return page_response(self, request, "client.html", context)

    def _search(self, request: HttpRequest, text: str) -> HttpResponse | list[Context]:
        """Return the clients that a text names, or a redirect if it names only one."""
        try:
            reference = open_reference(text).reference
        except BadReferenceError:
            pass
        else:
            inspector = admin_url(request, "django_ratelimit_lua_inspect")
            return HttpResponseRedirect(f"{inspector}?{urlencode({'reference': reference})}")
        if is_digest(text.lower()):
            return HttpResponseRedirect(client_url(request, text.lower()))
        rows = []
        for found in find_clients(text):
            url = client_url(request, found.digest, q=text)
            rows.append({"digest": found.digest, "words": found.label, "url": url})
        if is_prefix(text.lower()):
            for digest, name in known_clients(request, text.lower()).items():
                words = ", ".join(part.words for part in readable_parts(request, [name])[0])
                rows.append({"digest": digest, "words": words, "url": client_url(request, digest)})
        if len(rows) == 1:
            return HttpResponseRedirect(rows[0]["url"])
        return rows[:MAX_LISTED]

    def _client(self, request: HttpRequest, digest: str) -> Context:
        """Return the context for one client."""
        entered, client = _explain(request, digest)
        records = [
            record
            for extension in extensions
            for record in extension.client(request, digest).values()
        ]
        recorded = [client.name, *(record.name for record in records)]
        parts = list(entered) or visible_name(request, next(filter(None, recorded), ()))
        (words,) = readable_parts(request, [parts])
        rows = limit_rows(request, client.found)
        ask = request.GET.get("ask", "")
        return {
            "title": link_words(words, digest),
            "client": client,
            "parts": words,
            "lead": _lead(client, rows),
            "rows": rows,
            "records": [
                (record, [list(zip(record.headings, row, strict=True)) for row in record.rows])
                for record in records
            ],
            "bans": [(active, ban_key(active)) for active in client.bans],
            "url": client_url(
                request, digest, request.GET.get("name", ""), q=_search_text(request)
            ),
            "override_url": override_url(request, digest, parts),
            "inspect": urlencode(_described(entered or parts)),
            "ask": ask if ask in ("block", "exempt") else "",
            "durations": DURATIONS.items(),
            "hour": "3600",
            "may_see_overrides": may_see_overrides(request),
            "may_see_names": may_see_names(request),
        }

    def act(self, request: HttpRequest, action: str, target: str) -> Context:
        """Perform the action of a button."""
        digest = request.GET.get("digest", "")
        if not is_digest(digest):
            raise PermissionDenied
        if action in DONE:
            self._override(request, digest, action)
        elif action == "reset":
            reset_counts(self, request, _explain(request, digest)[1].found, target)
        elif action == "end":
            overrides = _explain(request, digest)[1].overrides
            problem = _("This override has ended already.")
            end_override(self, request, overrides, target, problem)
        elif action in LIFTED:
            lift(request, _explain(request, digest)[1].bans, action, target)
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
        save_override(self, request, override, placeholders, _("From the page of the client."))


def _search_text(request: HttpRequest) -> str:
    return request.GET.get("q", "").strip()[:MAX_TEXT_LENGTH]


def _explain(request: HttpRequest, digest: str) -> tuple[tuple[Part, ...], ExplainedClient]:
    """Return the name of a client, and the limits and other data about the client.

    The name is empty if the search text does not find the client.
    """
    found = find_clients(_search_text(request))
    name = next((each.name for each in found if each.digest == digest), ())
    field, value = override_subject(digest, name)
    address = value if field == "network" else ""
    return name, explain_client(digest, request.GET.get("name", ""), address)


def _lead(client: ExplainedClient, rows: Sequence[Context]) -> tuple[str, str]:
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


def _described(parts: Iterable[Part]) -> dict[str, str]:
    """Return the fields of the inspector's form that describe a client, without masked ones."""
    fields = {"ip": "address", "user": "user"}
    return {fields[kind]: value for kind, value in parts if kind in fields and "/" not in value}
