"""The content of a refusal in words, numbers and a reference.

It is the same in every format of the response.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar, Literal

from django.conf import settings
from django.http import HttpRequest
from django.utils import translation
from django.utils.formats import number_format
from django.utils.module_loading import import_string
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..exceptions import Ratelimited
from ..identity.request_state import request_state
from ..limits.decision import Decision, LimitState
from ..rules.provider import get_ruleset
from ..rules.rule import Rule
from .headers import violated_policies
from .reference import reference_of, refusal_log

REFERENCE_HEADER = "RateLimit-Reference"
Reason = Literal[
    "wait", "at once", "busy", "banned", "blocked", "unavailable", "too large", "unknown"
]
QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
QUOTA_EXCEEDED_TITLE = "Request cannot be satisfied as assigned quota has been exceeded"
ABNORMAL_USAGE = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected"
REDUCED_CAPACITY = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
REDUCED_CAPACITY_TITLE = "Request cannot be satisfied due to temporary server capacity constraints"
ABNORMAL_USAGE_TITLE = "Request not satisfied due to detection of abnormal request pattern"
"""Of draft-ietf-httpapi-ratelimit-headers, section 5, for programs: not translated."""


class ErrorDetails:
    """The content of the response to a refused client.

    - `page`: the template of a project for browsers; `folder`: the folder with this package's own;
    - `status`: the status of the response;
    - `retry_after`: whole seconds, rounded up, and at least 1 (RFC 9110, 10.2.3); None: waiting
      does not help.
    """

    page: ClassVar[str]
    folder: ClassVar[Path] = Path(__file__).parents[1] / "templates"
    status: Any
    retry_after: int | None

    def detail(self) -> str:
        """Return the complete text, in the current language."""
        raise NotImplementedError

    def members(self) -> dict[str, object]:
        """Return the members of the body for programs (RFC 9457) that not every format has."""
        return {}

    def context(self) -> dict[str, object]:
        """Return the context of a page."""
        raise NotImplementedError

    def lines(self) -> list[str]:
        """Return the lines of a response in plain text."""
        return [self.detail()]

    def problem(self) -> dict[str, object]:
        """Return a problem document (RFC 9457)."""
        # The title is for programs: not translated.
        body: dict[str, object] = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
        }
        if detail := self.detail():
            body["detail"] = detail
        if self.retry_after is not None:
            body["retry_after"] = self.retry_after
        return body | self.members()

    def headers(self) -> dict[str, str]:
        """Return the headers of the response, except the rate-limit headers."""
        headers = {"Cache-Control": "no-store"}
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        return headers


def details_of(error: Exception) -> ErrorDetails | None:
    """Return the details for the response to an exception that a view raised.

    An exception of an optional app has them as `error_details`. None for all others.
    """
    details = getattr(error, "error_details", None)
    return details if isinstance(details, ErrorDetails) else None


@dataclass(eq=False)
class Refusal(ErrorDetails):
    """The content of the response to a decision that refuses.

    - `reason`: "wait": waiting helps; "at once": slots may be free at any moment; "busy": a rule
      with `waited` refuses; "banned": until a ban ends; "blocked": without an end; "unavailable":
      the limit is 0; "too large": more than the limit can ever allow; "unknown": no decision is
      known, as when `Ratelimited` is raised by hand;
    - `message`: the message of the rule, or empty;
    - `reference`: see `web.reference`; may be empty;
    - `is_forbidden`: whether a block responds with 403 instead of 429. Such a response does not
      contain the end of the block.
    """

    page = "429.html"
    decision: Decision
    reason: Reason
    message: str
    retry_after: int | None
    reference: str
    is_forbidden: bool = False

    @property
    def status(self) -> int:
        """Return the status of the response."""
        if self.is_forbidden:
            return 403
        if self.reason == "busy":
            return 503
        return 429

    def when(self) -> str:
        """Return when to try again, or why not, in the current language.

        Empty if neither is known, and for a block with its own message and the status 403.
        """
        if self.is_forbidden:
            return "" if self.message else _("You are blocked.")
        if self.banned_until:
            until = f"{self.decision.banned_until:%Y-%m-%d %H:%M:%S} UTC"
            words = {"until": until, "in_time": in_time(self.retry_after or 1)}
            return _("You are banned until %(until)s. Try again %(in_time)s.") % words
        if self.retry_after is not None:
            return _("Try again %(in_time)s.") % {"in_time": in_time(self.retry_after)}
        return {
            "blocked": _("You are blocked."),
            "unavailable": _("This is not available."),
            "too large": _("This request is larger than the limit allows."),
        }.get(self.reason, "")

    @property
    def banned_until(self) -> str:
        """Return the end of the ban that refuses, for programs (RFC 3339).

        Empty without a ban, or if its end is not disclosed.
        """
        until = self.decision.banned_until
        if self.retry_after is None or until is None:
            return ""
        return until.isoformat().replace("+00:00", "Z")

    def first_sentence(self) -> str:
        """Return the sentence that reports the refusal, in the current language.

        Empty for blocked clients, which get another sentence.
        """
        if self.is_forbidden:
            return ""
        if self.reason == "at once":
            return _("Too many requests at the same time.")
        if self.reason == "busy":
            return _("The server is busy.")
        return _("Too many requests.")

    def detail(self) -> str:
        """Return the message, and when to try again, or why not."""
        message = self.message
        if not message and self.reason in ("at once", "busy"):
            message = self.first_sentence()
        return f"{message} {self.when()}".strip()

    def members(self) -> dict[str, object]:
        """Return the members of the body for programs (RFC 9457).

        They are type, title, the reference, and the names of the violated policies as in
        draft-ietf-httpapi-ratelimit-headers.
        """
        members: dict[str, object] = {}
        violated = violated_policies(self.decision)
        if violated:
            members |= {
                "type": QUOTA_EXCEEDED,
                "title": QUOTA_EXCEEDED_TITLE,
                "violated-policies": violated,
            }
        if self.reason == "busy":
            members |= {"type": REDUCED_CAPACITY, "title": REDUCED_CAPACITY_TITLE}
        elif self.banned_until:
            members |= {
                "type": ABNORMAL_USAGE,
                "title": ABNORMAL_USAGE_TITLE,
                "banned-until": self.banned_until,
            }
        if self.reference:
            members["reference"] = self.reference
        return members

    def context(self) -> dict[str, object]:
        return {
            "when": self.when(),
            "decision": self.decision,
            "reason": self.reason,
            "message": self.message,
            "retry_after": self.retry_after,
            "reference": self.reference,
        }

    def lines(self) -> list[str]:
        sentences = [self.first_sentence(), self.message, self.when()]
        lines = [" ".join(filter(None, sentences))]
        if self.reference:
            lines.append(_("Reference: %s") % self.reference)
        return lines

    def headers(self) -> dict[str, str]:
        headers = super().headers()
        if self.reference:
            headers[REFERENCE_HEADER] = self.reference
        return headers

    def describe_in(self, error: Ratelimited) -> Ratelimited:
        """Store the details of the refusal on the exception for its handler, and return it."""
        error.message = self.message
        error.when = self.when()
        error.reference = self.reference
        error.status_code = self.status
        return error


def refusal_of(request: HttpRequest, decision: Decision) -> Refusal:
    """Return the content for a refused request, made and logged once for each decision."""
    state = request_state(request)
    refusal: Refusal | None = state.refusal
    if refusal is None or refusal.decision is not decision:
        rules = _refusing_rules(decision)
        rule = next((rule.name for rule in rules), None)
        message = next((rule.message for rule in rules if rule.message), "")
        refusal = _make_refusal(decision, message, state.busy)
        state.refusal = refusal
        refusal_log.write(request, decision, rule, refusal.reference)
    return refusal


def _make_refusal(decision: Decision, message: str, busy: Mapping[str, float]) -> Refusal:
    """Return the content for a decision.

    `message` is that of the rules, which a block's message replaces. `busy`: the seconds after
    which to try again, by the names of the limits that refuse because the server is busy.
    """
    refusing = decision.refusing
    blocks = [limit.block for limit in refusing if limit.block is not None]
    text = next((block.message for block in blocks if block.message), message)
    reference = reference_of(decision)
    if any(block.forbids for block in blocks):
        return Refusal(decision, "blocked", text, None, reference, is_forbidden=True)
    busy_seconds = [
        busy[limit.name] for limit in refusing if not limit.is_block and limit.name in busy
    ]
    if busy_seconds:
        return Refusal(decision, "busy", text, _whole_seconds(max(busy_seconds)), reference)
    retry_after = _whole_seconds(decision.retry_after)
    return Refusal(decision, _choose_reason(refusing), text, retry_after, reference)


def _whole_seconds(seconds: float | None) -> int | None:
    """Return the value of `Retry-After`, at least 1; None stays None."""
    return None if seconds is None else max(1, math.ceil(seconds))


def _refusing_rules(decision: Decision) -> list[Rule]:
    """Return the rules whose limits refuse. A limit in the code has no rule."""
    ruleset = get_ruleset()
    if ruleset is None:
        return []
    rules = [ruleset.rule_of(state.name) for state in decision.refusing]
    return [rule for rule in rules if rule is not None]


def _choose_reason(refused: Sequence[LimitState]) -> Reason:
    """Return why these limits refuse, as a `Refusal.reason`."""
    if not refused:
        return "unknown"
    never = [state for state in refused if state.retry_after is None]
    if not never and any(state.banned_until for state in refused):
        return "banned"
    if not never and all(state.is_slots for state in refused):
        return "at once"
    if not never:
        return "wait"
    if any(state.is_block for state in never):
        return "blocked"
    if all(state.limit for state in never):
        return "too large"
    return "unavailable"


@contextmanager
def language_of(request: HttpRequest) -> Iterator[None]:
    """Activate the language that the site will use for a client.

    If `LocaleMiddleware` runs later, the active language is still that of the previous request.
    """
    is_active = not settings.USE_I18N or hasattr(request, "LANGUAGE_CODE")
    if is_active or not _has_locale_middleware(tuple(settings.MIDDLEWARE)):
        yield
        return
    from django.conf.urls.i18n import is_language_prefix_patterns_used

    by_path = is_language_prefix_patterns_used(settings.ROOT_URLCONF)[0]
    with translation.override(translation.get_language_from_request(request, check_path=by_path)):
        yield


@lru_cache(maxsize=8)
def _has_locale_middleware(middleware: tuple[str, ...]) -> bool:
    from django.middleware.locale import LocaleMiddleware  # Imported only if it is needed.

    classes: list[object] = [import_string(path) for path in middleware]
    return any(isinstance(cls, type) and issubclass(cls, LocaleMiddleware) for cls in classes)


def in_time(seconds: float) -> str:
    """Return the time from now in words, rounded up.

    It is exact up to 90 seconds, then rounded up to minutes, hours or days.

    >>> in_time(1), in_time(90), in_time(950), in_time(7200), in_time(200_000)
    ('in 1 second', 'in 90 seconds', 'in about 16 minutes', 'in about 2 hours', 'in about 3 days')
    """
    count = math.ceil(seconds)
    if seconds <= 90:
        words = ngettext("in %(count)d second", "in %(count)d seconds", count)
    elif seconds <= 90 * 60:
        count = math.ceil(seconds / 60)
        words = ngettext("in about %(count)d minute", "in about %(count)d minutes", count)
    elif seconds <= 36 * 3600:
        count = math.ceil(seconds / 3600)
        words = ngettext("in about %(count)d hour", "in about %(count)d hours", count)
    else:
        count = math.ceil(seconds / 86_400)
        words = ngettext("in about %(count)d day", "in about %(count)d days", count)
    return words % {"count": count}


def duration_words(seconds: float) -> str:
    """Return a duration in words.

    >>> duration_words(0.26), duration_words(5), duration_words(59.2), duration_words(7300)
    ('0.3 s', '5 s', '60 s', '2 h 1 min')
    """
    if seconds < 10:
        tenths = round(seconds * 10)
        digits = 1 if tenths % 10 else 0  # "5 s", not "5.0 s".
        return _("%(seconds)s s") % {"seconds": number_format(tenths / 10, digits)}
    whole = math.ceil(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes_left = divmod(minutes, 60)
    days, hours_left = divmod(hours, 24)
    if days:
        return _("%(days)d d %(hours)d h") % {"days": days, "hours": hours_left}
    if hours:
        return _("%(hours)d h %(minutes)d min") % {"hours": hours, "minutes": minutes_left}
    if minutes > 1:
        return _("%(minutes)d min %(seconds)d s") % {"minutes": minutes, "seconds": rest}
    return _("%(seconds)s s") % {"seconds": whole}
