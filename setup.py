"""The package page: the README with absolute links, and project URLs. The rest is in setup.cfg."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent
RELATIVE_LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?!\w+:)(?P<target>[^)]+)\)")


def addresses() -> dict[str, str]:
    """Return the addresses of the project, from the one place where its owner fills them in."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {name: url.rstrip("/") for name, url in table["tool"]["package-page"].items()}


def long_description(readme: str, repository: str) -> str:
    """Return the README for another site than its repository.

    Args:
        readme: The README, with links relative to the repository.
        repository: The address of the repository. Without one, links become plain text.
    """

    def rewrite(link: re.Match[str]) -> str:
        if not repository:
            return link["text"]
        kind = "raw" if link["picture"] else "blob"
        return f"{link['picture']}[{link['text']}]({repository}/{kind}/main/{link['target']})"

    return RELATIVE_LINK.sub(rewrite, readme)


def project_urls(repository: str, documentation: str) -> dict[str, str]:
    """Return the links at the side of the package page."""
    urls = {}
    if documentation:
        urls["Documentation"] = documentation
    if repository:
        urls["Source"] = repository
        urls["Changelog"] = f"{repository}/blob/main/CHANGELOG.md"
        urls["Issues"] = f"{repository}/issues"
    return urls


def report() -> str:
    """Return a line for each address that is empty."""
    return "\n".join(
        f"EMPTY: {name} in pyproject.toml, [tool.package-page]. The package page has no link to it."
        for name, url in addresses().items()
        if not url
    )


if __name__ == "__main__":
    from setuptools import setup

    urls = addresses()
    setup(
        long_description=long_description(
            (ROOT / "README.md").read_text(encoding="utf-8"), urls["repository"]
        ),
        project_urls=project_urls(**urls),
    )
