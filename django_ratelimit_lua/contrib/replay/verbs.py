"""`replay`: show what rates would have refused in access logs."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import CommandError

from ...identity.names import name_words
from ...limits.algorithms import SYNONYMS
from ...limits.limit import Limit
from ...limits.rate import SECOND, Rate
from ...management.verbs import Printer, VerbOptions, argument, verb
from ...operations.formatting import count_words
from ...process import Clock
from .refusals import ALGORITHMS, count_refusals
from .requests import KEYS, STANDARD_INPUT, Requests, UnreadableLogError, read_logs

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
        choices=[*ALGORITHMS, *SYNONYMS],
        default="sliding_log",
        help="default: sliding_log, the exact count",
    ),
    argument("--json", action="store_true", help="print the report as JSON"),
)
def replay(command: Printer, options: VerbOptions) -> None:
    """Read the logs, and print the report."""
    try:
        _print_report(command, options)
        command.stdout.flush()
    except KeyboardInterrupt:
        raise CommandError("interrupted", returncode=130) from None
    except OSError as error:
        # The interpreter writes the rest of the output when it exits, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), command.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise CommandError(f"the report cannot be written: {error}") from error


def _print_report(command: Printer, options: VerbOptions) -> None:
    """Print the report. Raises `CommandError` if there are no requests to count."""
    limits = [_build_limit(rate, options["algorithm"]) for rate in options["rate"]]
    requests = _read_requests(command, options["logs"], options["key"])
    for example in requests.examples:
        command.warn(f"unreadable: {name_words(example, 120)}")
    clients = requests.group_by_client()
    if not clients:
        problem = f"{requests.unreadable:,} of {count_words(requests.lines, 'line')} cannot be read"
        if requests.anonymous:
            problem += f", and {requests.anonymous:,} have no user"
        raise CommandError(f"there are no requests to count: {problem}")
    report = {
        "lines": requests.lines,
        "unreadable": requests.unreadable,
        "anonymous": requests.anonymous,
        "requests": sum(len(moments) for moments in clients.values()),
        "key": requests.key,
        "clients": len(clients),
        "first": _format_moment(min(min(moments) for moments in clients.values())),
        "last": _format_moment(max(max(moments) for moments in clients.values())),
        "algorithm": limits[0].algorithm,
        "rates": _count_by_rate(limits, clients),
    }
    if options["json"]:
        command.write(json.dumps(report, indent=2))
    else:
        command.write("\n".join(_format_report(report)))


def _count_by_rate(
    limits: Sequence[Limit], clients: Mapping[str, Sequence[int]]
) -> list[dict[str, Any]]:
    """Return what each limit refuses, as JSON."""
    refused: list[tuple[Limit, Counter[str]]] = [(limit, Counter()) for limit in limits]
    for client, moments in clients.items():
        ordered = sorted(moments)
        for limit, counter in refused:
            if count := count_refusals(limit, ordered):
                counter[client] = count
    return [_summarize(limit, counter) for limit, counter in refused]


def _build_limit(rate: str, algorithm: str) -> Limit:
    """Return the limit of a rate. Raises `CommandError` if it has no period."""
    if Rate.parse(rate).is_slots:
        raise CommandError(f"--rate {rate}: add a period, as in 10/m")
    return Limit("replay", rate, algorithm=algorithm)


def _read_requests(command: Printer, names: list[str], key: str) -> Requests:
    """Return the requests of the logs, with a progress bar."""
    try:
        size = 0 if STANDARD_INPUT in names else sum(map(os.path.getsize, names))
        bar = ProgressBar(command, size)
        try:
            return read_logs(names, key, bar.show)
        finally:
            bar.clear()
    except (OSError, UnreadableLogError) as error:
        raise CommandError(str(error)) from error


def _format_moment(moment: int) -> str:
    return datetime.fromtimestamp(moment // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _summarize(limit: Limit, refused: Counter[str]) -> dict[str, Any]:
    """Return the refusals of a limit by client as a JSON object."""
    by_refusals = sorted(refused.items(), key=lambda item: (-item[1], item[0]))
    return {
        "rate": str(limit.rate),
        "refused": refused.total(),
        "clients_refused": len(refused),
        "most_refused": [
            {"client": client, "refused": count} for client, count in by_refusals[:JSON_CLIENTS]
        ],
    }


def _format_report(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the report."""
    yield (
        f"{count_words(report['requests'], 'request')} of "
        f"{count_words(report['clients'], 'client')} (key {report['key']}), "
        f"{report['first']} to {report['last']}, {report['algorithm']}"
    )
    if report["unreadable"]:
        yield f"{report['unreadable']:,} of {count_words(report['lines'], 'line')} cannot be read"
    if report["anonymous"]:
        yield f"left out: {count_words(report['anonymous'], 'request')} without a user"
    yield ""
    rows = [["rate", "requests", "refused", "share", "clients refused", "most refused", "client"]]
    for rate in report["rates"]:
        rows += _build_rows(rate, report["requests"])
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for name, *figures, client in rows:
        cells = [f"{figure:>{width}}" for figure, width in zip(figures, widths[1:], strict=False)]
        yield "  ".join([f"{name:{widths[0]}}", *cells, client]).rstrip()


def _build_rows(rate: Mapping[str, Any], requests: int) -> list[list[str]]:
    """Return the rows of a rate: one for each client that it refuses most, but at least one."""
    totals: list[str] = [
        rate["rate"],
        f"{requests:,}",
        f"{rate['refused']:,}",
        f"{rate['refused'] / requests:.2%}",
        f"{rate['clients_refused']:,}",
    ]
    rows = []
    for client in rate["most_refused"][:TABLE_CLIENTS]:
        rows.append([*totals, f"{client['refused']:,}", name_words(client["client"])])
        totals = [""] * len(totals)
    return rows or [[*totals, "", ""]]
