"""`replay`: decide the requests of access logs by limits, and report the results."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from ....conf import conf, proxies
from ....exceptions import StoreError
from ....limits.algorithms import BY_RATE, SYNONYMS
from ....management.arguments import require_urlconf
from ....management.verbs import Printer, argument, verb
from ....operations.rules_yaml import declared_rules
from ....process.clock import Clock
from ....rules import provider
from ....rules.rule import compile_rule
from ....rules.ruleset import Ruleset, compile_rules
from ....store import Store, store_at
from ....testing.server import Server
from ..deciding import Progress, Replayed, ReplayTooSlowError
from ..deciding import replay as replay_logs
from ..formats import FORMATS
from ..reading import Log, UnreadableLogError
from ..report import as_json, as_text, page, plots
from ..requests import Trusted

REFRESH_SECONDS = 0.2


@verb(
    "replay",
    "show what limits would have decided about the requests of access logs, at the times "
    "in the logs. The counts of the site do not change",
    argument(
        "logs",
        nargs="+",
        metavar="LOG",
        help="access logs, also gzipped; - is standard input; merged by time",
    ),
    argument("--rules", metavar="FILE", help="rules as YAML, instead of the rules in force"),
    argument(
        "--rate",
        action="append",
        metavar="60/m",
        help="a limit, instead of rules; may be repeated",
    ),
    argument(
        "--key",
        metavar="ip",
        help="the key of --rate: ip (the default), user, header:User-Agent …",
    ),
    argument("--algorithm", choices=[*BY_RATE, *SYNONYMS], help="the algorithm of --rate"),
    argument("--burst", type=int, help="the burst of --rate, for a token bucket"),
    argument(
        "--format",
        choices=FORMATS,
        help="the format of the logs; default: detected by their first lines",
    ),
    argument(
        "--trusted-proxies",
        metavar="N|NETWORKS",
        help="the number of trusted proxies, or their networks, separated by commas; default: "
        "RATELIMIT_TRUSTED_PROXIES",
    ),
    argument(
        "--ties",
        choices=("spread", "together"),
        default="spread",
        help="the lines of one second: spread them evenly (the default), or leave them together",
    ),
    argument("--redis", metavar="URL", help="decide on this server, instead of a new one"),
    argument(
        "--suggest", action="store_true", help="show what every other limit would have refused"
    ),
    argument(
        "--plot",
        metavar="FILE",
        help="draw the result of --suggest into a file that ends with .svg or .html",
    ),
    argument("--json", action="store_true", help="print the report as JSON"),
)
def replay(command: Printer, options: dict[str, Any]) -> None:
    """Replay access logs, and print the report."""
    require_urlconf()
    plot = options["plot"]
    if plot is not None and Path(plot).suffix not in (".svg", ".html"):
        raise CommandError(f"--plot {plot!r}: name a file that ends with .svg or .html")
    try:
        trusted = _trusted(options["trusted_proxies"])
        ruleset = _ruleset(options)
        with ExitStack() as stack:
            logs = [Log(name, options["format"]) for name in options["logs"]]
            for log in logs:
                stack.callback(log.close)
            store = _store(options["redis"], stack)
            replayed = replay_logs(
                logs,
                ruleset,
                store,
                trusted=trusted,
                spread=options["ties"] == "spread",
                draws=options["suggest"] or plot is not None,
                on_progress=_progress(stack),
            )
    except (UnreadableLogError, ReplayTooSlowError, StoreError) as error:
        raise CommandError(str(error)) from error
    except KeyboardInterrupt:
        raise CommandError("interrupted; the counts are deleted", returncode=130) from None
    if plot is not None:
        _draw(plot, replayed)
    if options["json"]:
        command.say(json.dumps(as_json(replayed), indent=2, ensure_ascii=False))
    else:
        command.say(as_text(replayed))


def _draw(file: str, replayed: Replayed) -> None:
    """Write the curves: all of them as an HTML page, or a single one as an SVG."""
    drawn = list(plots(replayed).values())
    if file.endswith(".html"):
        text = page(replayed)
    elif len(drawn) == 1:
        text = drawn[0].svg(is_file=True)
    else:
        raise CommandError(
            f"--plot {file!r}: an SVG has one curve, and there are {len(drawn)}; name a .html file"
        )
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"--plot: {error}") from error


def _ruleset(options: dict[str, Any]) -> Ruleset:
    """Return the rules to replay."""
    rates = options["rate"]
    file = options["rules"]
    if rates and file:
        raise CommandError("use --rate or --rules, not both")
    given = {name: options[name] for name in ("key", "algorithm", "burst")}
    given = {name: value for name, value in given.items() if value is not None}
    if rates:
        given["key"] = given.get("key", "ip").split("+")
        rule = {"name": "rate", "path": "/", "rate": rates, **given}
        return Ruleset([compile_rule(rule, plain=True, where="--rate")])
    for name in given:
        raise CommandError(f"--{name} needs --rate, such as --rate 60/m")
    if file is None:
        return provider.reload()
    where = file
    try:
        if file == "-":
            where = "standard input"
            text = sys.stdin.read()
        else:
            text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"--rules: {error}") from error
    return Ruleset(compile_rules(declared_rules(text, where)))


def _trusted(given: str | None) -> Trusted:
    """Return the trusted proxies, as `RATELIMIT_TRUSTED_PROXIES` has them."""
    if given is None:
        return conf.TRUSTED_PROXIES
    try:
        if given.isdecimal():
            return proxies(int(given))
        return proxies([part.strip() for part in given.split(",")])
    except ValueError as error:
        raise CommandError(f"--trusted-proxies {given!r}: {error}") from error


def _store(url: str | None, stack: ExitStack) -> Store:
    """Return the server for the decisions: the given one, or a temporary one."""
    if url is None:
        try:
            url = stack.enter_context(Server()).url
        except ImportError as error:
            raise CommandError(
                "a replay needs a server of its own: install "
                "django-ratelimit-lua[replay], or use --redis URL"
            ) from error
        except RuntimeError as error:
            raise CommandError(str(error)) from error
    try:
        store = store_at(url)
    except ValueError as error:
        raise CommandError(f"--redis {url!r}: {error}") from error
    stack.callback(store.close)
    return store


def _progress(stack: ExitStack) -> Callable[[Progress], bool | None]:
    """Return a function that shows the progress: a bar on a terminal, if tqdm is installed."""
    if not sys.stderr.isatty() or find_spec("tqdm") is None:
        return lambda progress: None
    from tqdm import tqdm

    bar = stack.enter_context(
        tqdm(unit="B", unit_scale=True, leave=False, mininterval=REFRESH_SECONDS)
    )
    began = Clock.monotonic()

    def show(progress: Progress) -> None:
        bar.total = progress.size or None
        speed = progress.lines / max(Clock.monotonic() - began, 0.001)
        bar.set_postfix_str(f"{progress.lines:,} lines, {speed:,.0f} lines/s", refresh=not bar.n)
        bar.update(progress.done - bar.n)

    return show
