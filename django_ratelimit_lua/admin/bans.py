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
from ..operations.known_limits import place_words
from .client_search import matching_digests
from .identities import (
    SEE_NAMES,
    client_links,
    client_url,
    client_words,
    may_see_clients,
    readable_names,
    visible_name,
)
from .limits import limit_url
from .pages import ActionPage, Context, page_response, search_text

MAX_ROWS = 100
"""Maximum number of bans on a page."""
LIFTED = {
    "lift": gettext_lazy("The ban of %(client)s by %(limit)s is lifted."),
    "forget": gettext_lazy(
        "The ban of %(client)s by %(limit)s is lifted. The next one is as short as the first."
    ),
}
"""By action of a button: the message after it."""


class BanPage(ActionPage):
    """The page of bans and the actions of its buttons."""

    may_see = staticmethod(may_see_clients)

    def view(self, request: HttpRequest, **context: Any) -> HttpResponse:
        """Show the bans in force, or that they are unknown, if Redis is unavailable."""
        context |= {
            "search": search_text(request),
            "are_names_hidden": conf.SHOW_IDENTITIES != "plain"
            or not request.user.has_perm(SEE_NAMES),
        }
        try:
            context |= _list_context(request)
        except StoreError as error:
            context["error"] = error
        return page_response(self, request, "bans.html", context)

    def act(self, request: HttpRequest, action: str, target: str) -> Context:
        """Lift the ban with a key, those that were selected, or all that are listed.

        To lift all of them has to be confirmed: the page asks first.
        """
        if action not in LIFTED:
            raise PermissionDenied
        bans = active_bans()
        if target == "all":
            listed = _filter_bans(request, bans)
            if listed and "confirmed" not in request.POST:
                return {"pending": len(listed)}
            _lift_listed_bans(request, listed, action)
        elif target == "selected":
            chosen = request.POST.getlist("ban")
            _lift_listed_bans(request, [ban for ban in bans if ban_key(ban) in chosen], action)
        else:
            lift_ban(request, bans, action, target)
        return {}


def _lift_listed_bans(request: HttpRequest, bans: Sequence[ActiveBan], action: str) -> None:
    """Lift these bans, and report their number."""
    if not bans:
        messages.warning(request, _("No bans were lifted: select bans that are still in force."))
        return
    lift_bans(bans, forget=action == "forget")
    text = ngettext("%(number)d ban is lifted.", "%(number)d bans are lifted.", len(bans))
    messages.success(request, text % {"number": len(bans)})


def _list_context(request: HttpRequest) -> Context:
    """Return the context of the list: one page of it."""
    bans = _filter_bans(request, active_bans())
    page = Paginator(bans, MAX_ROWS).get_page(request.GET.get("p"))
    return {
        "rows": _ban_rows(request, list(page)),
        "page": page,
        "number": page.paginator.count,
    }


def _ban_rows(request: HttpRequest, bans: Sequence[ActiveBan]) -> list[Context]:
    """Return the bans as the list shows them, each with the links of its client."""
    clients = [(ban.identity, visible_name(request, ban.who)) for ban in bans]
    names = readable_names([name for _digest, name in clients])
    rows = []
    for ban, name, links in zip(bans, names, client_links(request, clients), strict=True):
        rows.append(
            {
                "active": ban,
                "key": ban_key(ban),
                "label": place_words(ban.name),
                "page": limit_url(request, ban.name),
                "name": name,
                "client": client_words(name, ban.identity),
                "links": links._replace(url=client_url(request, ban.identity, ban.name)),
            }
        )
    return rows


def ban_key(ban: ActiveBan) -> str:
    """Return the key of a ban, as a button sends it."""
    return ban.key.decode(errors="replace")


def _filter_bans(request: HttpRequest, bans: Sequence[ActiveBan]) -> list[ActiveBan]:
    """Return the bans that the query of the URL asks for, the latest first."""
    if text := search_text(request):
        bans = _search_bans(bans, text, sees_names=request.user.has_perm(SEE_NAMES))
    return sorted(bans, key=lambda ban: ban.since, reverse=True)


def _search_bans(bans: Sequence[ActiveBan], text: str, *, sees_names: bool) -> list[ActiveBan]:
    """Return the bans with a client, limit, rule or reason that matches a text.

    A client matches by its address, user, value or digest. If the operator may see names, a client
    also matches by its network or a part of its name, and a ban by its reason.
    """
    folded = text.casefold()
    names: dict[str, Name] = {ban.identity: [] for ban in bans}
    if sees_names:
        names |= {ban.identity: ban.who for ban in bans if ban.who}
    digests = matching_digests(text, names)
    matching = []
    for ban in bans:
        labels = [ban.limit, ban.rule, place_words(ban.name)]
        if sees_names:
            labels.append(ban.why)
        if ban.identity in digests or any(folded in label.casefold() for label in labels):
            matching.append(ban)
    return matching


def lift_ban(request: HttpRequest, bans: Sequence[ActiveBan], action: str, key: str) -> None:
    """Lift the ban with this key, as a button sends it, and report that."""
    ban = next((ban for ban in bans if ban_key(ban) == key), None)
    if ban is None:
        messages.warning(request, _("This ban has ended already."))
        return
    lift_bans([ban], forget=action == "forget")
    (name,) = readable_names([visible_name(request, ban.who)])
    words = {"client": client_words(name, ban.identity), "limit": place_words(ban.name)}
    messages.success(request, LIFTED[action] % words)
