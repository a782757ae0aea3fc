"""`replay`: show what rates would have refused in access logs."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import CommandError

from ....identity.names import name_words
from ....limits.algorithms import BY_RATE, SYNONYMS
from ....limits.limit import Limit
from ....limits.rate import SECOND
from ....management.verbs import Printer, VerbOptions, argument, verb
from ....process.clock import Clock
from ..refusals import count_refusals
from ..requests import KEYS, STANDARD_INPUT, Requests, UnreadableLogError, read_logs

REFRESH_SECONDS = 0.2
BAR_WIDTH = 30
TABLE_CLIENTS = 3
JSON_CLIENTS = 10


class ProgressBar:
    """The part of the logs that is read, on a terminal only.

    Args:
        command: The command, which has the terminal.
        size: The bytes of all logs; 0 if unknown.
    """

    def __init__(self, command: Printer, size: int) -> None:
        self._stream = command.stderr
        self._size = size
        self._next = 0.0

    def show(self, done: int, lines: int) -> None:
        """Draw the bar, if it was not drawn just now."""
        if not self._stream.isatty() or Clock.monotonic() < self._next:
            return
        self._next = Clock.monotonic() + REFRESH_SECONDS
        bar = ""
        if self._size:
            share = min(done / self._size, 1.0)
            bar = f"[{'#' * round(share * BAR_WIDTH):{BAR_WIDTH}}] {share:4.0%}  "
        self._write(f"\r{bar}{lines:,} lines")

    def clear(self) -> None:
        """Remove the bar."""
        if self._next:
            self._write("\r\033[K")

    def _write(self, text: str) -> None:
        self._stream.write(text, style_func=str, ending="")
        self._stream.flush()


@verb(
    "replay",
    "show what rates would have refused in access logs, without Redis",
    argument(
        "logs",
        nargs="+",
        metavar="LOG",
        help="an access log in the common or combined format or of JSON lines, which may be "
        "gzipped; - is standard input",
    ),
    argument(
        "--rate", action="append", required=True, metavar="10/m", help="a rate; may be repeated"
    ),
    argument("--key", choices=KEYS, default="ip", help="the key of the limit; default: ip"),
    argument(
        "--algorithm",
        choices=[*BY_RATE, *SYNONYMS],
        default="sliding_log",
        help="default: sliding_log, the exact count",
    ),
    argument("--json", action="store_true", help="print the report as JSON"),
)
def replay(command: Printer, options: VerbOptions) -> None:
    """Read the logs, and print the report."""
    algorithm = options["algorithm"]
    limits = [Limit("replay", rate, algorithm=algorithm) for rate in options["rate"]]
    requests = _read(command, options["logs"], options["key"])
    for example in requests.examples:
        command.warn(f"unreadable: {name_words(example, 120)}")
    clients = requests.group_by_client()
    if not clients:
        raise CommandError(
            f"no request with the key {requests.key}: of {requests.lines:,} lines, "
            f"{requests.unreadable:,} cannot be read, and {requests.anonymous:,} have no user"
        )
    refused: dict[Limit, Counter[str]] = {limit: Counter() for limit in limits}
    for client, moments in clients.items():
        ordered = sorted(moments)
        for limit, counter in refused.items():
            if count := count_refusals(limit, ordered):
                counter[client] = count
    report = {
        "lines": requests.lines,
        "unreadable": requests.unreadable,
        "anonymous": requests.anonymous,
        "requests": sum(map(len, clients.values())),
        "key": requests.key,
        "clients": len(clients),
        "first": _format_moment(min(map(min, clients.values()))),
        "last": _format_moment(max(map(max, clients.values()))),
        "algorithm": limits[0].algorithm,
        "rates": [_summarize(limit, counter) for limit, counter in refused.items()],
    }
    if options["json"]:
        command.say(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        command.say("\n".join(_format_table(report)))


def _read(command: Printer, names: list[str], key: str) -> Requests:
    """Return the requests of the logs, with a progress bar."""
    try:
        size = 0
        if STANDARD_INPUT not in names:
            size = sum(map(os.path.getsize, names))
        bar = ProgressBar(command, size)
        try:
            return read_logs(names, key, bar.show)
        finally:
            bar.clear()
    except (OSError, UnreadableLogError) as error:
        raise CommandError(str(error)) from error
    except KeyboardInterrupt:
        raise CommandError("interrupted", returncode=130) from None


def _format_moment(moment: int) -> str:
    return datetime.fromtimestamp(moment // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _summarize(limit: Limit, refused: Counter[str]) -> dict[str, Any]:
    """Return what a limit refuses, as JSON."""
    most = sorted(refused.items(), key=lambda item: (-item[1], item[0]))
    return {
        "rate": str(limit.rate),
        "refused": refused.total(),
        "clients_refused": len(refused),
        "most_refused": [
            {"client": client, "refused": count} for client, count in most[:JSON_CLIENTS]
        ],
    }


def _format_table(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the report."""
    yield (
        f"{report['requests']:,} requests of {report['clients']:,} clients (key {report['key']}), "
        f"{report['first']} to {report['last']}, {report['algorithm']}"
    )
    if report["unreadable"]:
        yield f"{report['unreadable']:,} of {report['lines']:,} lines cannot be read"
    if report["anonymous"]:
        yield f"{report['anonymous']:,} requests without a user are left out"
    yield ""
    yield _format_row("rate", "requests", "refused", "share", "clients refused", "  most refused")
    for rate in report["rates"]:
        most = [
            f"{each['refused']:8,} {name_words(each['client'])}"
            for each in rate["most_refused"][:TABLE_CLIENTS]
        ]
        yield _format_row(
            rate["rate"],
            f"{report['requests']:,}",
            f"{rate['refused']:,}",
            f"{rate['refused'] / report['requests']:.2%}",
            f"{rate['clients_refused']:,}",
            *most[:1],
        )
        for line in most[1:]:
            yield _format_row("", "", "", "", "", line)


def _format_row(
    rate: str, requests: str, refused: str, share: str, clients: str, most: str = ""
) -> str:
    return f"{rate:8}{requests:>12}{refused:>11}{share:>8}{clients:>17}{most}"
