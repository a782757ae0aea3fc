"""The verbs of `manage.py ratelimit`, the description of a limit's state, and errors for invalid
arguments.
"""

from __future__ import annotations

import re

import pytest
from django.core.management import CommandError, call_command

from django_ratelimit_lua.limits.decision import LimitState
from django_ratelimit_lua.management.verbs import verbs
from django_ratelimit_lua.management.verbs.rules import _describe_state


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (LimitState("x", True, 5, 0, 5, 0.0, 0.0, 0.0), "0 of 5 used, 5 left, unused: allowed"),
        (
            LimitState("x", True, 5, 2, 3, 0.0, 61.4, 0.0),
            "2 of 5 used, 3 left, resets in 61 s: allowed",
        ),
        (
            LimitState("x", False, 5, 5, 0, 9.0, 61.0, 0.0),
            "5 of 5 used, 0 left, resets in 61 s: refused for 9 s",
        ),
        (
            LimitState("x", False, 0, 0, 0, None, 0.0, 0.0),
            "0 of 0 used, 0 left, unused: refused for good",
        ),
        (
            LimitState("x", False, 5, 5, 0, 9.0, 61.0, 0.0, mode="shadow"),
            "5 of 5 used, 0 left, resets in 61 s: refused for 9 s, but in shadow mode",
        ),
    ],
)
def test_a_limit_is_described_in_one_line(state: LimitState, words: str) -> None:
    """The line has used and remaining units, the reset, and the result of a next request."""
    assert _describe_state(state) == words


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["explain", "--ip", "nowhere"], "--ip 'nowhere' is not an address"),
        (["explain", "--header", "X-Api-Key"], "use NAME:VALUE"),
        (["explain", "--header", ": value"], "use NAME:VALUE"),
        (["import", "missing.yaml"], "missing.yaml"),
    ],
)
def test_invalid_arguments_are_errors_before_any_action(arguments: list[str], problem: str) -> None:
    """The error is raised without a call to Redis or the database."""
    with pytest.raises(CommandError, match=problem):
        call_command("ratelimit", "rules", *arguments)


def test_without_a_verb_all_verbs_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Each line has a verb and its description."""
    call_command("ratelimit")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == list(verbs)
    assert "unblock" in verbs


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["unblok", "--ip", "192.0.2.1"], "invalid choice: 'unblok'"),
        (["rules", "exprot"], "invalid choice: 'exprot'"),
        (["rules"], "required: verb"),
        (["rules", "mode", "api", "on"], "invalid choice: 'on'"),
    ],
)
def test_the_error_about_a_misspelt_verb_lists_all(arguments: list[str], problem: str) -> None:
    """So does that about a mode."""
    with pytest.raises(CommandError, match=re.escape(problem)):
        call_command("ratelimit", *arguments)
