"""`manage.py ratelimit_health`: whether limits can be decided at the moment."""

from __future__ import annotations

import time
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from ...conf import conf
from ...engine.background import background_tasks
from ...engine.listener import listener
from ...exceptions import StoreError
from ...operations.health import health
from ...publishing.triggers import migration_problem
from ...rules import provider
from ...rules.problems import problems
from ...stats.writing import why_unwritable
from ...web.durations import duration_words

LISTEN_SECONDS = 2.0
"""For how long it is tried whether changes can be heard of."""


class Command(BaseCommand):
    """Says how long a decision takes, which rules are published, whether changes are heard of, and what a process does
    in the background; exits with 1 where nothing can be decided."""

    help = "Asks Redis for a decision, counting nothing; exits with 1 if limits cannot be decided."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            health()  # The first decision has to connect.
            status = health()
            if not status.ok:
                raise CommandError(
                    f"limits cannot be decided: {status.error}; RATELIMIT_ON_STORE_ERROR is {conf.ON_STORE_ERROR!r}"
                )
            revision = provider.reload().revision.number
        except (ImproperlyConfigured, StoreError) as error:
            raise CommandError(str(error)) from error
        rules = f"rules of revision {revision} are published" if revision else "no rules are published"
        self.stdout.write(f"a decision takes {status.seconds * 1000:.2f} ms; {rules}")
        for task in background_tasks():
            when = "not yet" if task.seconds_ago is None else f"{task.seconds_ago:.1f} s ago"
            state = (
                f"failed: {task.error}" if task.error else f"{'running' if task.is_running else 'idle'}, last {when}"
            )
            self.stdout.write(f"{task.name}: {task.purpose} ({state})")
        for process in status.processes:
            age = duration_words(time.time() - process.since)
            parts = "; ".join(
                f"{part.units} of {part.limit} of {part.name} (weight {part.weight:g})" for part in process.parts
            )
            self.stdout.write(f"process {process.pid} on {process.host}, for {age}: {parts or 'no split limit'}")
        if not listener.wait(LISTEN_SECONDS):
            reason = listener.error or "no thread runs for it"
            self.stderr.write(self.style.WARNING(f"changes of rules are not heard of, but asked for: {reason}"))
        unwritable = why_unwritable() if conf.STATISTICS else None
        if unwritable is not None:
            message = f"statistics cannot be written, or not all: {unwritable}"
            self.stderr.write(self.style.WARNING(message))
        for problem in dict.fromkeys(filter(None, (migration_problem(), *problems.found()))):
            is_left_out = problem != problems.owner
            self.stderr.write(self.style.WARNING(f"left out: {problem}" if is_left_out else problem))
