"""The clients: a search, and the page of one client with its limits, bans and overrides."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..conf import conf
from ..exceptions import StoreError
from ..extension import extensions
from ..identity import is_digest
from ..identity.names import Name, display_name
from ..limits.ban import Ban
from ..limits.decision import LimitState
from ..models import RateLimitOverride
from ..operations.bans import active_bans
from ..operations.explain import ExplainedLimit, reset_counts
from ..operations.formatting import moment_words
from ..operations.known_limits import open_reference, place_words
from ..operations.subjects import Subject, add_override, end_overrides
from ..web.reference import BadReferenceError
from ..web.refusal import duration_words
from .bans import LIFTED, ban_key, lift_ban
from .client_limits import MAX_LISTED, ExplainedClient, explain_client, overrides_of
from .client_search import (
    FoundClient,
    computed_clients,
    find_network,
    search_clients,
)
from .identities import (
    SEE_NAMES,
    client_links,
    client_url,
    client_words,
    form_url,
    identity_words,
    known_clients,
    may_see_clients,
    may_see_names,
    may_see_overrides,
    override_url,
    override_words,
    readable_names,
    visible_name,
)
from .limits import limit_url
from .override_form import DURATIONS, own_digests
from .pages import ActionPage, Context, page_response, search_text

DONE = {
    "block": gettext_lazy("%(client)s is blocked %(duration)s."),
    "exempt": gettext_lazy("%(client)s is exempt %(duration)s."),
}
"""By effect of an override that a button adds: the message after it."""


class ClientPage(ActionPage):
    """A search, and the page of one client with its buttons."""

    may_see = staticmethod(may_see_clients)

    def view(self, request: HttpRequest, **context: Any) -> HttpResponse:
        """Show the client of the digest in the query, or search for clients."""
        text = search_text(request)
        digest = request.GET.get("digest", "")
        if not digest and is_digest(text.lower()):
            digest = text.lower()
        context["text"] = text
        try:
            if is_digest(digest):
                context |= _client_context(request, digest)
            elif text:
                context |= _search_context(request, text)
        except StoreError as error:
            context["error"] = error
        rows = context.get("found", ())
        if len(rows) == 1:
            return HttpResponseRedirect(rows[0]["url"])
        return page_response(self, request, "client.html", context)

    def act(self, request: HttpRequest, action: str, target: str) -> Context:
        """Block, exempt or reset the client of the URL, end an override, or lift a ban."""
        digest = request.GET.get("digest", "")
        if not is_digest(digest):
            raise PermissionDenied
        if action in DONE:
            self._add_override(request, digest, action)
            return {}
        name = _client_name(request, digest)
        client = explain_client(digest, request.GET.get("name", ""), name)
        if action == "reset":
            _reset_counts(request, client, target, name)
        elif action == "end":
            self._end_override(request, client.overrides, target)
        elif action in LIFTED:
            lift_ban(request, client.bans, action, target)
        else:
            raise PermissionDenied
        return {}

    def _add_override(self, request: HttpRequest, digest: str, action: Any) -> None:
        """Block or exempt a client for the duration that was chosen, and report that."""
        duration = request.POST.get("duration", "")
        if duration not in DURATIONS:
            raise PermissionDenied
        if action == "block" and digest in own_digests(request):
            text = _("This includes your own account: you would lock yourself out.")
            messages.error(request, text)
            return
        subject = Subject(digest=digest)
        override = subject.make_override(
            action,
            int(duration),
            reason=_("from the page of the client"),
            label=identity_words(_recorded_name(request, digest))[:200],
        )
        if add_override(override) is override:
            self.log_addition(request, override, _("From the page of the client."))
        else:
            messages.info(request, _("The same override is already present, so none was added."))
        placeholders = {"client": override, "duration": DURATIONS[duration]}
        messages.success(request, DONE[action] % placeholders)

    def _end_override(
        self, request: HttpRequest, overrides: Iterable[RateLimitOverride], key: str
    ) -> None:
        """End the override with this key, and report that."""
        chosen = [override for override in overrides if str(override.pk) == key]
        if not chosen:
            messages.warning(request, _("This override has ended already."))
            return
        ended = end_overrides(chosen)
        for override in ended:
            self.log_change(request, override, _("Ended."))
        for words in dict.fromkeys(override_words(request, override) for override in ended):
            messages.success(request, _("Ended: %(override)s.") % {"override": words})


def _client_context(request: HttpRequest, digest: str) -> Context:
    """Return the context for one client."""
    text = search_text(request)
    limit_name = request.GET.get("name", "")
    records = [
        record for extension in extensions for record in extension.client(request, digest).values()
    ]
    name = _client_name(request, digest, [record.name for record in records])
    client = explain_client(digest, limit_name, name)
    (words,) = readable_names([name])
    rows = _limit_rows(request, client, name)
    ask = request.GET.get("ask", "")
    return {
        "title": client_words(words, digest),
        "client": client,
        "has_name": bool(name),
        "lead": _state_in_force(client, rows),
        "rows": rows,
        "records": [
            (record, [list(zip(record.headings, row, strict=True)) for row in record.rows])
            for record in records
        ],
        "bans": [(ban, place_words(ban.name), ban_key(ban)) for ban in client.bans],
        "url": client_url(request, digest, limit_name, q=text),
        "override_url": override_url(request, digest, name),
        "ask": ask if ask in DONE else "",
        "durations": DURATIONS.items(),
        "may_see_overrides": may_see_overrides(request),
        "may_see_names": may_see_names(request),
    }


def _client_name(request: HttpRequest, digest: str, recorded: Iterable[Sequence[Any]] = ()) -> Name:
    """Return the parts of a client: as they were searched, or as recorded; empty if unknown."""
    for client in computed_clients(search_text(request)):
        if client.digest == digest:
            return list(client.name)
    for name in recorded:
        if name:
            return visible_name(request, name)
    return _recorded_name(request, digest)


def _recorded_name(request: HttpRequest, digest: str) -> Name:
    return known_clients(request, digest).get(digest, [])


def _search_context(request: HttpRequest, text: str) -> Context:
    """Return the clients that a text finds, and what it refers to if it is a reference."""
    named = known_clients(request)
    clients = search_clients(text, named)
    context: Context = {"found": _client_rows(request, text, clients), "is_searched": True}
    network = find_network(text)
    if network is not None:
        context |= _network_context(request, str(network))
    elif not clients:
        context |= _reference_context(request, text, named)
    return context


def _network_context(request: HttpRequest, network: str) -> Context:
    """Return the links for a network, and why its clients may be missing from the list."""
    problem = ""
    if conf.SHOW_IDENTITIES != "plain":
        problem = _(
            "Names of clients are masked (RATELIMIT_SHOW_IDENTITIES), so the clients within a "
            "network cannot be listed. Search for an address."
        )
    elif not request.user.has_perm(SEE_NAMES):
        problem = _(
            "To list the clients within a network, you need the permission “May see the names "
            "of clients”."
        )
    return {
        "network": network,
        "network_url": form_url(request, {"network": network}),
        "may_see_overrides": may_see_overrides(request),
        "problem": problem,
    }


def _client_rows(request: HttpRequest, text: str, clients: Sequence[FoundClient]) -> list[Context]:
    """Return the found clients as the list shows them, with their bans and overrides."""
    digests = [client.digest for client in clients]
    overrides = overrides_of(digests)
    bans = active_bans(MAX_LISTED, digests) if digests else []
    names = readable_names([list(client.name) for client in clients])
    return [
        {
            "digest": client.digest,
            "words": client.label or name,
            "url": client_url(request, client.digest, q=text if client.label else ""),
            "bans": [(ban, place_words(ban.name)) for ban in bans if ban.identity == client.digest],
            "overrides": [row for row in overrides[client.digest] if row.is_active()],
        }
        for client, name in zip(clients, names, strict=True)
    ]


def _reference_context(request: HttpRequest, text: str, named: dict[str, Name]) -> Context:
    """Return what a reference contains, and the known clients whose digest begins so.

    The result is empty if the text is not a reference.
    """
    try:
        opened = open_reference(text)
    except BadReferenceError:
        return {}
    places = {limit.place for limit in opened.limits}
    place = places.pop() if len(places) == 1 else ""
    clients = [item for item in sorted(named.items()) if item[0].startswith(opened.digest_prefix)]
    if text.isalnum() and not (opened.limits or opened.overrides or clients):
        return {}  # Any word of 12 letters could be a reference.
    keys = {"+".join(kind for kind, _value in name) for _digest, name in clients}
    # The digest is of the identity under the limit that refused.
    limits = [limit for limit in opened.limits if limit.key in keys] or opened.limits
    return {
        "opened": opened,
        "limits": [
            (limit, place_words(limit.place), limit_url(request, limit.place)) for limit in limits
        ],
        "clients": client_links(request, clients[:MAX_LISTED], place),
        "may_see_overrides": may_see_overrides(request),
        "may_see_names": may_see_names(request),
    }


def _state_in_force(client: ExplainedClient, rows: Sequence[Context]) -> tuple[str, str]:
    """Return the state in force, as a CSS class and in words."""
    block = client.explanation.block
    if block is not None:
        return "refused", _block_words(block)
    reasons = [row["reason"] for row in rows if "reason" in row]
    if reasons:
        return "refused", reasons[0]
    if not rows:
        return "unsure", _("No limit has counted this client recently")
    return "allowed", _("No limit refuses this client now")


def _block_words(block: RateLimitOverride) -> str:
    """Return the state of a client that an override blocks, in words."""
    if block.ends is None:
        return _("Blocked by an override, for good")
    return _("Blocked by an override until %(until)s") % {"until": moment_words(block.ends)}


def _reset_counts(request: HttpRequest, client: ExplainedClient, target: str, name: Name) -> None:
    """Reset the counts under the limit named `target` (empty: under all), and report that."""
    names = {limit.name for limit in client.explanation.limits if target in ("", limit.name)}
    try:
        done = reset_counts(client.explanation, names, {client.digest: name})
    except StoreError as error:
        messages.error(request, _("Nothing was reset: %s") % error)
        return
    if done:
        labels = [limit.counted_as for limit in client.explanation.limits if limit.name in done]
        texts = dict.fromkeys(map(place_words, labels))
        messages.success(request, _("Counts are reset: %(names)s.") % {"names": ", ".join(texts)})
    else:
        messages.warning(request, _("Nothing was reset: no limit counts this client."))


def _limit_rows(request: HttpRequest, client: ExplainedClient, parts: Name) -> list[Context]:
    """Return the limits as the page shows them, with the identity that each counts, if another."""
    rows = []
    readings = Counter(limit.reading for limit in client.explanation.limits)
    for limit in client.explanation.limits:
        row: Context = {
            "limit": limit,
            "rate": str(limit.charge.limit.rate) if readings[limit.reading] > 1 else "",
            "label": place_words(limit.counted_as),
            "page": limit_url(request, limit.counted_as),
            "verdict": _verdict(limit),
        }
        digest = limit.charge.digest.decode()
        name = parts
        if digest != client.digest:
            name = display_name(limit.planned.identity)
            (words,) = readable_names([name])
            row |= {"of": client_words(words, digest), "url": client_url(request, digest)}
        row["limit_url"] = override_url(request, digest, name, limit.counted_as)
        if row["verdict"] == "refused":
            row |= {"reason": _refusal_words(limit), "again": _again_words(limit.state)}
        rows.append(row)
    return rows


def _verdict(limit: ExplainedLimit) -> str:
    """Return the verdict of a limit: "over" if it is exceeded but does not refuse."""
    state = limit.state
    if state is None:
        return "exempt"
    if state.enforced and limit.override is not None and limit.override.effect == "block":
        return "blocked"
    if state.allowed:
        return "allowed"
    if limit.refuses:
        return "refused"
    return "over"


def _again_words(state: LimitState | None) -> str:
    """Return when a limit allows the client again, in words."""
    if state is None or state.retry_after is None:
        return _("never")
    if state.is_slots:
        return _("when a slot is free")
    return _("in %s") % duration_words(state.retry_after)


def _refusal_words(limit: ExplainedLimit) -> str:
    """Return why a limit refuses, in one sentence."""
    state = limit.state
    assert state is not None
    name = place_words(limit.counted_as)
    if state.ban is not None and state.banned_until is not None:
        return _ban_words(name, state.ban, state.banned_until)
    text = _("Refused by %(name)s: %(used)s of %(limit)s used; allowed again: %(again)s.")
    return text % {
        "name": name,
        "used": state.used,
        "limit": limit.available,
        "again": _again_words(state),
    }


def _ban_words(name: str, ban: Ban, until: datetime.datetime) -> str:
    """Return why a ban refuses, in one sentence."""
    placeholders = {"name": name, "until": moment_words(until), "offences": ban.offences}
    if not ban.offences:
        return _("Banned by %(name)s by hand until %(until)s.") % placeholders
    text = ngettext(
        "Banned by %(name)s until %(until)s after %(offences)d refusal.",
        "Banned by %(name)s until %(until)s after %(offences)d refusals.",
        ban.offences,
    )
    return text % placeholders
