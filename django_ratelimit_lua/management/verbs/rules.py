"""`rules`: list, check, export and import the rules, and explain a request."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from textwrap import shorten

from django.core.management.base import CommandError
from django.db import transaction

from ...checks import check_annexes
from ...conf import conf
from ...exceptions import StoreError
from ...limits.decision import LimitState
from ...models import RateLimitOverride, RateLimitRevision, RateLimitRule
from ...operations import rules_yaml
from ...operations.confirmations import changed_confirmations, confirmations
from ...operations.explain import ExplainedLimit, explain
from ...operations.formatting import count_words
from ...publishing.publish import OwnerError, primary, publish
from ...publishing.triggers import migration_problem
from ...rules import RuleError, provider
from ...rules.places import sentence
from ...rules.problems import problems
from ...rules.rule import MODES
from ...rules.ruleset import settings_problems
from ...rules.snapshot import NO_SNAPSHOT
from ..arguments import (
    add_request,
    described,
    require_confirmation,
    require_urlconf,
    verdict,
)
from . import Printer, VerbOptions, argument, verb

MAX_LENGTH = 4 * 1024 * 1024
"""Maximum number of characters in a file of rules."""
MAX_LINES = 50
"""Maximum number of changes, and of warnings, that an import lists."""


@verb("rules list", "list the rules in force, in their order, and where each is defined")
def _list_rules(command: Printer, options: VerbOptions) -> None:
    ruleset = provider.reload()
    if not provider.is_answered:
        source = "the database and the settings"
        if ruleset.snapshot is NO_SNAPSHOT:
            source = "the settings only"
        command.warn(f"Redis is unavailable: these are the rules of {source}.")
    for rule in ruleset.rules:
        command.say(f"{rule.order:>6}  {rule.source:<8}  {rule.name}: {sentence(rule.given or {})}")
    for problem in ruleset.problems:
        command.stderr.write(command.style.ERROR(f"skipped: {problem}"))
    command.say(f"{count_words(len(ruleset.rules), 'rule')}; revision {ruleset.revision.number}")


@verb(
    "rules explain",
    "explain why a request is allowed or refused, without counting it",
    add_request,
)
def _explain(command: Printer, options: VerbOptions) -> None:
    require_urlconf()
    request = described(options)
    if options["ip"] is not None and callable(conf.IP_META_KEY):
        command.warn("RATELIMIT_IP_META_KEY is a function, which may ignore --ip.")
    explanation = explain(request)
    if explanation.decision.source == "fallback" or not provider.is_answered:
        command.warn("Redis is unavailable: the counts are unknown.")
    if explanation.exempt is not None:
        command.say(f"exempt: {explanation.exempt}")
    if explanation.block is not None:
        block = explanation.block
        command.say(f"all requests of this client are blocked: override {block.pk} ({block})")
    for limit in explanation.met:
        _print_limit(command, limit)
        if limit.override is not None:
            text = f"    {_effect(limit.override)}"
            if limit.is_skipped:
                text += "; skipped, as it does not fit this limit"
            command.say(text)
        if limit.state is not None:
            text = f"    {_words(limit.state)}"
            if limit.is_advice and not limit.state.allowed:
                text += ", but the view decides"
            command.say(text)
    for problem in explanation.problems:
        command.stderr.write(command.style.ERROR(f"cannot be applied to this request: {problem}"))
    if not any((explanation.met, explanation.exempt, explanation.block, explanation.unknown)):
        command.say("No rule applies.")
    for line in (*explanation.notes, *verdict(explanation)):
        command.say(line)


def _print_limit(command: Printer, limit: ExplainedLimit) -> None:
    command.say(f"{limit.name} ({limit.source}): {limit.reading}")


def _effect(override: RateLimitOverride) -> str:
    return f"override {override.pk} ({override}): {override.get_effect_display()}"


@verb(
    "rules mode",
    "change the mode of a rule, for example if the admin is locked out",
    argument("name"),
    argument("mode", choices=MODES),
    argument("--confirm", action="store_true", help="enforce it despite warnings"),
)
def _switch(command: Printer, options: VerbOptions) -> None:
    name = options["name"]
    mode = options["mode"]
    rule = RateLimitRule.objects.filter(name=name).first()
    if rule is None:
        names = ", ".join(RateLimitRule.objects.values_list("name", flat=True)) or "none"
        raise CommandError(f"the admin has no rule {name!r}; known rules: {names}")
    before, rule.mode = rule.mode, mode
    with suppress(RuleError):  # An invalid rule can be turned off as well.
        texts = [str(text) for _field, text in confirmations(rule, before)]
        require_confirmation(options, texts)
    rule.switch(mode)
    command.say(f"{rule.name}: {rule.reading()}")
    command.warn_if_unpublished()


@verb("rules export", "write the rules of the admin as YAML")
def _export(command: Printer, options: VerbOptions) -> None:
    command.stdout.write(rules_yaml.export(), ending="")


@verb(
    "rules import",
    "create and change the rules of the admin from a YAML file",
    argument("file", help="a file, or - for standard input"),
    argument("--dry-run", action="store_true", help="only show what would change"),
    argument("--merge", action="store_true", help="keep rules that are not in the file"),
    argument("--delete", action="store_true", help="delete rules that are not in the file"),
    argument("--confirm", action="store_true", help="change the rules despite warnings"),
    argument("--all", action="store_true", help=f"list all changes, not only {MAX_LINES}"),
)
def _import_rules(command: Printer, options: VerbOptions) -> None:
    dry_run = options["dry_run"]
    merge = options["merge"]
    if merge and options["delete"]:
        raise CommandError("--merge keeps the rules that --delete deletes: use one of them")
    require_urlconf()
    changes = rules_yaml.plan(*_read(options["file"]), merge=merge)
    deleted = [change.name for change in changes if change.after is None]
    if deleted and not options["delete"]:  # A truncated file lacks rules as well.
        problem = (
            f"the file lacks {count_words(len(deleted), 'rule')}, which would be deleted: "
            f"{shorten(', '.join(deleted), 500)}. "
            "Use --merge to keep them, or --delete to delete them"
        )
        if not dry_run:
            raise CommandError(f"Nothing was changed: {problem}")
        command.warn(problem)
    warnings = _some(_lines(changed_confirmations(changes)), options)
    if not dry_run:
        require_confirmation(options, warnings)
    for line in warnings:
        command.warn(line)
    if not dry_run:
        rules_yaml.apply(changes)
    for line in _some(["\n".join(change.words()) for change in changes], options):
        command.say(line)
    command.say(rules_yaml.summary(changes, "would be " if dry_run else ""))
    if not dry_run and changes:
        command.warn_if_unpublished()
    if dry_run and warnings and not options["confirm"]:
        command.warn("Use --confirm to change the rules despite these warnings.")


def _some(lines: list[str], options: VerbOptions) -> list[str]:
    """Return the first lines, and how many more there are."""
    if len(lines) <= MAX_LINES or options["all"]:
        return lines
    more = f"… and {len(lines) - MAX_LINES} more; --all lists them"
    return [*lines[:MAX_LINES], more]


def _lines(texts: Mapping[str, Sequence[str]]) -> list[str]:
    return [f"{name}: {line}" for name, lines in texts.items() for line in lines]


@verb("rules check", "check the rules in force, or a file", argument("file", nargs="?"))
def _check(command: Printer, options: VerbOptions) -> None:
    file = options["file"]
    if file is not None:
        number = len(rules_yaml.load(*_read(file)))
    else:
        wrong = settings_problems()
        if wrong:  # Then there is no ruleset that could be looked at.
            raise CommandError("\n".join(wrong))
        ruleset = provider.reload()
        ignored = [f"{each.msg} {each.hint}" for each in check_annexes([primary()])]
        found = (migration_problem(), *problems.found(), *ignored)
        lines = list(dict.fromkeys(filter(None, found)))
        if lines:
            raise CommandError("\n".join(lines))
        number = len(ruleset.rules)
    command.say(f"{count_words(number, 'rule')}: no problem found")


@verb("rules publish", "publish all rules again, for example after raw SQL")
def _publish_rules(command: Printer, options: VerbOptions) -> None:
    command.say(f"published revision {publish(rebuild=True)}")


@verb(
    "rules adopt",
    "publish the rules of this database over those of another database or a newer version",
)
def _adopt(command: Printer, options: VerbOptions) -> None:
    command.say(f"published revision {publish(rebuild=True, take_over=True)}")


@verb("rules new-id", "give this database a new id, if it is a copy of another one")
def _new_id(command: Printer, options: VerbOptions) -> None:
    using = primary()
    with transaction.atomic(using):
        name = RateLimitRevision.rename(using)
    command.say(f"the database now has the id {name}")
    try:
        command.say(f"published revision {publish()}")
    except OwnerError as error:
        command.warn(str(error))
    except StoreError as error:
        command.warn_if_unpublished(str(error))


def _words(state: LimitState) -> str:
    """Return the count of a limit, and its decision about the next request."""
    resets = f"resets in {state.reset_after:.0f} s" if state.used else "unused"
    verdict = "allowed"
    if not state.allowed and state.retry_after is None:
        verdict = "refused for good"
    elif not state.allowed:
        verdict = f"refused for {state.retry_after:.0f} s"
    if state.mode == "shadow":
        verdict += ", but in shadow mode"
    return f"{state.used} of {state.limit} used, {state.remaining} left, {resets}: {verdict}"


def _read(file: str) -> tuple[str, str]:
    """Return the text of a file, and its name in errors."""
    source = file
    try:
        if file == "-":
            source = "standard input"
            text = sys.stdin.read(MAX_LENGTH + 1)
        else:
            with Path(file).open(encoding="utf-8") as opened:
                text = opened.read(MAX_LENGTH + 1)
    except (OSError, ValueError) as error:
        raise CommandError(f"{file}: {error}") from error
    if len(text) > MAX_LENGTH:
        raise CommandError(f"{source}: more than {MAX_LENGTH} characters")
    return text, source
