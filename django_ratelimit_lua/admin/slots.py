"""The page of held slots: their start, holder and purpose, with a button that ends one."""

from __future__ import annotations

import datetime
import time

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from ..conf import conf
from ..engine.slots import Holder
from ..models import RateLimitRule
from ..operations.slots import brief, is_named, names, release_slot, slots_held
from .history import WHO
from .identities import identity_words
from .pages import (
    ActionPage,
    may_see_rules,
    page_response,
    read_or_warn,
)


class SlotPage(ActionPage):
    """The page of the holders of slots. A button releases a slot in every process."""

    may_see = staticmethod(may_see_rules)

    def view(self, request: HttpRequest, **context: object) -> HttpResponse:
        found = read_or_warn(request, slots_held)
        held = found or []
        chosen = request.GET.get("rule", "")
        listed = [holder for holder in held if not chosen or is_named(holder, chosen)]
        rules = dict(RateLimitRule.objects.filter(name__in=names(listed)).values_list("name", "pk"))
        context = {
            "slots": [
                {
                    "holder": holder,
                    "rule": rules.get(holder.limit),
                    "what": _what(request, holder),
                    "client": _client(request, holder),
                    "since": datetime.datetime.fromtimestamp(holder.since, datetime.UTC),
                    "seconds": max(1.0, time.time() - holder.since),
                }
                for holder in listed
            ],
            "names": names(held),
            "chosen": chosen,
            "is_known": found is not None,
            "seconds": conf.SLOT_SECONDS / 4,
        }
        return page_response(self, request, "slots.html", context)

    def act(self, request: HttpRequest) -> dict[str, object]:
        """Release a slot."""
        holder = release_slot(request.POST.get("release", ""))
        if holder is None:
            messages.info(request, _("This slot is no longer held."))
            return {}
        text = _(
            "Released: %(what)s, of %(limit)s. The work continues, and another client may take "
            "the slot."
        )
        placeholders = {"what": _what(request, holder), "limit": holder.limit}
        messages.success(request, text % placeholders)
        return {}


def _what(request: HttpRequest, holder: Holder) -> str:
    if request.user.has_perm(WHO):
        return holder.what
    return brief(holder.what)


def _client(request: HttpRequest, holder: Holder) -> str:
    if holder.identity and request.user.has_perm(WHO):
        return identity_words(holder.identity)
    return _("hidden (%(digest)s)") % {"digest": holder.digest[:8]}
