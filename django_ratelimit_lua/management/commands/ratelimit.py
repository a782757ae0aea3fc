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
from ...extension import VERBS_OF_ANNEXES, extensions, install, is_installed
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
        for extension in extensions:
            for module in extension.verbs:
                import_module(module)
        groups = {"": _verbs_of(parser, required=False)}
        for name, verb in verbs.items():
            group, _space, word = name.rpartition(" ")
            if group not in groups:
                members = [
                    other.removeprefix(f"{group} ")
                    for other in verbs
                    if other.startswith(f"{group} ")
                ]
                parser_of_group = groups[""].add_parser(group, help=", ".join(members))
                groups[group] = _verbs_of(parser_of_group, required=True)
            own = groups[group].add_parser(word, help=verb.help, description=verb.help)
            own.register("action", None, StoreOnce)
            for add in verb.arguments:
                add(own)
            own.set_defaults(verb=verb)

    def handle(self, *args: object, verb: Verb | None = None, **options: object) -> None:
        if verb is None:
            width = max(map(len, verbs))
            for each in verbs.values():
                self.say(f"{each.name:{width}}  {each.help}")
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


def _verbs_of(parser: Any, *, required: bool) -> Any:
    """Return the collection of verbs. For a misspelt verb, the error names the closest match."""
    added = parser.add_subparsers(required=required, metavar="verb")
    error = parser.error

    def suggest(message: str) -> None:
        misspelt = re.match("argument verb: invalid choice: '([^']*)'", message)
        if misspelt is not None:
            word = misspelt[1]
            annex = VERBS_OF_ANNEXES.get(word)
            near = get_close_matches(word, added.choices, 1)
            if annex and not is_installed(annex):
                message = f"the app of the verb {word!r} is not installed. {install(annex)}"
            elif near:
                message = f"there is no verb {word!r}; did you mean {near[0]!r}?"
        error(message)

    parser.error = suggest
    return added
