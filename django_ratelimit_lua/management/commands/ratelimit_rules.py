"""`manage.py ratelimit_rules`: the rules as they apply, as code, and what a request would meet."""

from __future__ import annotations

import argparse
import datetime
import sys
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, transaction
from django.utils.timezone import is_aware, localtime

from ...conf import conf
from ...exceptions import StoreError
from ...limits.decision import LimitState
from ...models import RateLimitRevision, RateLimitRule
from ...models.audit import acting
from ...operations import rules_yaml
from ...operations.explain import explain
from ...operations.reference import BadReferenceError, open_reference
from ...operations.surprises import changed_notices, changed_surprises, enforcing
from ...publishing import triggers
from ...publishing.publish import OwnerError, primary, publish
from ...publishing.triggers import migration_problem
from ...rules import provider
from ...rules.describe import reading
from ...rules.problems import problems
from ...rules.rule import MODES, RuleError
from ...rules.ruleset import settings_problems
from ...stats.reading import refusal_counts
from ..arguments import add_request, described, hints, require_urlconf, verdict


class Command(BaseCommand):
    """`list`, `explain`, `mode`, `export`, `import`, `check`, `publish`, `new-id`."""

    help = (
        "Shows the rate limit rules that apply, explains why a request is allowed or refused, and keeps rules as code."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        commands = parser.add_subparsers(dest="subcommand", required=True, parser_class=argparse.ArgumentParser)
        commands.add_parser("list", help="list the rules that apply, in their order, and where each is defined")
        explained = commands.add_parser(
            "explain", help="why a request is allowed or refused; counts nothing",
            description="Why a request is allowed or refused. Counts nothing.",
        )  # fmt: skip
        add_request(explained)
        explained.add_argument(
            "--reference", metavar="REFERENCE",
            help="instead: what refused a client that was shown this, and what is counted there now",
        )  # fmt: skip
        switched = commands.add_parser("mode", help="change the mode of a rule, when the admin cannot be reached")
        switched.add_argument("name")
        switched.add_argument("mode", choices=MODES)
        switched.add_argument(
            "--confirm", action="store_true", help="enforce it, whatever it would have refused in shadow mode"
        )
        commands.add_parser("export", help="write the rules of the admin as YAML")
        imported = commands.add_parser("import", help="replace the rules of the admin by those of a YAML file")
        imported.add_argument("file", help="a file, or - for standard input")
        imported.add_argument("--dry-run", action="store_true", help="only show what would change")
        imported.add_argument("--delete", action="store_true", help="delete the rules that the file does not have")
        imported.add_argument("--confirm", action="store_true", help="change the rules although there are warnings")
        checked = commands.add_parser("check", help="find problems in the rules that apply, or in a file")
        checked.add_argument("file", nargs="?")
        published = commands.add_parser("publish", help="publish all rules again, for example after raw SQL")
        published.add_argument(
            "--take-over", action="store_true",
            help="replace the rules that another site has published under the same RATELIMIT_CACHE_PREFIX",
        )  # fmt: skip
        commands.add_parser("new-id", help="give this database its own id, if it is a copy of another site's")

    def handle(self, *args: Any, subcommand: str, **options: Any) -> None:
        try:
            getattr(self, f"_{subcommand.replace('-', '_')}")(**options)
        except (StoreError, RuleError, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from error
        except ValidationError as error:
            raise CommandError("; ".join(error.messages)) from error
        except DatabaseError as error:
            raise CommandError(migration_problem() or f"the database is unavailable: {error}") from error

    def _list(self, **options: Any) -> None:
        ruleset = provider.reload()
        if not provider.is_answered:
            source = "the database and the settings" if ruleset.snapshot else "the settings only"
            self._warn(f"Redis is unavailable: these are the rules of {source}.")
        for rule in ruleset.rules:
            self.stdout.write(f"{rule.order:>6}  {rule.source:<8}  {rule.name}: {reading(rule.given or {})}")
        for problem in ruleset.problems:
            self.stderr.write(self.style.ERROR(f"skipped: {problem}"))
        self.stdout.write(f"{rules_yaml.number_of(len(ruleset.rules), 0)}; revision {ruleset.revision.number}")

    def _explain(self, **options: Any) -> None:
        if options["reference"] is not None:
            self._explain_reference(options["reference"])
            return
        require_urlconf()
        request = described(options)
        if options["ip"] is not None and callable(conf.IP_META_KEY):
            self._warn("RATELIMIT_IP_META_KEY is a function, and may not see the address of --ip.")
        explanation = explain(request)
        if explanation.decision.source == "fallback" or not provider.is_answered:
            self._warn("Redis is unavailable: the counts are not known.")
        if explanation.exempt is not None:
            self.stdout.write(f"exempt: {explanation.exempt}")
        if explanation.block is not None:
            self.stdout.write(f"blocked, with or without rules: override {explanation.block.pk} ({explanation.block})")
        for limit in explanation.met:
            self.stdout.write(f"{limit.name} ({limit.source}): {limit.reading}")
            if limit.override is not None:
                effect = limit.override.get_effect_display()
                skipped = "; skipped, as it does not fit this limit" if limit.is_skipped else ""
                self.stdout.write(f"    override {limit.override.pk} ({limit.override}): {effect}{skipped}")
            if limit.state is not None:
                told = ", but only the view is told" if limit.is_advice and not limit.state.allowed else ""
                self.stdout.write(f"    {_words(limit.state)}{told}")
        for breaker in explanation.breakers:
            self.stdout.write(f"breaker {breaker.words}")
        for problem in explanation.problems:
            self.stderr.write(self.style.ERROR(f"cannot be applied to this request: {problem}"))
        if not explanation.met and explanation.exempt is None and explanation.block is None:
            self.stdout.write("no rule applies")
        for line in (*explanation.notes, *hints(explanation, options["method"])):
            self.stdout.write(line)
        self.stdout.write(verdict(explanation))

    def _explain_reference(self, text: str) -> None:
        try:
            opened = open_reference(text)
        except BadReferenceError as error:
            raise CommandError(f"--reference: {error}") from error
        what = "a block refused" if opened.is_block else "refused"
        self.stdout.write(f"{what} at {_moment(opened.at)}, identity {opened.identity}")
        if opened.is_of_earlier_key:
            self._warn("It was sealed with an earlier secret: counts began afresh with the present one.")
        for override in opened.overrides:
            ends = "for good" if override.ends is None else f"until {_moment(override.ends)}"
            self.stdout.write(f"override {override.pk} ({override}): {override.get_effect_display()}, {ends}")
        if opened.is_block and not opened.overrides:
            self.stdout.write("there is no override about that subject any more")
        if opened.error:
            self._warn(f"The counts are not known: {opened.error}")
        if not opened.limits and not opened.is_block:
            self.stdout.write("the limit is not known here: it is gone, or is made in code that is not imported")
        elif opened.limits and not opened.is_exact:
            self.stdout.write("that limit is not there any more; where it stood, there is now:")
        for limit in opened.limits:
            self.stdout.write(f"{limit.name} ({limit.source}): {limit.reading}")
            if limit.state is not None:
                self.stdout.write(f"    now {_words(limit.state)}")

    def _mode(self, name: str, mode: str, confirm: bool, **options: Any) -> None:
        rule = RateLimitRule.objects.named(name).first()
        if rule is None:
            names = ", ".join(RateLimitRule.objects.values_list("name", flat=True)) or "none"
            raise CommandError(f"there is no rule {name!r} in the admin; there are: {names}")
        if mode == "enforce" != rule.mode and not confirm:
            asked = [str(problem) for _field, problem in enforcing(rule)]
            if asked:
                raise CommandError("\n".join([*asked, "Nothing was changed; --confirm says that this is meant."]))
        with acting("ratelimit_rules mode"):
            rule.switch(mode)
        self.stdout.write(f"{rule.name}: {rule.reading()}")
        self._unless_live(triggers.unpublished)

    def _export(self, **options: Any) -> None:
        self.stdout.write(rules_yaml.export(), ending="")

    def _import(self, file: str, dry_run: bool, delete: bool, confirm: bool, **options: Any) -> None:
        require_urlconf()
        text = _read(file)
        changes = rules_yaml.plan(text, _source(file))
        warnings = [f"{name}: {line}" for name, lines in changed_surprises(changes).items() for line in lines]
        if warnings and not (confirm or dry_run):
            raise CommandError("\n".join([*warnings, "Nothing was changed; --confirm says that this is meant."]))
        notices = [f"{name}: {line}" for name, lines in changed_notices(changes).items() for line in lines]
        for line in [*warnings, *notices]:
            self._warn(line)
        if not dry_run:
            with acting("ratelimit_rules import"):
                changes = rules_yaml.apply(text, delete=delete)
        for change in changes:
            self.stdout.write("\n".join(change.words()))
        self.stdout.write(f"{rules_yaml.counted(changes)} {'would be changed' if dry_run else 'changed'}")
        deleted = [change for change in changes if change.after is None] if dry_run and not delete else []
        if deleted:
            names = ", ".join(rules_yaml.deletions(deleted))
            self._warn(f"{rules_yaml.counted(deleted)} would be deleted, which takes --delete: {names}")
        if warnings and dry_run and not confirm:
            self._warn("The warnings have to be confirmed, which takes --confirm.")
        if changes and not dry_run:
            self._unless_live(triggers.unpublished)

    def _check(self, file: str | None, **options: Any) -> None:
        if file is not None:
            text = _read(file)
            rules, breakers = rules_yaml.load(text, _source(file))
            counted = rules_yaml.number_of(len(rules), len(breakers))
        else:
            wrong = settings_problems()
            if wrong:  # Then there is no ruleset that could be looked at.
                raise CommandError("\n".join(wrong))
            ruleset = provider.reload()
            lines = [*dict.fromkeys(filter(None, (migration_problem(), *problems.found()))), *_failures()]
            if lines:
                raise CommandError("\n".join(lines))
            counted = rules_yaml.number_of(len(ruleset.rules), 0)
        self.stdout.write(f"{counted}: no problem found")

    def _publish(self, take_over: bool, **options: Any) -> None:
        self.stdout.write(f"published revision {publish(rebuild=True, take_over=take_over)}")

    def _new_id(self, **options: Any) -> None:
        using = primary()
        with transaction.atomic(using):
            name = RateLimitRevision.rename(using)
        self.stdout.write(f"the database now has the id {name}")
        try:
            self.stdout.write(f"published revision {publish()}")
        except OwnerError as error:
            self._warn(str(error))
        except StoreError as error:
            self._unless_live(str(error))

    def _warn(self, text: str) -> None:
        self.stderr.write(self.style.WARNING(text))

    def _unless_live(self, why: str) -> None:
        """Say that what was saved is not live, and what makes it so."""
        if why:
            self._warn(
                f"Saved, but not live yet: {why}. Processes that serve requests publish it about ten seconds after "
                "Redis is back; `manage.py ratelimit_rules publish` does it at once."
            )


def _words(state: LimitState) -> str:
    """What a limit has counted, and what it says to the next request."""
    resets = f"resets in {state.reset_after:.0f} s" if state.used else "unused"
    verdict = "allowed" if state.allowed else "refused"
    if not state.allowed:
        verdict += " for good" if state.retry_after is None else f" for {state.retry_after:.0f} s"
    if state.mode == "shadow":
        verdict += ", but in shadow mode"
    return f"{state.used} of {state.limit} used, {state.remaining} left, {resets}: {verdict}"


def _moment(moment: datetime.datetime) -> str:
    local = localtime(moment) if is_aware(moment) else moment
    return f"{local:%Y-%m-%d %H:%M:%S %Z}".strip()


def _failures() -> list[str]:
    """What processes had to leave out lately, though it makes sense by itself."""
    failed = {name: counts.get("failed", 0) for name, counts in refusal_counts(1).items()}
    return [
        f"rule {name!r} could not be applied to {number} request{'' if number == 1 else 's'} today; see the log"
        for name, number in sorted(failed.items())
        if number
    ]


def _source(file: str) -> str:
    return "standard input" if file == "-" else file


def _read(file: str) -> str:
    try:
        if file == "-":
            return sys.stdin.read(rules_yaml.LONGEST_TEXT + 1)
        with Path(file).open(encoding="utf-8") as opened:
            return opened.read(rules_yaml.LONGEST_TEXT + 1)
    except (OSError, ValueError) as error:
        raise CommandError(f"{file}: {error}") from error
