"""Upper bounds of the refusals under limits above the one in force.

A refused request was counted, but what its client would have done after an admission is unknown.
Divide the time into parts, and take some that are more than a period apart. A limit of N refuses a
request only if N others count at that moment. They were admitted in the same part, or within one
period before it. So each of these parts, with the period before it, has at least N admissions, or
admits all of its requests. In the same way, a limit that is higher by D admits at least D of the
requests that were refused in a part, or all of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ...limits.limit import Limit
from ...operations.curve import Between, CurvePoint
from .keys import DAY, HOUR, MINUTE
from .reading import Span, listed, lists_of, merged

MAX_CLIENTS = 50
"""Number of examined clients: those refused most. Refusals of other clients stay in the bound."""


class Parts:
    """The minimum number of a client's requests or refusals in each part of a time span.

    `total`: the sum of all parts; `apart`: the parts in `stride` groups. The parts of one group are
    more than a period apart.
    """

    def __init__(self, numbers: Sequence[int], stride: int) -> None:
        self.total = sum(numbers)
        self.apart = [list(filter(None, numbers[at::stride])) for at in range(stride)]

    def admitted(self, number: int) -> int:
        """Return the minimum number of admissions if each part admits up to this number."""
        sums = (sum(min(number, each) for each in parts) for parts in self.apart)
        return max(min(number, self.total), *sums)


@dataclass(frozen=True, slots=True)
class Attempts:
    """The requests of a refused client.

    `refused`, `most`: the maximum number of its refusals, and of its requests; `refusals`,
    `requests`: the minimum numbers, part by part.
    """

    refused: int
    most: int
    refusals: Parts
    requests: Parts

    def refused_by(self, limit: Limit, number: int, more: int) -> int:
        """Return the maximum number of refusals under a limit of `number`.

        That limit is higher by `more` than the one in force.
        """
        found = [self.refused]
        if limit.kind.is_bucket:
            found.append(self.refused - min(more, self.refusals.total))
        else:
            found.append(self.most - self.requests.admitted(number))
        if limit.kind.is_exact:
            found.append(self.refused - self.refusals.admitted(more))
        return max(0, min(found))


class HigherLimits:
    """Upper bounds of the refusals under limits above the one in force: see `operations.curve`.

    Args:
        limit: The limit in force.
        clients: The clients that were refused.
        refused: The number of all refusals.
    """

    def __init__(self, limit: Limit, clients: Sequence[Attempts], refused: int) -> None:
        self._limit = limit
        self._clients = clients
        known = sum(client.refusals.total for client in self._clients)
        self._unknown = max(0, refused - known)

    def enough(self, today: int) -> int:
        """Return a limit above which a further increase changes no number."""
        if self._limit.kind.is_bucket:
            return today + max((client.refused for client in self._clients), default=0)
        return max((client.most for client in self._clients), default=0)

    def cap(self, point: CurvePoint, today: int) -> CurvePoint:
        """Lower the bounds of a limit above today's."""
        more = point.limit - today
        refusals = [client.refused_by(self._limit, point.limit, more) for client in self._clients]
        requests = point.requests.up_to(sum(refusals) + self._unknown)
        people = point.people
        if not self._unknown:
            people = people.up_to(sum(map(bool, refusals)))
        return CurvePoint(point.limit, requests, people)


def higher_limits(name: str, limit: Limit, span: Span, refused: int) -> HigherLimits | None:
    """Return what is known about limits above the one in force, if anything is.

    Args:
        name: The rule or call site. Each of its requests took one unit.
        limit: The limit in force.
        span: The time. The lists of clients are kept for a day.
        refused: The number of all refusals.

    Raises:
        StoreError: Redis is unavailable.
    """
    kind = limit.kind
    if kind.waits_anyway or limit.max_wait or limit.count_denied or limit.split:
        return None
    if span.end - span.start > DAY:
        return None
    return HigherLimits(limit, _attempts(lists_of(name, span), _stride(limit, span)), refused)


def _stride(limit: Limit, span: Span) -> int:
    """Return the smallest distance, in parts, between two parts that are over a period apart.

    An inexact limit may count a request for longer than its period, at most twice as long.
    """
    period = limit.rate.period_us if limit.kind.is_exact else 2 * limit.rate.period_us
    seconds = MINUTE if span.is_by_minute else HOUR
    return 1 + -(-period // (seconds * 1_000_000))


def _attempts(parts: Sequence[Sequence[bytes]], stride: int) -> list[Attempts]:
    """Return the clients that were refused most, from the lists of each part."""
    refused = [_bounds(lists, "refused") for lists in parts]
    used = [_bounds(lists, "used") for lists in parts]
    refusals: Counter[str] = Counter()
    for found in refused:
        refusals.update({digest: number.least for digest, number in found.items()})
    clients = []
    for digest, _number in refusals.most_common(MAX_CLIENTS):
        refused_here = [found[digest] for found in refused]
        used_here = [found[digest] for found in used]
        most_refused = sum(number.most for number in refused_here)
        clients.append(
            Attempts(
                most_refused,
                most_refused + sum(number.most for number in used_here),
                Parts([number.least for number in refused_here], stride),
                Parts(
                    [
                        one.least + other.least
                        for one, other in zip(refused_here, used_here, strict=True)
                    ],
                    stride,
                ),
            )
        )
    return clients


def _bounds(lists: Sequence[bytes], what: str) -> dict[str, Between]:
    """Return the bounds of each client's number in the lists of one part.

    Any other client has the default value of the result.
    """
    absent = sum(listed(written, what)[0] for written in lists)
    found: dict[str, Between] = defaultdict(lambda: Between(0, absent))
    for client in merged(lists, what):
        found[client.digest] = Between(*client.bounds)
    return found
