"""Download both suites, run them on this package, and compare the failures with the list."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from tests.foreign.differences import DJANGO_RATELIMIT, DRF, Differences

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Suite:
    """A package's tests: the file in its source, its new place, and the modules it imports."""

    requirement: str
    file: str
    place: str
    modules: dict[str, str]
    imports: tuple[str, str]
    tests: int
    differences: Differences


SUITES = (
    Suite(
        "django-ratelimit==4.1.0",
        "django_ratelimit/tests.py",
        "django_ratelimit/tests.py",
        {
            "__init__": "",
            "core": "from tests.foreign.names import _get_ip, _split_rate, get_usage, "
            "is_ratelimited\n",
            "decorators": "from django_ratelimit_lua.decorators import ratelimit\n",
            "exceptions": "from django_ratelimit_lua.exceptions import Ratelimited\n",
        },
        ("", ""),
        52,
        DJANGO_RATELIMIT,
    ),
    Suite(
        "djangorestframework==3.18.3",
        "tests/test_throttling.py",
        "drf/test_throttling.py",
        {},
        ("from rest_framework.throttling import", "from django_ratelimit_lua.throttling import"),
        29,
        DRF,
    ),
)


def source(requirement: str, folder: Path) -> tarfile.TarFile:
    """Download a source package."""
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
    ]
    subprocess.run([*pip, "--no-binary", ":all:", "--dest", str(folder), requirement], check=True)
    return tarfile.open(next(folder.glob("*.tar.gz")))


def prepare(suite: Suite, folder: Path) -> Path:
    """Put the suite's file into a folder, with its import lines changed."""
    download = folder / "download"
    with source(suite.requirement, download) as archive:
        member = next(
            member for member in archive.getmembers() if member.name.partition("/")[2] == suite.file
        )
        content = archive.extractfile(member)
        assert content is not None
        text = content.read().decode()
    if suite.imports[0] not in text:
        raise SystemExit(f"{suite.requirement}: {suite.file} has no line {suite.imports[0]!r}")
    file = folder / suite.place
    file.parent.mkdir(parents=True)
    file.write_text(text.replace(*suite.imports) if suite.imports[0] else text)
    for name, lines in suite.modules.items():
        (file.parent / f"{name}.py").write_text(lines)
    return file


def outcomes(file: Path, folder: Path) -> dict[str, bool]:
    """Run a file, and return each test as `Class::name` and whether it passed."""
    report = folder / "report.xml"
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "tests.foreign.settings",
        "PYTHONPATH": os.pathsep.join([str(folder), str(REPOSITORY)]),
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        "--rootdir",
        str(folder),
    ]
    done = subprocess.run(
        [*command, f"--junitxml={report}", str(file)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    if not report.exists():
        raise SystemExit(done.stdout + done.stderr)
    tests = ElementTree.parse(report).iter("testcase")
    return {
        f"{test.get('classname', '').rpartition('.')[2]}::{test.get('name')}": not any(
            test.find(kind) is not None for kind in ("failure", "error", "skipped")
        )
        for test in tests
    }


def disagreements(suite: Suite, passed: dict[str, bool]) -> list[str]:
    """Return a line for each test that contradicts the list of differences."""
    failed = {name for name, has_passed in passed.items() if not has_passed}
    lines = [f"fails, in no guide: {name}" for name in sorted(failed - suite.differences.keys())]
    lines += [
        f"passes, but is in a guide: {name}" for name in sorted(suite.differences.keys() - failed)
    ]
    if len(passed) != suite.tests:
        lines.append(f"{len(passed)} tests ran, not {suite.tests}")
    return lines


def main() -> None:
    """Exit with 1 if a suite and the list disagree."""
    wrong = False
    for suite in SUITES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            passed = outcomes(prepare(suite, folder), folder)
        lines = disagreements(suite, passed)
        wrong = wrong or bool(lines)
        differ = f"{len(suite.differences)} differ as documented"
        print(
            f"{suite.requirement}: {sum(passed.values())} of {len(passed)} pass on our names, "
            f"{differ}"
        )
        print("".join(f"  {line}\n" for line in lines), end="")
    sys.exit(wrong)


if __name__ == "__main__":
    main()
