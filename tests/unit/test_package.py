"""The source archive, the wheel, and the package page that PyPI makes from its metadata."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import zipfile
from email import message_from_bytes
from email.message import Message
from typing import Any

import pytest

from tests.tools.floors import PACKAGE

ROOT = PACKAGE.parent
REPOSITORY = "https://example.org/owner/name"
LINK = re.compile(r"\]\(([^)]*)\)")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Build the wheel from the source archive."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    """Read the metadata of the wheel."""
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return message_from_bytes(wheel.read(name))


@pytest.fixture
def page() -> dict[str, Any]:
    """Load the functions of setup.py."""
    return runpy.run_path(str(ROOT / "setup.py"))


def test_the_wheel_contains_every_file_of_the_package(wheel: zipfile.ZipFile) -> None:
    """It has no tests, example project or documentation."""
    names = set(wheel.namelist())
    files = {
        path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in (".po", ".pyc")
    }
    assert {path.relative_to(ROOT).as_posix() for path in files} <= names
    assert not [name for name in names if name.startswith(("tests", "example_project", "docs"))]


def test_the_package_page_has_no_dead_links(metadata: Message) -> None:
    """The package page has no relative link, because PyPI does not have the files."""
    text = metadata.get_payload()
    assert isinstance(text, str)
    assert "@ratelimit" in text
    assert [target for target in LINK.findall(text) if not target.startswith("https://")] == []


def test_the_metadata_has_the_licence_keywords_and_classifiers(metadata: Message) -> None:
    """The licence is an expression with its file (PEP 639), and searches find the package."""
    assert (metadata["License-Expression"], metadata["License-File"]) == ("MIT", "LICENSE")
    assert metadata["License"] is None
    keywords = set(metadata["Keywords"].split(","))
    assert {"ratelimit", "rate-limiting", "throttle", "drf", "brute-force"} <= keywords
    classifiers = metadata.get_all("Classifier", [])
    assert {"Framework :: AsyncIO", "Topic :: Internet :: WWW/HTTP", "Topic :: Security"} <= {
        *classifiers
    }
    assert not [name for name in classifiers if name.startswith("License ::")]


def test_links_lead_to_the_configured_repository(page: dict[str, Any]) -> None:
    """Without a repository, a link becomes its text. Pictures are raw files."""
    readme = (ROOT / "README.md").read_text()
    relative = [target for target in LINK.findall(readme) if "://" not in target]
    text = page["long_description"](readme, REPOSITORY)
    for target in relative:
        kind = "raw" if target.endswith((".png", ".webp", ".gif")) else "blob"
        assert f"]({REPOSITORY}/{kind}/main/{target})" in text
    plain = page["long_description"](readme, "")
    assert not [target for target in relative if f"({target})" in plain]
    assert page["long_description"]("![A plot](a.png) [b](c.rst) [d](https://e.f)", "") == (
        "A plot b [d](https://e.f)"
    )


def test_project_urls_come_from_one_place(page: dict[str, Any]) -> None:
    """All project URLs come from two addresses in pyproject.toml, and an empty one is reported."""
    assert set(page["addresses"]()) == {"repository", "documentation"}
    urls = page["project_urls"](REPOSITORY, "https://docs.example.org")
    assert urls == {
        "Documentation": "https://docs.example.org",
        "Source": REPOSITORY,
        "Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md",
        "Issues": f"{REPOSITORY}/issues",
    }
    assert page["project_urls"]("", "") == {}
    empty = [name for name, url in page["addresses"]().items() if not url]
    assert re.findall(r"EMPTY: (\w+)", page["report"]()) == empty
