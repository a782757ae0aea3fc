"""`python -m tests [--side-by-side] [ARGUMENTS OF PYTEST]`: run tests, in one session of pytest for
each set of annexes that they need.

With `--side-by-side`, the sessions of annexes run beside that of the core, because most tests wait
for something. Their output follows when it has ended.

If `RATELIMIT_TEST_SHAKY` names a file, up to three failed tests have one more try, by themselves.
Their names are added to that file.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import pytest

from tests.annexes import ROOT, VARIABLE, parts, paths_in

MAX_SECOND_TRIES = 3
SIDE_BY_SIDE = "--side-by-side"
APART = "annexes"
PASSED = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def run(arguments: list[str], annexes: str, paths: list[str], output: IO[str] | None = None) -> int:
    """Run one session, and return its exit code. `output`: a file for what it prints."""
    environment = {**os.environ, VARIABLE: annexes}
    print(f"\n=== annexes: {annexes or 'none'}\n", file=output, flush=True)
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, *paths],
        cwd=ROOT,
        env=environment,
        stdout=output,
        stderr=output,
    ).returncode


def run_side_by_side(arguments: list[str], sessions: dict[str, list[str]]) -> list[int]:
    """Run the first session beside the others, and return all exit codes."""
    (core, paths), *others = sessions.items()
    # Two sessions at the same time must not write their failures into the same cache.
    apart = [*arguments, "-o", f"cache_dir={cache_of(arguments) / APART}"]
    with TemporaryFile("w+") as output, ThreadPoolExecutor(1) as pool:
        later = [pool.submit(run, apart, annexes, wanted, output) for annexes, wanted in others]
        codes = [run(arguments, core, paths), *(each.result() for each in later)]
        output.seek(0)
        shutil.copyfileobj(output, sys.stdout)
    return codes


def cache_of(arguments: list[str]) -> Path:
    """Return the folder of pytest's cache."""
    given = (word.partition("=")[2] for word in arguments if word.startswith("cache_dir="))
    return ROOT / next(given, ".pytest_cache")


def failed_tests(arguments: list[str]) -> list[str]:
    """Return the tests that failed, from pytest's cache."""
    folder = cache_of(arguments)
    files = [each / "v" / "cache" / "lastfailed" for each in (folder, folder / APART)]
    return [test for file in files if file.exists() for test in json.loads(file.read_text())]


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
    options = [word for word in arguments if word not in (*paths, SIDE_BY_SIDE)]
    sessions = parts(paths or ["tests", "docs"])
    codes = []
    if SIDE_BY_SIDE in arguments and len(sessions) > 1:
        codes = run_side_by_side(options, sessions)
        sessions = {}
    for annexes, wanted in sessions.items():
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
