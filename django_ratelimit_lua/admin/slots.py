"""The page of held slots: their start, holder and purpose, with a button that ends one."""

from __future__ import annotations

import time
from collections.abc import Iterable

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from ..conf import conf
from ..engine.slots import Holder
from ..limits.rate import SECOND
from ..models import RateLimitRule
from ..operations.formatting import moment_of
from ..operations.slots import brief, is_named, names, release_slot, slots_held
from .client_links import client_links
from .identities import WHO, identity_words, visible_name
from .pages import ActionPage, Context, may_see_rules, page_response, read_or_warn


class SlotPage(ActionPage):
    """The page of the holders of slots. A button releases a slot in every process."""

    may_see = staticmethod(may_see_rules)

    def view(self, request: HttpRequest) -> HttpResponse:
        found = read_or_warn(request, slots_held)
        held = found or []
        chosen = request.GET.get("rule", "")
        listed = [holder for holder in held if not chosen or is_named(holder, chosen)]
        rules = RateLimitRule.objects.keys_by_name(names(listed))
        clients = [(holder.digest, visible_name(request, holder.identity)) for holder in listed]
        slots = slot_rows(request, listed)
        for slot, (_digest, name), links in zip(
            slots, clients, client_links(request, clients), strict=True
        ):
            slot["rule"] = rules.get(slot["holder"].limit)
            slot["client"] = identity_words(name)
            slot["links"] = links
        context = {
            "slots": slots,
            "names": names(held),
            "chosen": chosen,
            "is_known": found is not None,
            "seconds": conf.SLOT_SECONDS / 4,
        }
        return page_response(self, request, "slots.html", context)

    def act(self, request: HttpRequest, action: str, target: str) -> Context:
        """Release a slot."""
        release(request, request.POST.get("release", ""))
        return {}


def release(request: HttpRequest, holder_id: str) -> None:
    """Release a slot, and report it."""
    holder = release_slot(holder_id)
    if holder is None:
        messages.info(request, _("This slot is no longer held."))
        return
    text = _(
        "Released: %(what)s, of %(limit)s. The work continues, and another client may take "
        "the slot."
    )
    placeholders = {"what": purpose_words(request, holder), "limit": holder.limit}
    messages.success(request, text % placeholders)


def slot_rows(request: HttpRequest, holders: Iterable[Holder]) -> list[Context]:
    """Return the holders of slots as the pages show them."""
    return [
        {
            "holder": holder,
            "what": purpose_words(request, holder),
            "since": moment_of(holder.since * SECOND),
            "seconds": max(1.0, time.time() - holder.since),
        }
        for holder in holders
    ]


def purpose_words(request: HttpRequest, holder: Holder) -> str:
    """Return the purpose of a slot, as far as the user may see it."""
    if request.user.has_perm(WHO):
        return holder.what
    return brief(holder.what)
