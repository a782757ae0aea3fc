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
        (["unblok", "--ip", "192.0.2.1"], "there is no verb 'unblok'; did you mean 'unblock'?"),
        (["rules", "exprot"], "there is no verb 'exprot'; did you mean 'export'?"),
        (["xyz"], "invalid choice: 'xyz'"),
        (["rules"], "required: verb"),
        (["rules", "mode", "api", "on"], "invalid choice: 'on'"),
    ],
)
def test_a_misspelt_verb_gets_a_suggestion(arguments: list[str], problem: str) -> None:
    """The error suggests the most similar verb, or lists the valid verbs or modes."""
    with pytest.raises(CommandError, match=re.escape(problem)):
        call_command("ratelimit", *arguments)


@pytest.mark.parametrize(
    ("verb", "option"),
    [
        (verb, option)
        for verb in ("block", "unblock", "forget", "reset", "rules explain")
        for option in ("--ip", "--user")
    ]
    + [
        ("block", "--for"),
        ("block", "--reason"),
        ("rules explain", "--path"),
        ("reset", "--method"),
        ("bans lift", "--limit"),
    ],
)
def test_an_option_with_one_value_is_not_repeated(verb: str, option: str) -> None:
    """The error names the option, because the last value alone would be used otherwise."""
    with pytest.raises(CommandError, match=f"argument {option}: is given twice; give it once"):
        call_command("ratelimit", *verb.split(), option, "1h", option, "1h")
