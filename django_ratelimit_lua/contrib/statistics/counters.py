"""The counters: the results and times that are counted, and their keys in Redis.

Each result of a request under one rule, or at one call site, is counted under its letter, and each
time in a bucket of a histogram. All keys of one rule or call site are in one hash slot. They begin
with `<prefix>{stats:<name>}:`. For the whole site there are

- `names`, a sorted set: the counted names, each with the hour of its last decision;

and for each name

- `turn:<hour>`, of a name with durable statistics: a lock, so that one process copies its hours;
- `minutes:<hour>`, a hash: result, or source `S…`, and minute → a number, for 49 hours. For the
  whole site, requests by result, and decisions by source;
- `hours:<day>`, a hash: the same by the hour, for 91 days;
- `times:<day>`, a hash: the bucket of a time and the hour → decisions, for 91 days;
- `waits:<day>`, for the whole site, a hash: the bucket of a waiting time and the hour → requests,
  for 91 days;
- `top:<hour>`, a hash: a process → its clients with most units and most refusals, as JSON, for 25
  hours. Under the empty name, for the whole site, there are only refusals. A request that several
  limits with the same key refuse counts once;
- `version:<version>`, a hash and two HyperLogLogs: the requests of a version of a rule in shadow
  mode, for 8 days;
- `totals`, a hash for metrics: result → requests, units taken `u` and refused `w`, near the limit
  `n`; for the whole site also histograms of times as above, their sums in microseconds (`T`,
  source), of waiting times (`q`, bucket) and their sum in microseconds (`Q`), and failures of the
  store (`E`, kind). These never fall, and expire 91 days after the last decision;
- `dropped`, for the whole site, a hash: day → requests of rules that were not counted, for 91 days;
- `batch:<process>`: the number of the last batch that this process wrote, for six hours.

`<name>` is a digest of the name. For the whole site, it is empty. Minutes, hours and days are
numbered since 1970, in UTC.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

from ...conf import conf
from ...engine import DecidedCharge
from ...limits.decision import Decision

MINUTE = 60
HOUR = 3600
DAY = 86_400
MINUTES_KEPT = 49 * HOUR
HOURS_KEPT = 91 * DAY
TOP_HOURS = 24
"""Hours that are read of the lists of clients."""
TOP_KEPT = (TOP_HOURS + 1) * HOUR
VERSIONS_KEPT = 8 * DAY
BATCH_KEPT = 6 * HOUR
SITE = ""
"""The name of the whole site."""
OTHER = "(other)"
"""The name that stands for those beyond `MAX_NAMES`."""
MAX_NAMES = 1000
"""Names that the whole site counts apart."""
MAX_LABELS = 200
"""Maximum number of names as labels of metrics in a process, in addition to those that are counted
here.
"""
REST = "other"
"""The label of all further names."""
TOTALS = b"totals"
DROPPED = b"dropped"
NOT_IN_VERSIONS = frozenset({"mode", "order", "description", "message", "durable"})
"""Fields of a rule that make no difference to its refusals."""

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


@lru_cache(maxsize=4096)
def tag_of(name: str) -> bytes:
    """Return the digest that stands for a name in keys."""
    encoded = name.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(encoded, digest_size=8).hexdigest().encode()


def key_of(name: str, suffix: bytes) -> bytes:
    """Return a key of one rule or call site."""
    return b"%b{stats:%b}:%b" % (conf.CACHE_PREFIX, tag_of(name), suffix)


def version_of(spec: Mapping[str, object]) -> str:
    """Return a hash of a rule's spec, which identifies its version.

    Requests in shadow mode are counted by version, so the numbers are those of the current one.
    """
    fields = {field: value for field, value in spec.items() if field not in NOT_IN_VERSIONS}
    text = json.dumps(fields, sort_keys=True, default=str).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8).hexdigest()


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
    if len(charges) == 1 and not exempt:
        result = result_of(charges[0], decision.source)
        return {charges[0].name: result}, result
    results: dict[str, str] = {}
    refusal = ""
    for decided in charges:
        name = decided.name
        if name not in results or not decided.state.allowed:
            results[name] = result_of(decided, decision.source)
        if decided.state.refuses:
            refusal = results[name]
    if refusal:
        whole = refusal
    elif ALLOWED in results.values():
        whole = ALLOWED
    elif results:
        whole = results[next(reversed(results))]
    else:
        whole = EXEMPT if exempt else ""
    for removed in exempt:
        results.setdefault(removed.name, EXEMPT)
    return results, whole


def result_of(decided: DecidedCharge, source: str) -> str:
    """Return the result of one charge."""
    state = decided.state
    if state.block is not None:
        return BLOCKED
    if source == "fallback":
        policy = decided.charge.limit.on_store_error or conf.ON_STORE_ERROR
        if policy != "local":
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
    words: Counter[str] = Counter()
    for word, letters in WORDS.items():
        number = sum(counts.get(letter, 0) for letter in letters)
        if number:
            words[word] = number
            words["requests"] += number
    if counts.get(BANNED):
        words["banned"] = counts[BANNED]
    return words


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
