"""Writes docs/llms.txt, the list of all pages for language models: `python -m docs.llms`.

The pages are those of the menu, in the same order, as reStructuredText.
"""

from __future__ import annotations

import re
from pathlib import Path

from setup import addresses

DOCS = Path(__file__).parent
FILE = DOCS / "llms.txt"
MENU = re.compile(
    r"^\.\. toctree::\n   :caption: (.+)\n(?:   :.+\n)*\n((?:   \S+\n)+)", re.MULTILINE
)
HEADING = re.compile(r"^(\S.*)\n([=-])\2+$", re.MULTILINE)
ROLE = re.compile(r":\w+:`([^`<]+?)(?: <[^>]+>)?`")
SENTENCE_END = re.compile(r"[.:](?=\s|$)")
MARKUP = ("..", " ", "-", "*", "#", "|", "+")
"""Beginnings of blocks that are no paragraphs."""


def plain(text: str) -> str:
    """Return a line of text without markup for links and code."""
    return " ".join(ROLE.sub(r"\1", text).replace("``", "`").split())


def summary(page: str) -> str:
    """Return the first sentence of a page, or else its headings."""
    _, *blocks = page.split("\n\n")
    paragraph = next((block for block in blocks if not block.startswith(MARKUP)), "")
    headings = [heading[1] for heading in HEADING.finditer(page)][1:]
    if paragraph and not HEADING.match(paragraph):
        return SENTENCE_END.split(plain(paragraph))[0] + "."
    return plain("; ".join(headings))


def llms_text() -> str:
    """Return the list of all pages, by sections of the menu."""
    index = (DOCS / "index.rst").read_text(encoding="utf-8")
    documentation = addresses()["documentation"]
    base = f"{documentation}/" if documentation else ""
    lines = ["# django_ratelimit_lua", "", f"> {summary(index)}"]
    for caption, entries in MENU.findall(index):
        lines += ["", f"## {caption}", ""]
        for name in entries.split():
            page = (DOCS / f"{name}.rst").read_text(encoding="utf-8")
            title = page.partition("\n")[0]
            line = f"- [{title}]({base}_sources/{name}.rst.txt): {summary(page)}"
            lines.append(line.removesuffix(": "))
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    FILE.write_text(llms_text(), encoding="utf-8")
