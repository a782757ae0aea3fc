"""`rules`: list, show, export and import the rules, switch one, and explain a request."""

from __future__ import annotations

import sys
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from textwrap import shorten

from django.core.management.base import CommandError

from ...conf import conf
from ...limits.decision import LimitState
from ...models import RateLimitOverride, RateLimitRule
from ...operations import rules_yaml
from ...operations.call_sites import limits_named, place_words, rule_names
from ...operations.confirmations import changed_confirmations, confirmations
from ...operations.explain import explain
from ...operations.formatting import count_words
from ...rules import RuleError, provider
from ...rules.options import MODES
from ...rules.snapshot import NO_SNAPSHOT
from ...views.call_sites import describe_rule
from ..arguments import (
    add_request,
    described,
    require_confirmation,
    require_urlconf,
    verdict,
)
from . import Printer, VerbOptions, argument, verb
from .overrides import override_words

MAX_LENGTH = 4 * 1024 * 1024
"""Maximum number of characters in a file of rules."""


@verb("rules list", "list the rules in force, in their order, and where each is defined")
def _list_rules(command: Printer, options: VerbOptions) -> None:
    ruleset = provider.reload_ruleset()
    if not provider.is_answered:
        source = "the database and the settings"
        if ruleset.snapshot is NO_SNAPSHOT:
            source = "the settings only"
        command.warn(f"Redis is unavailable: these are the rules of {source}.")
    for rule in ruleset.rules:
        command.say(f"{rule.order:>6}  {rule.source:<8}  {rule.name}: {describe_rule(rule.spec)}")
    for problem in ruleset.problems:
        command.stderr.write(command.style.ERROR(f"skipped: {problem}"))
    command.say(f"{count_words(len(ruleset.rules), 'rule')}; revision {ruleset.revision.number}")


@verb(
    "rules show",
    "show a rule, or a limit in the code: where it is defined, its fields and its overrides",
    argument("name"),
)
def _show(command: Printer, options: VerbOptions) -> None:
    name = options["name"]
    rule = provider.reload_ruleset().by_name.get(name)
    sites = [limit for limit in limits_named(name) if not limit.is_rule]
    if rule is None and not sites:
        near = get_close_matches(name, rule_names(), 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise CommandError(f"no rule or limit in the code is named {name!r}{hint}")
    if rule is not None:
        given = rule.spec
        command.say(f"{name} ({rule.source}): {describe_rule(given)}")
        for field, value in given.items():
            command.say(f"  {field}: {value}")
    for site in sites:
        command.say(f"in the code: {site.words}, in {site.place or place_words(name)}")
    for override in RateLimitOverride.objects.lasting().filter(rule=name):
        command.say(override_words(override))


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
        command.say(f"{limit.name} ({limit.source}): {limit.reading}")
        override = limit.override
        if override is not None:
            text = f"    override {override.pk} ({override}): {override.get_effect_display()}"
            if limit.is_skipped:
                text += "; skipped, as it does not fit this limit"
            command.say(text)
        if limit.state is not None:
            text = f"    {_words(limit.state._replace(limit=limit.available))}"
            if limit.is_advice and not limit.state.allowed:
                text += ", but the view decides"
            command.say(text)
    if not any((explanation.met, explanation.exempt, explanation.block, explanation.notes)):
        command.say("No rule applies.")
    for line in (*explanation.notes, verdict(explanation)):
        command.say(line)


@verb(
    "rules mode",
    "change the mode of a rule, for example if the admin is locked out",
    argument("name"),
    argument("mode", choices=MODES),
    argument("--confirm", action="store_true", help="change it despite warnings"),
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
    rule.set_mode(mode)
    command.say(f"{rule.name}: {rule.describe()}")
    command.warn_if_unpublished()


@verb("rules export", "write the rules of the admin as YAML")
def _export(command: Printer, options: VerbOptions) -> None:
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
    require_urlconf()
    changes = rules_yaml.plan(*_read(options["file"]))
    kept = []
    if not options["delete"]:
        kept = [change.name for change in changes if change.after is None]
        changes = [change for change in changes if change.after is not None]
    found = changed_confirmations(changes)
    warnings = [f"{name}: {text}" for name, texts in found.items() for text in texts]
    if options["dry_run"]:
        for line in warnings:
            command.warn(line)
    else:
        require_confirmation(options, warnings)
        rules_yaml.apply(changes)
    for change in changes:
        command.say("\n".join(change.words()))
    command.say(rules_yaml.summary(changes, "would be " if options["dry_run"] else ""))
    if kept:
        names = shorten(", ".join(kept), 500)
        command.warn(f"not in the file: {names}. --delete deletes these rules.")
    command.warn_if_unpublished()


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
