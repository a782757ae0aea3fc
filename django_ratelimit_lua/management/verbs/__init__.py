"""The verbs of `manage.py ratelimit`. Each declares its arguments next to its function."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any, NamedTuple

from django.core.management.base import BaseCommand

from ...publishing import triggers

Argument = Callable[[ArgumentParser], object]
"""What adds an argument, or several, to a parser."""


class Printer(BaseCommand):
    """The base class of commands: prints results and warnings for the verbs."""

    def write(self, text: str) -> None:
        """Print a line of the result."""
        self.stdout.write(text)

    def warn(self, text: str) -> None:
        """Print a warning, on standard error."""
        self.stderr.write(self.style.WARNING(text))

    def warn_if_unpublished(self, why: str = "") -> None:
        """Warn if saved changes are not live, with the remedy. `why` is the reason, if known."""
        reason = why or triggers.unpublished
        if reason:
            self.warn(
                f"Saved, but not published yet: {reason.rstrip('.')}. When "
                "that is resolved, processes that serve requests publish the change "
                "within about ten seconds. To publish it at once, run `manage.py "
                "ratelimit publish`."
            )


VerbOptions = dict[str, Any]
"""The options of a verb, as they are parsed, by name."""
Run = Callable[[Printer, VerbOptions], None]


class Verb(NamedTuple):
    """A verb of the command: its name (one word, or a group and a word), help and arguments."""

    name: str
    help: str
    arguments: tuple[Argument, ...]
    run: Run


verbs: dict[str, Verb] = {}


def verb(name: str, text: str, *arguments: Argument) -> Callable[[Run], Run]:
    """Declare a verb. The decorated function is called with the command and the options."""

    def declare(run: Run) -> Run:
        verbs[name] = Verb(name, text, arguments, run)
        return run

    return declare


def argument(*names: str, **how: Any) -> Argument:
    """Return an argument, with the parameters of argparse's `add_argument`."""
    return lambda parser: parser.add_argument(*names, **how)
