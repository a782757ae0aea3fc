"""`python -m tests [ARGUMENTS OF PYTEST]`: run tests, in one session of pytest for each set of
annexes that they need.

If `RATELIMIT_TEST_SHAKY` names a file, up to three failed tests have one more try, by themselves.
Their names are added to that file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.annexes import ROOT, VARIABLE, parts, paths_in

MAX_SECOND_TRIES = 3
PASSED = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def run(arguments: list[str], annexes: str, paths: list[str]) -> int:
    """Run one session, and return its exit code."""
    environment = {**os.environ, VARIABLE: annexes}
    print(f"\n=== annexes: {annexes or 'none'}\n", flush=True)
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, *paths], cwd=ROOT, env=environment
    ).returncode


def failed_tests(arguments: list[str]) -> list[str]:
    """Return the tests that failed, from pytest's cache."""
    folder = next(
        (word.partition("=")[2] for word in arguments if word.startswith("cache_dir=")),
        ".pytest_cache",
    )
    file = ROOT / folder / "v" / "cache" / "lastfailed"
    return list(json.loads(file.read_text())) if file.exists() else []


def run_once_more(arguments: list[str]) -> bool:
    """Whether the failed tests pass by themselves."""
    failed = failed_tests(arguments)
    if not 0 < len(failed) <= MAX_SECOND_TRIES:
        return False
    print(f"\n=== once more, by themselves: {' '.join(failed)}\n", flush=True)
    with Path(os.environ["RATELIMIT_TEST_SHAKY"]).open("a") as shaky:
        shaky.writelines(f"{test}\n" for test in failed)
    return all(run(["-q"], annexes, paths) == 0 for annexes, paths in parts(failed).items())


def main(arguments: list[str]) -> int:
    """Run all sessions, and return 0 if every test has passed."""
    paths = paths_in(arguments)
    options = [word for word in arguments if word not in paths]
    codes = []
    for annexes, wanted in parts(paths or ["tests", "docs"]).items():
        codes.append(run(options, annexes, wanted))
        if codes[-1] not in PASSED and {"-x", "--exitfirst"} & {*options}:
            break
    code = next((code for code in codes if code not in PASSED), min(codes))
    if (
        code == pytest.ExitCode.TESTS_FAILED
        and "RATELIMIT_TEST_SHAKY" in os.environ
        and run_once_more(options)
    ):
        return 0
    return code


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(pytest.ExitCode.INTERRUPTED)
