"""Verbs about rules: list, show, export and import them, switch one, explain a request; history."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from textwrap import shorten

from django.core.management.base import CommandError
from django.db import transaction
from django.utils import timezone

from ...conf import conf
from ...exceptions import StoreError
from ...limits.decision import LimitState
from ...models import RateLimitChange, RateLimitOverride, RateLimitRevision, RateLimitRule
from ...models.rule import rules_database
from ...operations.confirmations import confirmations
from ...operations.explain import ExplainedLimit, explain
from ...operations.formatting import count_words
from ...operations.known_limits import limits_named, place_words, rule_names
from ...publishing import publisher
from ...publishing.publisher import OwnerError, publish
from ...rules import RuleError, provider
from ...rules.options import MODES
from ...rules.snapshot import NO_SNAPSHOT
from ...views.call_sites import describe_rule
from ..arguments import (
    add_request,
    describe_decision,
    format_moment,
    parse_request,
    parse_seconds,
    require_confirmation,
    require_urlconf,
)
from . import Printer, VerbOptions, argument, verb
from .clients import override_words

MAX_LENGTH = 4 * 1024 * 1024
"""Maximum number of characters in a file of rules."""


@verb("rules list", "list the rules in force, in their order, and where each is defined")
def _list_rules(command: Printer, options: VerbOptions) -> None:
    """Print the rules, the problems of skipped ones, and where they come from without Redis."""
    ruleset = provider.reload_ruleset()
    if not provider.is_answered:
        source = "the database and the settings"
        if ruleset.snapshot is NO_SNAPSHOT:
            source = "the settings only"
        command.warn(f"Redis is unavailable: these are the rules of {source}.")
    for rule in ruleset.rules:
        command.write(f"{rule.order:>6}  {rule.source:<8}  {rule.name}: {describe_rule(rule.spec)}")
    for problem in ruleset.problems:
        command.stderr.write(command.style.ERROR(f"skipped: {problem}"))
    command.write(f"{count_words(len(ruleset.rules), 'rule')}; revision {ruleset.revision.number}")


@verb(
    "rules show",
    "show a rule, or a limit in the code: where it is defined, its fields and its overrides",
    argument("name"),
)
def _show_rule(command: Printer, options: VerbOptions) -> None:
    """Print the rule and the limits in the code of a name, with their overrides."""
    name = options["name"]
    rule = provider.reload_ruleset().by_name.get(name)
    sites = [limit for limit in limits_named(name) if not limit.is_rule]
    if rule is None and not sites:
        near = get_close_matches(name, rule_names(), 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise CommandError(f"no rule or limit in the code is named {name!r}{hint}")
    if rule is not None:
        command.write(f"{name} ({rule.source}): {describe_rule(rule.spec)}")
        for field, value in rule.spec.items():
            command.write(f"  {field}: {value}")
    for site in sites:
        command.write(f"in the code: {site.words}, in {site.place or place_words(name)}")
    for override in RateLimitOverride.objects.lasting().filter(rule=name):
        command.write(override_words(override))


@verb(
    "rules explain",
    "explain why a request is allowed or refused, without counting it",
    add_request,
)
def _explain_request(command: Printer, options: VerbOptions) -> None:
    """Print what applies to the request: exemption, block, limits, notes and the decision."""
    require_urlconf()
    request = parse_request(options)
    if options["ip"] is not None and callable(conf.IP_META_KEY):
        command.warn("RATELIMIT_IP_META_KEY is a function, which may ignore --ip.")
    explanation = explain(request)
    if explanation.decision.source == "fallback" or not provider.is_answered:
        command.warn("Redis is unavailable: the counts are unknown.")
    if explanation.exempt is not None:
        command.write(f"exempt: {explanation.exempt}")
    if explanation.block is not None:
        block = explanation.block
        command.write(f"all requests of this client are blocked: override {block.pk} ({block})")
    for limit in explanation.limits:
        for line in _describe_limit(limit):
            command.write(line)
    if not any((explanation.limits, explanation.exempt, explanation.block, explanation.notes)):
        command.write("No rule applies.")
    for line in (*explanation.notes, describe_decision(explanation)):
        command.write(line)


def _describe_limit(limit: ExplainedLimit) -> Iterator[str]:
    """Yield the lines about a limit: its sentence, its override and its count."""
    yield f"{limit.name} ({limit.source}): {limit.reading}"
    override = limit.override
    if override is not None:
        text = f"    override {override.pk} ({override}): {override.get_effect_display()}"
        if limit.is_skipped:
            text += "; skipped, as it does not fit this limit"
        yield text
    if limit.state is not None:
        text = f"    {_describe_state(limit.state._replace(limit=limit.available))}"
        if limit.is_advice and not limit.state.allowed:
            text += ", but the view decides"
        yield text


@verb(
    "rules mode",
    "change the mode of a rule, for example if the admin is locked out",
    argument("name"),
    argument("mode", choices=MODES),
    argument("--confirm", action="store_true", help="change it despite warnings"),
)
def _set_mode(command: Printer, options: VerbOptions) -> None:
    """Change the mode of a rule in the admin, also of an invalid one."""
    name = options["name"]
    mode = options["mode"]
    rule = RateLimitRule.objects.filter(name=name).first()
    if rule is None:
        names = ", ".join(RateLimitRule.objects.values_list("name", flat=True)) or "none"
        raise CommandError(f"the admin has no rule {name!r}; known rules: {names}")
    old_mode = rule.mode
    rule.mode = mode
    with suppress(RuleError):  # An invalid rule can be turned off as well.
        texts = [str(text) for _field, text in confirmations(rule, old_mode)]
        require_confirmation(options, texts)
    rule.set_mode(mode)
    command.write(f"{rule.name}: {rule.describe()}")
    command.warn_if_unpublished()


@verb("rules export", "write the rules of the admin as YAML")
def _export_rules(command: Printer, options: VerbOptions) -> None:
    from .. import rules_yaml  # PyYAML is slow to import.

    command.stdout.write(rules_yaml.export(), ending="")


@verb(
    "rules import",
    "create and change the rules of the admin from a YAML file",
    argument("file", help="a file, or - for standard input"),
    argument("--dry-run", action="store_true", help="only show what would change"),
    argument("--delete", action="store_true", help="delete rules that are not in the file"),
    argument("--confirm", action="store_true", help="change the rules despite warnings"),
)
def _import_rules(command: Printer, options: VerbOptions) -> None:
    """Make the rules like those of a file. Rules that it lacks stay, unless `--delete` is given."""
    from .. import rules_yaml

    require_urlconf()
    planned = rules_yaml.plan(*_read_file(options["file"]))
    changes = [change for change in planned if change.after is not None or options["delete"]]
    kept = [change.name for change in planned if change.after is None and not options["delete"]]
    confirmations_by_rule = rules_yaml.changed_confirmations(changes)
    warnings = [
        f"{name}: {text}" for name, texts in confirmations_by_rule.items() for text in texts
    ]
    if options["dry_run"]:
        for line in warnings:
            command.warn(line)
    else:
        require_confirmation(options, warnings)
        rules_yaml.apply(changes)
    for change in changes:
        command.write("\n".join(change.describe()))
    command.write(rules_yaml.summary(changes, "would be " if options["dry_run"] else ""))
    if kept:
        names = shorten(", ".join(kept), 500)
        command.warn(f"not in the file: {names}. --delete deletes these rules.")
    command.warn_if_unpublished()


def _describe_state(state: LimitState) -> str:
    """Return the count of a limit, and its decision about the next request."""
    resets = f"resets in {state.reset_after:.0f} s" if state.used else "unused"
    if state.allowed:
        verdict = "allowed"
    elif state.retry_after is None:
        verdict = "refused for good"
    else:
        verdict = f"refused for {state.retry_after:.0f} s"
    if state.mode == "shadow":
        verdict += ", but in shadow mode"
    return f"{state.used} of {state.limit} used, {state.remaining} left, {resets}: {verdict}"


def _read_file(file: str) -> tuple[str, str]:
    """Return the text of a file, and its name in errors."""
    source = file
    try:
        if file == "-":
            source = "standard input"
            text = sys.stdin.read(MAX_LENGTH + 1)
        else:
            with Path(file).open(encoding="utf-8") as opened:
                text = opened.read(MAX_LENGTH + 1)
    except (OSError, ValueError) as error:  # It may not be UTF-8.
        raise CommandError(f"{file}: {error}") from error
    if len(text) > MAX_LENGTH:
        raise CommandError(f"{source}: more than {MAX_LENGTH} characters")
    return text, source


MAX_CHANGES = 20


@verb(
    "history",
    f"list the last {MAX_CHANGES} changes, or delete old ones and expired overrides",
    argument("--prune", metavar="AGE", help="delete rows that are older, such as 400d"),
    argument("--dry-run", action="store_true", help="only count these rows"),
)
def _list_changes(command: Printer, options: VerbOptions) -> None:
    """Print the last changes, or delete (or count) rows that are older than `--prune`."""
    if options["prune"] is None:
        for change in RateLimitChange.objects.order_by("-at", "-pk")[:MAX_CHANGES]:
            what = f"{change.get_kind_display()} {change.name}: {change.get_action_display()}"
            by = f" by {change.by}" if change.by else ""
            command.write(f"{format_moment(change.at)} {what}{by}")
        return
    oldest = timezone.now() - timedelta(seconds=parse_seconds("--prune", options["prune"]))
    if options["dry_run"]:
        action = "would delete"
        outdated = publisher.outdated_rows(rules_database(), oldest)
        counts = {name: rows.count() for name, rows in outdated.items()}
    else:
        action = "deleted"
        counts = publisher.prune_rows(rules_database(), oldest)
    texts = ", ".join(f"{name} {number:,}" for name, number in counts.items())
    command.write(f"{action} rows from before {format_moment(oldest)}: {texts}")


@verb(
    "publish",
    "publish all rules and overrides again, for example after raw SQL",
    argument(
        "--take-over",
        action="store_true",
        help="replace the rules of another database or of a newer version",
    ),
    argument(
        "--new-id",
        action="store_true",
        help="first give this database a new id, if it is a copy of another one",
    ),
)
def _publish_rules(command: Printer, options: VerbOptions) -> None:
    """Publish everything again. A database with a new id has changed already if that fails."""
    take_over = options["take_over"]
    if not options["new_id"]:
        command.write(f"published revision {publish(rebuild=True, take_over=take_over)}")
        return
    using = rules_database()
    with transaction.atomic(using):
        command.write(f"the database now has the id {RateLimitRevision.rename(using)}")
    try:
        command.write(f"published revision {publish(take_over=take_over)}")
    except OwnerError as error:
        command.warn(str(error))
    except StoreError as error:
        command.warn_if_unpublished(str(error))
