"""`manage.py ratelimit VERB`: everything that operators do from a shell."""

from __future__ import annotations

import re
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError

from ...exceptions import StoreError
from ...extension import VERBS_OF_ANNEXES, extensions, install_hint, is_installed
from ...limits.rate import LimitError
from ...models.audit import acting
from ...publishing.publisher import OwnerError
from ...publishing.triggers import migration_problem
from ..arguments import StoreOnce
from ..verbs import (  # noqa: F401 - each module declares its verbs
    Printer,
    Verb,
    clients,
    rules,
    site,
    verbs,
)


class Command(Printer):
    """Runs a verb, or prints all verbs."""

    help = "Shows and changes rate limits and their counts."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add a parser for each verb, and for each group of verbs, such as `bans`."""
        for extension in extensions:
            for module in extension.verbs:
                import_module(module)
        groups = {"": _add_verbs(parser, required=False)}
        for name, verb in verbs.items():
            group, _space, word = name.rpartition(" ")
            if group not in groups:
                start = f"{group} "
                words = [other.removeprefix(start) for other in verbs if other.startswith(start)]
                group_parser = groups[""].add_parser(group, help=", ".join(words))
                groups[group] = _add_verbs(group_parser, required=True)
            verb_parser = groups[group].add_parser(word, help=verb.help, description=verb.help)
            verb_parser.register("action", None, StoreOnce)
            for add_argument in verb.arguments:
                add_argument(verb_parser)
            verb_parser.set_defaults(verb=verb)

    def handle(self, *args: object, verb: Verb | None = None, **options: object) -> None:
        """Run a verb, or list all of them. Expected errors are printed without a traceback."""
        if verb is None:
            width = max(map(len, verbs))
            for listed in verbs.values():
                self.write(f"{listed.name:{width}}  {listed.help}")
            return
        try:
            with acting(f"ratelimit {verb.name}"):
                verb.run(self, options)
        except OwnerError as error:
            raise CommandError(str(error)) from error
        except StoreError as error:
            raise CommandError(f"Redis is unavailable: {error}") from error
        except (LimitError, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from error
        except ValidationError as error:
            raise CommandError("; ".join(error.messages)) from error
        except DatabaseError as error:
            problem = (
                migration_problem(with_annexes=True) or f"the database is unavailable: {error}"
            )
            raise CommandError(problem) from error


def _add_verbs(parser: Any, *, required: bool) -> Any:
    """Return a collection of verbs that is added to a parser, whose errors name the closest one."""
    subparsers = parser.add_subparsers(required=required, metavar="verb")
    report_error = parser.error

    def suggest_verb(message: str) -> None:
        """Report an error. For a misspelt verb, name the closest one or its optional app."""
        misspelt = re.match("argument verb: invalid choice: '([^']*)'", message)
        if misspelt is not None:
            word = misspelt[1]
            annex = VERBS_OF_ANNEXES.get(word)
            near = get_close_matches(word, subparsers.choices, 1)
            if annex and not is_installed(annex):
                message = f"the app of the verb {word!r} is not installed. {install_hint(annex)}"
            elif near:
                message = f"there is no verb {word!r}; did you mean {near[0]!r}?"
        report_error(message)

    parser.error = suggest_verb
    return subparsers
