"""The results of a request under one rule, or at one call site, and the time of a decision.

Each result is counted under its letter, each time in one of the buckets of a histogram.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ...conf import conf
from ...engine import DecidedCharge
from ...limits.decision import Decision

ALLOWED = "a"
REFUSED = "r"
ALLOWED_ADVISING = "d"
ADVISED = "v"
"""Of limits with `block=False`, which only inform the view."""
ALLOWED_IN_SHADOW = "h"
SHADOW = "s"
"""Of limits in shadow mode: allowed, and would be refused."""
BANNED = "g"
"""Refused by a ban, not by the limit itself."""
EXEMPT = "x"
BLOCKED = "b"
"""By overrides."""
POLICY = "e"
"""Allowed or refused by the policy "open" or "closed", as Redis was unavailable."""
FAILED = "f"
"""The rule could not be applied to the request."""

LABELS = {
    ALLOWED: ("enforce", "allowed"),
    REFUSED: ("enforce", "refused"),
    BANNED: ("enforce", "banned"),
    ALLOWED_ADVISING: ("advise", "allowed"),
    ADVISED: ("advise", "refused"),
    ALLOWED_IN_SHADOW: ("shadow", "allowed"),
    SHADOW: ("shadow", "refused"),
    EXEMPT: ("", "exempt"),
    BLOCKED: ("", "blocked"),
    POLICY: ("", "policy"),
    FAILED: ("", "failed"),
}
"""Mode and result by letter. The mode is empty if it makes no difference."""

WORDS = {
    "allowed": "adh",
    "refused": "rvg",
    "would_be_refused": "s",
    "blocked": "b",
    "exempt": "x",
    "policy": "e",
    "failed": "f",
}
"""Results as the pages show them, with the letters that each contains."""

FREE = frozenset({ALLOWED, ALLOWED_ADVISING, ALLOWED_IN_SHADOW, POLICY})
"""Results of hits that took their units, as far as they were granted."""
BY_MODE = {
    "enforce": (REFUSED, ALLOWED),
    "advise": (ADVISED, ALLOWED_ADVISING),
    "shadow": (SHADOW, ALLOWED_IN_SHADOW),
}
"""The result of a hit under a limit of that mode, by whether the limit allowed it."""

SOURCES = {"redis": "r", "deny-cache": "d", "lease": "l", "split": "s", "fallback": "f"}
"""The source of a decision, by letter."""
TIME_BOUNDS = (
    50e-6,
    100e-6,
    250e-6,
    500e-6,
    1e-3,
    2.5e-3,
    5e-3,
    10e-3,
    25e-3,
    50e-3,
    100e-3,
    250e-3,
)
"""The maximum number of seconds in each bucket of times but the last."""
WAIT_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""The same for the times that requests waited before a process began with them."""


def results_of(
    charges: Sequence[DecidedCharge], decision: Decision, exempt: Sequence[DecidedCharge]
) -> tuple[dict[str, str], str]:
    """Return the result of a decision for each rule or call site, and as a whole.

    Args:
        charges: The charges.
        decision: The decision about them.
        exempt: The charges that an override has removed.

    Returns:
        The results by name, refused if one of its rates refuses, and the result of the whole
        decision (empty: no limit was decided).
    """
    results: dict[str, str] = {}
    whole = ""
    for decided in charges:
        name = decided.name
        if name not in results or not decided.state.allowed:
            results[name] = result_of(decided, decision.source)
        if decided.state.refuses:
            whole = results[name]
    if not whole and results:
        whole = ALLOWED if ALLOWED in results.values() else results[next(reversed(results))]
    for removed in exempt:
        whole = whole or EXEMPT
        results.setdefault(removed.name, EXEMPT)
    return results, whole


def result_of(decided: DecidedCharge, source: str) -> str:
    """Return the result of one charge."""
    state = decided.state
    if state.block is not None:
        return BLOCKED
    if (
        source == "fallback"
        and (decided.charge.limit.on_store_error or conf.ON_STORE_ERROR) != "local"
    ):
        return POLICY
    ban = state.ban
    if ban is not None and ban.until and state.refuses and not ban.is_new:
        return BANNED
    return BY_MODE[state.mode][state.allowed]


def by_word(counts: Mapping[str, int]) -> Counter[str]:
    """Return counts by the words of the pages, and the sum of all `requests`.

    - `banned`: the number of refused requests that a ban has refused.

    >>> sorted(by_word({"a": 2, "g": 1, "Sr": 3}).items())
    [('allowed', 2), ('banned', 1), ('refused', 1), ('requests', 3)]
    """
    numbers: Counter[str] = Counter()
    for word, letters in WORDS.items():
        number = sum(counts.get(letter, 0) for letter in letters)
        if number:
            numbers[word] = number
            numbers["requests"] += number
    if counts.get(BANNED):
        numbers["banned"] = counts[BANNED]
    return numbers


def percentile_95(histogram: Mapping[int, int]) -> float | None:
    """Return the maximum number of seconds that 95 % of the decisions took.

    Args:
        histogram: The number of decisions in each bucket of times.

    Returns:
        The bound of a bucket, at most the largest one, or None if there are no decisions.

    >>> percentile_95({0: 90, 3: 10}), percentile_95({0: 96, 3: 4}), percentile_95({})
    (0.0005, 5e-05, None)
    """
    wanted = 0.95 * sum(histogram.values())
    seen = 0
    for bucket in sorted(histogram):
        seen += histogram[bucket]
        if seen >= wanted:
            return TIME_BOUNDS[min(bucket, len(TIME_BOUNDS) - 1)]
    return None
