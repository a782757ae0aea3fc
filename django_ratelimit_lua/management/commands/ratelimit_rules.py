"""`manage.py ratelimit_rules`: the rules as they apply, as code, and what a request would meet."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, transaction

from ...conf import conf
from ...exceptions import StoreError
from ...identity.forwarded import parse_address
from ...models import RateLimitRevision, RateLimitRule
from ...models.audit import acting
from ...operations import rules_yaml
from ...operations.explain import build_request, explain, find_user
from ...publishing import triggers
from ...publishing.publish import primary, publish
from ...publishing.triggers import migration_problem
from ...rules import provider
from ...rules.describe import reading
from ...rules.problems import problems
from ...rules.rule import MODES, RuleError
from ...stats.refusals import FAILED, refusal_counts


class Command(BaseCommand):
    """`list`, `explain`, `mode`, `export`, `import`, `check`, `publish`, `new-id`."""

    help = "Shows the rate limit rules in force, explains what a request would meet, and keeps rules as code."

    def add_arguments(self, parser: CommandParser) -> None:
        """One subcommand each."""
        commands = parser.add_subparsers(dest="subcommand", required=True, parser_class=argparse.ArgumentParser)
        commands.add_parser("list", help="the rules in force, in their order, and where each comes from")
        one = commands.add_parser("explain", help="which rules a request would meet, and their state at the moment")
        one.add_argument("--path", default="/", help="with its query, such as /api/?q=x")
        one.add_argument("--method", default="GET", type=str.upper)
        one.add_argument("--user", help="primary key or name of who is logged in; nobody if not given")
        one.add_argument("--ip", help="the address it comes from (127.0.0.1)")
        one.add_argument("--header", action="append", default=[], metavar="NAME:VALUE")
        switched = commands.add_parser("mode", help="switch a rule of the admin, where the admin is out of reach")
        switched.add_argument("name")
        switched.add_argument("mode", choices=MODES)
        commands.add_parser("export", help="write the rules of the admin as YAML")
        imported = commands.add_parser("import", help="make the rules of the admin those of a YAML file")
        imported.add_argument("file", help="a file, or - for what is piped in")
        imported.add_argument("--dry-run", action="store_true", help="only say what would be done")
        checked = commands.add_parser("check", help="say what is wrong with the rules, or with those of a file")
        checked.add_argument("file", nargs="?")
        published = commands.add_parser("publish", help="publish the rules anew, after changes by raw SQL")
        published.add_argument(
            "--take-over", action="store_true",
            help="also where another database's rules are published under RATELIMIT_CACHE_PREFIX, and put ours there",
        )  # fmt: skip
        commands.add_parser("new-id", help="give the database an id of its own, if it is a copy of another site's")

    def handle(self, *args: Any, subcommand: str, **options: Any) -> None:
        """Run a subcommand."""
        try:
            getattr(self, f"_{subcommand.replace('-', '_')}")(**options)
        except (StoreError, RuleError, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from error
        except ValidationError as error:
            raise CommandError("; ".join(error.messages)) from error
        except DatabaseError as error:
            raise CommandError(migration_problem() or f"the database cannot be asked: {error}") from error

    def _list(self, **options: Any) -> None:
        ruleset = provider.reload()
        if not provider.is_answered:
            known = "of the database and the settings" if ruleset.snapshot else "of the settings alone"
            self.stderr.write(self.style.WARNING(f"Redis cannot be asked: these are the rules {known}."))
        for rule in ruleset.rules:
            self.stdout.write(f"{rule.order:>6}  {rule.source:<8}  {rule.name}: {reading(rule.given or {})}")
        for problem in ruleset.problems:
            self.stderr.write(self.style.ERROR(f"skipped: {problem}"))
        count = len(ruleset.rules)
        self.stdout.write(f"{count} rule{'' if count == 1 else 's'}; revision {ruleset.revision.number}")

    def _explain(self, path: str, method: str, user: str | None, ip: str | None, header: list[str], **_: Any) -> None:
        if ip is not None and parse_address(ip) is None:
            raise CommandError(f"--ip {ip!r}: is no address")
        if ip is not None and callable(conf.IP_META_KEY):
            self.stderr.write(
                self.style.WARNING("RATELIMIT_IP_META_KEY is a function, and may not see the address of --ip.")
            )
        headers = dict(_pair(one) for one in header)
        found = explain(build_request(path, method, ip, _user(user), headers))
        if found.decision.source == "fallback" or not provider.is_answered:
            self.stderr.write(self.style.WARNING("Redis cannot be asked: the states are not known."))
        if found.exempt is not None:
            self.stdout.write(f"exempt: {found.exempt}")
        if found.block is not None:
            self.stdout.write(f"blocked, whatever rule: override {found.block.pk} ({found.block})")
        for met in found.met:
            self.stdout.write(f"{met.name} ({met.source}): {met.reading}")
            if met.override is not None:
                effect = met.override.get_effect_display()
                skipped = "; skipped, as it does not fit this limit" if met.is_skipped else ""
                self.stdout.write(f"    override {met.override.pk} ({met.override}): {effect}{skipped}")
            if met.state is not None:
                state = met.state
                frees = f"frees up in {state.reset_after:.0f} s" if state.used else "unused"
                verdict = "allowed" if state.allowed else "refused"
                self.stdout.write(f"    {state.used} of {state.limit} used, {state.remaining} left, {frees}: {verdict}")
        for problem in found.problems:
            self.stderr.write(self.style.ERROR(f"cannot be applied to this request: {problem}"))
        if not found.met and found.exempt is None and found.block is None:
            self.stdout.write("no rule applies")

    def _mode(self, name: str, mode: str, **options: Any) -> None:
        rule = RateLimitRule.objects.filter(name=name).first()
        if rule is None:
            known = ", ".join(RateLimitRule.objects.values_list("name", flat=True)) or "none"
            raise CommandError(f"no rule of the admin is called {name!r}; there are: {known}")
        with acting("ratelimit_rules mode"):
            rule.switch(mode)
        self.stdout.write(f"{rule.name}: {rule.reading()}")
        self._unless_live(triggers.unpublished)

    def _export(self, **options: Any) -> None:
        self.stdout.write(rules_yaml.export(), ending="")

    def _import(self, file: str, dry_run: bool, **options: Any) -> None:
        text = _read(file)
        with acting("ratelimit_rules import"):
            steps = rules_yaml.plan(text) if dry_run else rules_yaml.apply(text)
        for step in steps:
            for line in step.words():
                self.stdout.write(line)
        done = "would be changed" if dry_run else "changed"
        self.stdout.write(f"{len(steps)} rule{'' if len(steps) == 1 else 's'} {done}")
        if steps and not dry_run:
            self._unless_live(triggers.unpublished)

    def _check(self, file: str | None, **options: Any) -> None:
        if file is not None:
            count = len(rules_yaml.load(_read(file)))
        else:
            ruleset = provider.reload()
            found = [*dict.fromkeys(filter(None, (migration_problem(), *problems.found()))), *_failures()]
            if found:
                raise CommandError("\n".join(found))
            count = len(ruleset.rules)
        self.stdout.write(f"{count} rule{'' if count == 1 else 's'}: no problem found")

    def _publish(self, take_over: bool, **options: Any) -> None:
        self.stdout.write(f"published revision {publish(rebuild=True, take_over=take_over)}")

    def _new_id(self, **options: Any) -> None:
        using = primary()
        with transaction.atomic(using):
            name = RateLimitRevision.rename(using)
        self.stdout.write(f"the database is {name} from now on")
        try:
            self.stdout.write(f"published revision {publish()}")
        except StoreError as error:
            self._unless_live(str(error))
        if problems.place:
            self.stderr.write(self.style.WARNING(problems.place))

    def _unless_live(self, why: str) -> None:
        """Say that what was saved is not live, and what makes it so."""
        if why:
            self.stderr.write(
                self.style.WARNING(
                    f"Saved, but not live yet: {why}. Processes that serve requests publish it some ten seconds after "
                    "Redis can be asked again; `manage.py ratelimit_rules publish` does it at once."
                )
            )


def _failures() -> list[str]:
    """What processes had to leave out lately, though it makes sense by itself."""
    days = {name: of.get(FAILED, 0) for name, of in refusal_counts(1).items()}
    return [
        f"rule {name!r} could not be applied to {number} request{'' if number == 1 else 's'} today; the log says why"
        for name, number in sorted(days.items())
        if number
    ]


def _pair(header: str) -> tuple[str, str]:
    name, colon, value = header.partition(":")
    if not colon or not name.strip():
        raise CommandError(f"--header {header!r}: write NAME:VALUE")
    return name.strip(), value.strip()


def _user(named: str | None) -> Any:
    if named is None:
        return None
    found = find_user(named)
    if found is None:
        raise CommandError(f"--user {named!r}: nobody has that primary key or name")
    return found


def _read(file: str) -> str:
    try:
        if file == "-":
            return sys.stdin.read(rules_yaml.LONGEST_TEXT + 1)
        with Path(file).open(encoding="utf-8") as opened:
            return opened.read(rules_yaml.LONGEST_TEXT + 1)
    except (OSError, ValueError) as error:
        raise CommandError(f"{file}: {error}") from error
