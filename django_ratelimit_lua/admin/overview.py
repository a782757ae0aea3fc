"""The page *Overview*: problems first, then sections of optional apps, then the last changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from django.core.checks import WARNING
from django.core.checks.registry import registry
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from ..limits.rate import SECOND
from ..models import RateLimitChange, RateLimitRevision
from ..models.rule import rules_database
from ..operations.formatting import moment_element, moment_of, moment_words
from ..operations.health import Health, health
from ..publishing import triggers
from ..rules import provider
from ..store import Outage, get_store
from .history import annotate_visibility, change_name, describe_change
from .pages import Context, Page, admin_url, extension_sections, may, may_see_rules, page_response

MAX_CHANGES = 5
MAX_PROBLEMS = 20
"""Problems that are listed in full; of further ones, only the number is shown."""
_PACKAGE = "django_ratelimit_lua"


class Problem(NamedTuple):
    """A problem, what to do about it, and a page for that."""

    words: str
    hint: str = ""
    url: str = ""
    label: str = ""


class OverviewPage(Page):
    """The page."""

    may_see = staticmethod(may_see_rules)

    def view(self, request: HttpRequest) -> HttpResponse:
        return page_response(self, request, "overview.html", overview_context(request))


def overview_context(request: HttpRequest) -> Context:
    """Return the context of the page."""
    outage = None
    try:
        state = health()
        outage = get_store().last_outage
    except ImproperlyConfigured as error:  # The system checks explain it.
        state = Health(False, 0.0, str(error), 0, False)
    problems = list(dict.fromkeys(_problems(request, state)))
    return {
        "problems": problems[:MAX_PROBLEMS],
        "more_problems": len(problems[MAX_PROBLEMS:]),
        "is_available": state.ok,
        "outage": outage and _outage_words(outage),
        "revision": state.revision,
        "sections": extension_sections(request),
        "changes": _last_changes(request),
    }


def _outage_words(outage: Outage) -> str:
    """Return when Redis was unavailable, or since when it is, in words."""
    moments = {"start": _second_words(outage.start)}
    if outage.end is None:
        return _("Redis has not decided limits since %(start)s.") % moments
    moments["end"] = _second_words(outage.end)
    return (
        _("Redis did not decide limits from %(start)s to %(end)s, as seen by this process.")
        % moments
    )


def _second_words(seconds: float) -> str:
    """Return a moment, in seconds since 1970, in words with its second."""
    moment = moment_of(seconds * SECOND)
    return f"{moment_words(moment)}:{moment:%S}"


def _problems(request: HttpRequest, state: Health) -> Iterator[Problem]:
    """Yield what keeps limits from working, the most urgent first."""
    yield from _unpublished_changes(request, is_available=state.ok)
    rules = admin_url(request, "django_ratelimit_lua_ratelimitrule_changelist")
    for words in state.problems:
        yield Problem(words, url=rules, label=_("View rules"))
    for check in registry.get_checks():
        if not check.__module__.startswith(_PACKAGE):
            continue
        for message in check(app_configs=None, databases=None):
            if message.level >= WARNING and not message.is_silenced():
                yield Problem(f"{message.msg} ({message.id})", message.hint or "")


def _unpublished_changes(request: HttpRequest, *, is_available: bool) -> Iterator[Problem]:
    """Yield the problem that saved rules are not in force, if there is one."""
    hint = _("It is tried again in the background. “manage.py ratelimit publish” shows why.")
    url = admin_url(request, "django_ratelimit_lua_ratelimitchange_changelist")
    if triggers.unpublished:
        words = _("Saved, but not published yet: %s") % triggers.unpublished
        yield Problem(words, hint, url, _("View changes"))
    elif is_available:
        saved = RateLimitRevision.read(rules_database()).revision
        live = provider.refresh_ruleset().revision.number
        if saved > live:
            words = _("Revision %(saved)s is saved, but revision %(live)s is in force.")
            yield Problem(words % {"saved": saved, "live": live}, hint, url, _("View changes"))


def _last_changes(request: HttpRequest) -> list[Context]:
    """Return the last changes as the page shows them; none without the permission."""
    if not may(request, "view_ratelimitchange"):
        return []
    changes = RateLimitChange.objects.order_by("-at", "-pk")
    return [
        {
            "change": change,
            "at": moment_element(change.at),
            "name": change_name(change),
            "words": describe_change(change, may_see_who=change.may_see_who),  # type: ignore[attr-defined]
        }
        for change in annotate_visibility(request, changes)[:MAX_CHANGES]
    ]
