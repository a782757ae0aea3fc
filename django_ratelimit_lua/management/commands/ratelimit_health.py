"""`manage.py ratelimit_health`: whether limits can be decided at the moment."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from ...conf import conf
from ...exceptions import StoreError
from ...operations.health import health
from ...publishing.triggers import migration_problem
from ...rules import provider
from ...rules.problems import problems


class Command(BaseCommand):
    """Says how long a decision takes, and which rules are published; exits with 1 where there is none."""

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
        for problem in dict.fromkeys(filter(None, (migration_problem(), *problems.found()))):
            is_left_out = problem != problems.place
            self.stderr.write(self.style.WARNING(f"left out: {problem}" if is_left_out else problem))
