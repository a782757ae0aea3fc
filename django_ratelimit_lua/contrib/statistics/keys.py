"""The keys of statistics in Redis. All keys of one rule or call site are in one hash slot.

They begin with `<prefix>{stats:<name>}:`. For the whole site there are

- `names`, a sorted set: the counted names, each with the hour of its last decision;
- `durable`, a sorted set: the names with durable statistics of a limiter, each with the hour of its
  last decision;

and for each name

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
from collections.abc import Mapping
from functools import lru_cache

from ...conf import conf

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


@lru_cache(maxsize=4096)
def tag_of(name: str) -> bytes:
    """Return the digest that stands for a name in keys."""
    encoded = name.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(encoded, digest_size=8).hexdigest().encode()


def key_of(name: str, suffix: bytes) -> bytes:
    """Return a key of one rule or call site."""
    return b"%b{stats:%b}:%b" % (conf.CACHE_PREFIX, tag_of(name), suffix)


def version_of(given: Mapping[str, object]) -> str:
    """Return a hash of a rule's declaration, which identifies its version.

    Requests in shadow mode are counted by version, so the numbers are those of the current one.
    """
    words = {word: value for word, value in given.items() if word not in NOT_IN_VERSIONS}
    text = json.dumps(words, sort_keys=True, default=str).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8).hexdigest()
