"""The remedy for staff that a rule has locked out of the admin.

It is the command that switches the rule off.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext as _

from ..engine.run import Wait, Waiting
from ..limits.decision import Decision
from ..rules.provider import current
from ..rules.rule import Rule


def find_remedy(request: HttpRequest, decision: Decision) -> Waiting[str]:
    """Return the remedy for a refusal on the admin's own pages, for signed-in staff.

    The result is empty for all other users.
    """
    rule = _rule_of(request, decision)
    if rule is not None and (
        yield Wait(partial(_is_staff, request), partial(sync_to_async(_is_staff), request))
    ):
        return _words(rule)
    return ""


def _is_staff(request: HttpRequest) -> bool:
    with suppress(Exception):  # If the user cannot be determined, there is no remedy.
        user: Any = getattr(request, "user", None)
        return user is not None and user.is_active and user.is_staff
    return False


def _rule_of(request: HttpRequest, decision: Decision) -> Rule | None:
    """Return the rule that refuses, if the request may be one of staff to the admin.

    Other requests, of which there may be a flood, cost nothing here.
    """
    ruleset = current()
    if ruleset is None or settings.SESSION_COOKIE_NAME not in request.COOKIES:
        return None
    try:
        if not request.path.startswith(reverse("admin:index")):
            return None
    except NoReverseMatch:
        return None
    return next(
        (rule for rule in map(ruleset.rule_of, decision.denied_by) if rule is not None), None
    )


def _words(rule: Rule) -> str:
    if rule.pk is None:
        return _("The rule “%(rule)s” of RATELIMIT_RULES refuses you.") % {"rule": rule.name}
    import shlex  # Few refusals are on the admin's own pages.

    command = f"python manage.py ratelimit rules mode {shlex.quote(rule.name)} off"
    return _("The rule “%(rule)s” refuses you. This switches it off: %(command)s") % {
        "rule": rule.name,
        "command": command,
    }
