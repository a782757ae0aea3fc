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
    """The command for its verbs: it prints."""

    def say(self, text: str) -> None:
        """Print a line of the result."""
        self.stdout.write(text)

    def warn(self, text: str) -> None:
        """Print a warning, on standard error."""
        self.stderr.write(self.style.WARNING(text))

    def warn_if_unpublished(self, why: str = "") -> None:
        """Warn if saved changes are not live, with the remedy. `why`: a reason that is known."""
        why = why or triggers.unpublished
        if why:
            self.warn(
                f"Saved, but not published yet: {why.rstrip('.')}. When "
                "that is resolved, processes that serve requests publish the change "
                "within about ten seconds. To publish it at once, run `manage.py "
                "ratelimit rules publish`."
            )


VerbOptions = dict[str, Any]
"""The options of a verb, as they are parsed, by name."""
Run = Callable[[Printer, VerbOptions], None]


class Verb(NamedTuple):
    """All verbs, by name: one word, or a group and a word; with their arguments."""

    name: str
    help: str
    arguments: tuple[Argument, ...]
    run: Run


verbs: dict[str, Verb] = {}


def verb(name: str, text: str, *arguments: Argument) -> Callable[[Run], Run]:
    """Declare a verb: the function that does it is called with the command and the options."""

    def declare(run: Run) -> Run:
        verbs[name] = Verb(name, text, arguments, run)
        return run

    return declare


def argument(*names: str, **how: Any) -> Argument:
    """An argument, as `add_argument` of argparse takes it."""
    return lambda parser: parser.add_argument(*names, **how)
