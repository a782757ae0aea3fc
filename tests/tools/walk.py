"""`python -m tests.tools.walk`: the functions that one decorated request goes through, in order.

Printed twice, on a real server: for a process that knows the rules, and for one that finds out that
they have changed. `--tour` prints the first as `docs/walk.txt` has it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

INLINED = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
"""Comprehensions are no functions of their own since Python 3.12, and a generator expression is
entered for each item.
"""
PACKAGE = Path(__file__).parents[2] / "django_ratelimit_lua"


@dataclass
class Walk:
    """The functions that were entered, in order: how deep, in which file, on which line, and called
    what.
    """

    steps: list[tuple[int, str, int, str]] = field(default_factory=list)
    crossings: int = 0
    _stack: list[str] = field(default_factory=list)

    def of(self, function: Callable[[], Any]) -> Any:
        """Call a function, and record the functions that it enters."""
        prefix = f"{PACKAGE}{os.sep}"

        def note(frame: FrameType, event: str, argument: Any) -> None:
            code = frame.f_code
            if (
                event not in ("call", "return")
                or not code.co_filename.startswith(prefix)
                or code.co_name in INLINED
            ):
                return
            if event == "return":
                if self._stack:
                    self._stack.pop()
                return
            file = code.co_filename.removeprefix(prefix)
            self.crossings += bool(self._stack) and self._stack[-1] != file
            self.steps.append((len(self._stack), file, code.co_firstlineno, code.co_qualname))
            self._stack.append(file)

        sys.setprofile(note)
        try:
            return function()
        finally:
            sys.setprofile(None)

    @property
    def frames(self) -> int:
        """How many functions were entered, each as often as it was."""
        return len(self.steps)

    @property
    def functions(self) -> int:
        """How many different functions were entered."""
        return len({step[1:] for step in self.steps})

    @property
    def files(self) -> int:
        """How many files these are in."""
        return len({file for _, file, _, _ in self.steps})

    def tour(self) -> str:
        """The walk for the documentation: without the numbers of lines, which each edit moves."""
        names = [
            f"{'  ' * depth}{file}  {name.replace('.<locals>', '')}"
            for depth, file, _, name in self.steps
        ]
        return "\n".join([*names, f"{self.frames} functions entered, {self.files} files"])

    def __str__(self) -> str:
        lines = [f"{'  ' * depth}{file}:{line} {name}" for depth, file, line, name in self.steps]
        counts = (
            f"{self.frames} frames, {self.functions} functions, {self.files} files, "
            f"{self.crossings} crossings"
        )
        return "\n".join([*lines, counts])


def walks() -> tuple[Walk, Walk]:
    """The walk of a warm hit, and that of the first one after a rule was saved: the shortest of
    some. Needs a database.
    """
    from django.http import HttpResponse
    from django.test import RequestFactory

    from django_ratelimit_lua import ratelimit
    from django_ratelimit_lua.engine import decide
    from django_ratelimit_lua.engine.listener import listener
    from django_ratelimit_lua.models import RateLimitRule
    from django_ratelimit_lua.rules import provider

    @ratelimit(key="ip", rate="50/m")
    def view(request: Any) -> HttpResponse:
        return HttpResponse("fine")

    def hit(walk: Walk | None = None) -> None:
        request = RequestFactory().get("/")
        response = view(request) if walk is None else walk.of(lambda: view(request))
        assert response.status_code == 200
        assert request.ratelimit.source == "redis"

    warm, stale = [Walk() for _ in range(5)], [Walk() for _ in range(5)]
    # The listener would receive the change before the hit.
    with (
        patch.object(listener.task, "start", lambda: None),
        patch.object(decide, "decision_hooks", ()),  # The core alone.
    ):
        RateLimitRule.objects.create(name="first", key="ip", rate="5/60m", path="/first")
        hit()
        hit()
        for walk in warm:
            hit(walk)
        for number, walk in enumerate(stale):
            known = provider.get_ruleset()
            RateLimitRule.objects.create(
                name=f"new-{number}", key="ip", rate="5/60m", path=f"/new/{number}"
            )
            provider._ruleset = known  # As in a process that did not make the change.
            hit(walk)
    return min(warm, key=lambda walk: walk.frames), min(stale, key=lambda walk: walk.frames)


def main() -> None:
    """Print both."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import django
    from django.core.management import call_command
    from django.test import override_settings

    django.setup()
    call_command("migrate", verbosity=0)
    prefix = f"walk{os.getpid()}:"
    with override_settings(RATELIMIT_CACHE_PREFIX=prefix, RATELIMIT_ON_STORE_ERROR="local"):
        warm, stale = walks()
    if "--tour" in sys.argv:
        print(warm.tour())
    else:
        print(
            f"A hit by rules that are known:\n{warm}\n\nA hit by rules that have changed:\n{stale}"
        )


if __name__ == "__main__":
    main()
    from tests.support.redis_server import server

    server.stop()
