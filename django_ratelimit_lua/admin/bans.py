"""The page of bans: the banned clients, and buttons that lift bans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..conf import conf
from ..exceptions import StoreError
from ..identity.names import Name
from ..operations.bans import ActiveBan, active_bans, lift_bans
from ..operations.call_sites import place_words
from ..operations.client_search import computed_clients, matcher
from .identities import (
    WHO,
    link_words,
    may_see_clients,
    readable_parts,
    visible_name,
)
from .limits import limit_url
from .links import client_links, client_url
from .pages import ActionPage, Context, page_response

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

    may_see = staticmethod(may_see_clients)

    def view(self, request: HttpRequest, **context: Any) -> HttpResponse:
        """Show the banned clients."""
        context |= {
            "chosen": request.GET.get("rule", ""),
            "search": _search_text(request),
            "are_names_hidden": conf.SHOW_IDENTITIES != "plain" or not request.user.has_perm(WHO),
        }
        try:
            context |= self._found(request)
        except StoreError as error:
            context["error"] = error
        return page_response(self, request, "bans.html", context)

    def _found(self, request: HttpRequest) -> Context:
        found = active_bans()
        page = Paginator(_listed(request, found), SHOWN).get_page(request.GET.get("p"))
        bans = list(page)
        clients = [(active.identity, visible_name(request, active.who)) for active in bans]
        links = client_links(request, clients)
        named = readable_parts(request, [name for _digest, name in clients])
        rows = []
        for active, parts, link in zip(bans, named, links, strict=True):
            rows.append(
                {
                    "active": active,
                    "key": ban_key(active),
                    "label": place_words(active.name),
                    "page": limit_url(request, active.name),
                    "parts": parts,
                    "client": link_words(parts, active.identity),
                    "links": link._replace(url=client_url(request, active.identity, active.name)),
                }
            )
        return {
            "rows": rows,
            "names": {name: place_words(name) for name in sorted({ban.name for ban in found})},
            "page": page,
            "number": page.paginator.count,
        }

    def act(self, request: HttpRequest, action: str, target: str) -> Context:
        """Lift a ban, those that were selected, or all that are listed."""
        if action not in LIFTED:
            raise PermissionDenied
        bans = active_bans()
        if target == "selected":
            chosen = request.POST.getlist("ban")
            bans = [active for active in bans if ban_key(active) in chosen]
        elif target == "all":
            bans = _listed(request, bans)
            if bans and "confirmed" not in request.POST:
                return {"pending": len(bans)}
        else:
            lift(request, bans, action, target)
            return {}
        if bans:
            lift_bans(bans, forget=action == "forget")
            text = ngettext("%(number)d ban is lifted.", "%(number)d bans are lifted.", len(bans))
            messages.success(request, text % {"number": len(bans)})
        else:
            problem = _("No bans were lifted: select bans that are still in force.")
            messages.warning(request, problem)
        return {}


def ban_key(active: ActiveBan) -> str:
    """Return the key of a ban, as a button sends it."""
    return active.key.decode(errors="replace")


def _search_text(request: HttpRequest) -> str:
    return request.GET.get("q", "").strip()[:MAX_SEARCH_LENGTH]


def _listed(request: HttpRequest, bans: Sequence[ActiveBan]) -> list[ActiveBan]:
    """Return the bans of the list, as the query of the URL filters them: the latest first."""
    chosen = request.GET.get("rule", "")
    listed = [active for active in bans if chosen in ("", active.name)]
    if text := _search_text(request):
        listed = _search(listed, text, sees_names=request.user.has_perm(WHO))
    return sorted(listed, key=lambda active: active.since, reverse=True)


def _search(bans: Sequence[ActiveBan], text: str, *, sees_names: bool) -> list[ActiveBan]:
    """Return the bans with a client, limit, rule or reason that matches a text.

    A client matches by its address, user, value or digest. If the operator may see names, a client
    also matches by its network or a part of its name, and a ban by its reason.
    """
    words = text.casefold()
    digests = {client.digest for client in computed_clients(text)}
    matches = matcher(text)
    found = []
    for active in bans:
        texts = [active.limit, active.rule, place_words(active.name)]
        who: Name = []
        if sees_names:
            texts.append(active.why)
            who = active.who
        is_found = active.identity in digests or matches(active.identity, who)
        if is_found or any(words in each.casefold() for each in texts):
            found.append(active)
    return found


def lift(request: HttpRequest, bans: Sequence[ActiveBan], action: str, key: str) -> None:
    """Lift the ban of this key, as a button sends it, and report it."""
    active = next((active for active in bans if ban_key(active) == key), None)
    if active is None:
        messages.warning(request, _("This ban has ended already."))
        return
    lift_bans([active], forget=action == "forget")
    (parts,) = readable_parts(request, [visible_name(request, active.who)])
    placeholders = {
        "client": link_words(parts, active.identity),
        "limit": place_words(active.name),
    }
    messages.success(request, LIFTED[action] % placeholders)
