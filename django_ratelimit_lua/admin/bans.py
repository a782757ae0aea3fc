"""The page of bans: the banned clients, the evidence, and buttons that lift bans."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..engine.bans import MAX_ENTRIES
from ..engine.evidence import Offence
from ..exceptions import StoreError
from ..extension import extensions
from ..identity.forwarded import covers, parse_address
from ..identity.names import Name
from ..limits.rate import SECOND
from ..models import RateLimitRule
from ..operations.bans import ActiveBan, active_bans, evidence_of_bans, lift_bans
from ..operations.clients import find_clients, is_prefix
from .client_links import client_links, client_url
from .identities import WHO, ReadablePart, client_words, readable_parts
from .inspector import may_inspect
from .pages import ActionPage, page_response
from .times import moment_of

SHOWN = 100
"""Bans on a page."""
MAX_SEARCH_LENGTH = 300
LIFTED = {
    "lift": gettext_lazy("The ban of %(client)s by %(limit)s is lifted."),
    "forget": gettext_lazy(
        "The ban of %(client)s by %(limit)s is lifted. The next one is as short as the first."
    ),
}


class BanPage(ActionPage):
    """The page of bans and the actions of its buttons."""

    may_see = staticmethod(may_inspect)

    def view(self, request: HttpRequest, **context: object) -> HttpResponse:
        """Show the banned clients."""
        chosen = request.GET.get("rule", "")
        context = {"chosen": chosen, "search": _search_text(request), **context}
        try:
            context |= self._found(request)
        except StoreError as error:
            context["error"] = error
        return page_response(self, request, "bans.html", context)

    def _found(self, request: HttpRequest) -> dict[str, object]:
        found = active_bans(MAX_ENTRIES)
        page = Paginator(_listed(request, found), SHOWN).get_page(request.GET.get("p"))
        bans = list(page)
        rules = RateLimitRule.objects.filter(name__in={active.rule for active in bans})
        pks = dict(rules.values_list("name", "pk"))
        evidences = evidence_of_bans(bans)
        clients = [(active.identity, _name(request, active)) for active in bans]
        links = client_links(request, clients)
        rows = []
        for active, evidence, parts, link in zip(
            bans, evidences, _parts(request, bans), links, strict=True
        ):
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
                    "links": link._replace(url=client_url(active.identity, name)),
                    "since": moment_of(active.ban.since),
                    "next_seconds": (active.next_us or 0) / SECOND,
                    "offences": offence_rows(evidence),
                }
            )
        return {
            "rows": rows,
            "names": sorted({active.rule or active.limit for active in found}),
            "page": page,
            "number": page.paginator.count,
        }

    def act(self, request: HttpRequest) -> dict[str, Any]:
        """Lift a ban, those that were selected, or all that are listed."""
        action, _colon, key = request.POST.get("action", "").partition(":")
        if action not in LIFTED:
            raise PermissionDenied
        bans = active_bans(MAX_ENTRIES)
        forget = action == "forget"
        if key == "selected":
            chosen = set(request.POST.getlist("ban"))
            _lift_all(request, [active for active in bans if _key(active) in chosen], forget=forget)
        elif key == "all":
            listed = _listed(request, bans)
            if listed and "confirmed" not in request.POST:
                return {"pending": len(listed)}
            _lift_all(request, listed, forget=forget)
        else:
            lift(request, bans, key, forget=forget)
        return {}


def _key(active: ActiveBan) -> str:
    """Return the key of a ban, as a button sends it."""
    return active.key.decode(errors="replace")


def _search_text(request: HttpRequest) -> str:
    return request.GET.get("q", "").strip()[:MAX_SEARCH_LENGTH]


def _listed(request: HttpRequest, bans: Sequence[ActiveBan]) -> list[ActiveBan]:
    """Return the bans of the list, as the query of the URL filters them: the latest first."""
    chosen = request.GET.get("rule", "")
    listed = [active for active in bans if chosen in ("", active.rule, active.limit)]
    if text := _search_text(request):
        listed = _search(listed, text, sees_names=request.user.has_perm(WHO))
    return sorted(listed, key=lambda active: -active.ban.since)


def _search(bans: Sequence[ActiveBan], text: str, *, sees_names: bool) -> list[ActiveBan]:
    """Return the bans of a client, by a limit or for a reason that a text names.

    A client is found by its address, user, value or digest; for users who may see names also by
    its network or a part of its name.
    """
    words = text.casefold()
    digests = {client.digest for client in find_clients(text)}
    found = []
    for active in bans:
        texts = [active.limit, active.rule]
        is_found = active.identity in digests
        if is_prefix(words):
            is_found = is_found or active.identity.startswith(words)
        if sees_names:
            addresses = [value.partition("/")[0] for kind, value in active.who if kind == "ip"]
            is_found = is_found or any(covers(text, address) for address in addresses)
            texts.append(active.why)
            if parse_address(text) is None:  # Otherwise 203.0.113.9 would find 203.0.113.99.
                texts += [value for _kind, value in active.who]
        if is_found or any(words in each.casefold() for each in texts):
            found.append(active)
    return found


def _lift_all(request: HttpRequest, bans: Sequence[ActiveBan], *, forget: bool) -> None:
    """Lift bans, and report how many."""
    if not bans:
        messages.warning(request, _("No bans were lifted: select bans that are still in force."))
        return
    lift_bans(bans, forget=forget)
    text = ngettext("%(number)d ban is lifted.", "%(number)d bans are lifted.", len(bans))
    messages.success(request, text % {"number": len(bans)})


def lift(
    request: HttpRequest, bans: Sequence[ActiveBan], key: str, *, forget: bool = False
) -> None:
    """Lift the ban of this key, as a button sends it, and report it."""
    named = [active for active in bans if _key(active) == key]
    if not named:
        messages.warning(request, _("This ban has ended already."))
        return
    lift_bans(named, forget=forget)
    text = LIFTED["forget" if forget else "lift"]
    messages.success(request, text % _placeholders(request, named[0]))


def offence_rows(offences: Sequence[Offence]) -> list[tuple[datetime.datetime, Offence]]:
    """Return offences with their moments, the latest first."""
    return [(moment_of(offence.moment), offence) for offence in reversed(offences)]


def _name(request: HttpRequest, active: ActiveBan) -> Name:
    if not request.user.has_perm(WHO):
        return []
    return active.who


def _parts(request: HttpRequest, bans: list[ActiveBan]) -> list[list[ReadablePart]]:
    return readable_parts(request, [_name(request, active) for active in bans])


def _client(parts: list[ReadablePart], active: ActiveBan) -> str:
    return client_words(", ".join(part.words for part in parts), active.identity)


def _placeholders(request: HttpRequest, active: ActiveBan) -> dict[str, str]:
    (parts,) = _parts(request, [active])
    return {"client": _client(parts, active), "limit": active.limit}
