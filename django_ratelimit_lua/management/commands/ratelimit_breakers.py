"""`manage.py ratelimit_breakers`: how the breakers are, and forcing one until a time."""

from __future__ import annotations

import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from ...models.audit import acting
from ...operations.breakers import BreakerState, breaker, breakers, force, meant_by
from ...publishing import triggers
from ..arguments import seconds_of

HOW = {"open": "open", "close": "closed", "auto": ""}
HELP = {
    "open": "ask the resource no more",
    "close": "ask it whatever happens",
    "auto": "go by its own state again",
}


class Command(BaseCommand):
    """Lists breakers, and forces them."""

    help = "Lists the circuit breakers with their states and numbers, and forces one open or closed."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        actions.add_parser("list", help="all breakers, their states and numbers")
        for action, text in HELP.items():
            sub = actions.add_parser(action, help=text)
            sub.add_argument("name", help="of the breaker")
            if action != "auto":
                until = sub.add_mutually_exclusive_group(required=True)
                until.add_argument("--for", dest="period", metavar="TIME", help="30m, 1h, 7d …")
                until.add_argument("--until", metavar="MOMENT", help="2026-11-23T12:00, in the time zone of the site")
                until.add_argument("--for-good", action="store_true", help="until it is taken back by `auto`")
            sub.add_argument("--why", default="", help="kept in the history")

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        """Raises `CommandError`."""
        if action == "list":
            for each in breakers():
                self.stdout.write(line(each))
            return
        name = options["name"]
        if breaker(name) is None:
            meant = meant_by(name)
            raise CommandError(f"no breaker {name!r} is known" + (f"; do you mean {meant!r}?" if meant else ""))
        until = None if action == "auto" else _until(options)
        try:
            with acting("ratelimit_breakers"):
                force(name, HOW[action], until=until, why=options["why"])
        except ValidationError as error:
            raise CommandError("; ".join(error.messages)) from error
        state = breaker(name)
        assert state is not None
        self.stdout.write(line(state))
        if triggers.unpublished:
            self.stderr.write(self.style.WARNING(f"Saved, but not live yet: {triggers.unpublished}"))


def _until(options: dict[str, Any]) -> datetime.datetime | None:
    if options["for_good"]:
        return None
    if options["period"]:
        seconds = seconds_of("--for", options["period"], "; or --for-good")
        return timezone.now() + datetime.timedelta(seconds=seconds)
    try:
        moment = parse_datetime(options["until"])
    except ValueError:
        moment = None
    if moment is None:
        raise CommandError(f"--until {options['until']!r}: write a moment such as 2026-11-23T12:00")
    is_naive = timezone.is_naive(moment)
    if is_naive == timezone.is_naive(timezone.now()):
        return moment
    return timezone.make_aware(moment) if is_naive else timezone.make_naive(moment)


def line(state: BreakerState) -> str:
    """A breaker in one line."""
    words = [f"{state.name}: {state.state or 'not known, as Redis does not answer'}"]
    if state.state == "ramp":
        words.append(f"{state.share} % are let through")
    if state.seconds:
        words.append(f"changes in {state.seconds:.0f} s")
    if state.state is not None:
        words.append(f"{state.calls} calls, {state.failures} failures, {state.slow} slow")
    row = state.row
    if row is not None and state.forced:
        moment = row.until
        local = moment if moment is None or timezone.is_naive(moment) else timezone.localtime(moment)
        until = "until it is taken back" if local is None else f"until {local:%Y-%m-%d %H:%M %Z}".rstrip()
        words.append(f"forced: {row.forced} {until}" + (f" ({row.why})" if row.why else ""))
    return "; ".join(words)
