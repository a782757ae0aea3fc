"""The held slots: since when, where and their purpose, with a button that ends one in every
process.
"""

from __future__ import annotations

import datetime
import time
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from ..conf import conf
from ..engine.slots import Holder
from ..exceptions import StoreError
from ..models import RateLimitRule
from ..models.audit import acting
from ..operations.formatting import breakable
from ..operations.slots import brief, is_named, names, release_slot, slots_held
from ..rules.describe import key_label
from ..web.durations import duration_words
from .history import WHO
from .inspector import BLOCK_PERMISSION
from .pages import VIEW_RULES, Page, page_response
from .times import moment_element


def may_see_slots(request: HttpRequest) -> bool:
    """Whether the page answers them."""
    return bool(request.user.has_perm(VIEW_RULES))


class SlotPage(Page):
    may_see = staticmethod(may_see_slots)

    def view(self, request: HttpRequest) -> HttpResponse:
        """The holders of slots. A POST releases one."""
        may_release = bool(request.user.has_perm(BLOCK_PERMISSION))
        if request.method == "POST":
            if not may_release:
                raise PermissionDenied
            self._release(request)
            return HttpResponseRedirect(request.get_full_path())
        held, is_known = self._held(request)
        chosen = request.GET.get("rule", "")
        shown = [holder for holder in held if not chosen or is_named(holder, chosen)]
        rules = dict(RateLimitRule.objects.filter(name__in=names(shown)).values_list("name", "pk"))
        context = {
            "title": _("Slots"),
            "slots": [_shown(request, holder, rules) for holder in shown],
            "names": [{"name": name, "query": urlencode({"rule": name})} for name in names(held)],
            "chosen": chosen,
            "is_known": is_known,
            "may_release": may_release,
            "seconds": duration_words(conf.SLOT_SECONDS / 4),
        }
        return page_response(self, request, "slots.html", context)

    @staticmethod
    def _held(request: HttpRequest) -> tuple[list[Holder], bool]:
        try:
            return slots_held(), True
        except StoreError as error:
            messages.warning(request, _("Redis is unavailable: %s") % error)
            return [], False

    @staticmethod
    def _release(request: HttpRequest) -> None:
        try:
            with acting(request.user):
                holder = release_slot(request.POST.get("release", ""))
        except StoreError as error:
            messages.error(request, _("Redis is unavailable: %s") % error)
            return
        if holder is None:
            messages.info(request, _("This slot is no longer held."))
            return
        what = _what(request, holder)
        words = _(
            "Released: %(what)s, of %(limit)s. The work that held it goes on, and another client "
            "may take the slot."
        )
        messages.success(request, words % {"what": what, "limit": holder.limit})


def _what(request: HttpRequest, holder: Holder) -> str:
    return holder.what if request.user.has_perm(WHO) else brief(holder.what)


def _shown(request: HttpRequest, holder: Holder, rules: dict[str, int]) -> dict[str, Any]:
    """A slot, for the template."""
    since = datetime.datetime.fromtimestamp(holder.since, tz=datetime.UTC)
    if not timezone.is_aware(timezone.now()):
        since = timezone.make_naive(since)
    words = ", ".join(
        f"{key_label(kind)} {value}" if kind else value for kind, value in holder.identity
    )
    if not words or not request.user.has_perm(WHO):
        words = _("hidden (%(digest)s)") % {"digest": holder.digest[:8]}
    rule, what = rules.get(holder.limit), _what(request, holder)
    return {
        "id": holder.id,
        "what": breakable(what or "—"),
        "plain": what,
        "limit": breakable(holder.limit),
        "rule": ""
        if rule is None
        else reverse("admin:django_ratelimit_lua_ratelimitrule_change", args=[rule]),
        "client": words,
        "units": _("%(units)s of %(limit)s") % {"units": holder.units, "limit": holder.of},
        "since": moment_element(since),
        "lasts": duration_words(max(1.0, time.time() - holder.since)),
        "host": breakable(holder.host),
        "pid": holder.pid,
    }
