"""`migrate-check`: read a project's code, and print what to change to migrate to this package."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from django.conf import settings
from django.core.management.base import CommandError

from ...operations.formatting import count_words
from ...operations.migration import find_changes
from . import Printer, VerbOptions, argument, verb


@verb(
    "migrate-check",
    "print what code that uses django-ratelimit or DRF's throttles must change; it is read, not "
    "imported, and nothing is written",
    argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="files and folders; without any, BASE_DIR of the settings, or this folder",
    ),
)
def _check_migration(command: Printer, options: VerbOptions) -> None:
    roots = [Path(path) for path in options["paths"]]
    if missing := [str(root) for root in roots if not root.exists()]:
        raise CommandError(f"there is no file or folder {', '.join(missing)}")
    roots = roots or [Path(getattr(settings, "BASE_DIR", "."))]
    findings = 0
    files = 0
    for path, found in groupby(find_changes(roots), key=lambda finding: finding.path):
        files += 1
        command.say(str(path))
        for finding in found:
            findings += 1
            command.say(f"  {finding.line}: {finding.text} -> {finding.remedy}")
    if not findings:
        command.say("nothing uses django-ratelimit or DRF's throttles")
        return
    command.say(
        f"{count_words(findings, 'finding')} in {count_words(files, 'file')}. Limits count in a "
        "sliding window, and a refused request is not counted: see the guide on migrating."
    )
