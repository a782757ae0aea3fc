"""Writes the tables of settings and options, which their pages include, and the comparison in the
README: `python -m docs.tables`. A test compares.
"""

from __future__ import annotations

import re
from pathlib import Path

import django_ratelimit_lua.contrib.gateway.conf
import django_ratelimit_lua.contrib.statistics.conf  # noqa: F401 - they add their settings
from django_ratelimit_lua.conf import SETTINGS
from django_ratelimit_lua.extension import SETTINGS_OF_ANNEXES
from django_ratelimit_lua.limits.algorithms import ALGORITHMS
from django_ratelimit_lua.limits.options import OPTIONS
from django_ratelimit_lua.rules.options import OPTIONS_OF_RULES

DOCS = Path(__file__).parent
FOLDER = DOCS / "reference"
README = DOCS.parent / "README.md"
COMPARISON = re.compile(r"(?<=<!-- comparison -->\n)(.*?)(?=<!-- end of comparison -->)", re.DOTALL)
COMPARED = (
    "@ratelimit",
    "django-ratelimit",
    "DRF's throttles",
    "limits, moving window",
    "django-smart-ratelimit, sliding_window",
)
"""The rows of the comparison that the README has room for. It leaves out the last column."""


def settings_rows() -> list[tuple[str, ...]]:
    """The settings: name, default and meaning."""
    rows = [("Setting", "Default", "Meaning")]
    last = list(SETTINGS_OF_ANNEXES)
    for name, row in sorted(
        SETTINGS.items(), key=lambda item: last.index(item[0]) + 1 if item[0] in last else 0
    ):
        default = (
            "not set" if row.default is None else "``" + repr(row.default).replace("'", '"') + "``"
        )
        rows.append((f"``RATELIMIT_{name}``", row.shown or default, row.doc))
    return rows


def option_rows() -> list[tuple[str, ...]]:
    """The options of limits and rules: name, algorithms that accept it, and meaning."""
    rows = [("Option", "Algorithms", "Meaning")]
    for name, row in OPTIONS.items():
        takers = [
            f"``{algorithm.name}``"
            for algorithm in ALGORITHMS.values()
            if name in algorithm.options
        ]
        is_for_all = len(takers) in (0, len(ALGORITHMS))
        values = ", ".join(f'``"{value}"`` ({called})' for value, called in row.names.items())
        meaning = row.help + (f" One of: {values}." if values else "")
        rows.append((f"``{name}``", "all" if is_for_all else ", ".join(takers), meaning))
    rows += [(f"``{name}``", "rules", row.help) for name, row in OPTIONS_OF_RULES.items()]
    return rows


TABLES = {"settings.inc": settings_rows, "options.inc": option_rows}


def table(name: str) -> str:
    """The text of a table."""
    lines = [".. list-table::", "   :header-rows: 1", "   :widths: 34 20 46", ""]
    for row in TABLES[name]():
        lines += ["   * - " + row[0], *("     - " + cell for cell in row[1:])]
    return "\n".join(lines) + "\n"


def comparison() -> str:
    """Return five rows of what `make bench-peers` found, as a table of Markdown."""
    rows = (DOCS / "comparison.inc").read_text().partition("\n\nValkey")[0].split("\n   * -")[1:]
    cells = [[cell.strip() for cell in row.split("\n     -")][:-1] for row in rows]
    heading, *others = cells
    known = {row[0]: row for row in others}
    table = [heading, ["---"] * len(heading), *(known[name] for name in COMPARED)]
    return "".join(f"| {' | '.join(row)} |\n" for row in table)


def readme() -> str:
    """Return the text of the README with the comparison as it is today."""
    return COMPARISON.sub(lambda _: comparison(), README.read_text())


if __name__ == "__main__":
    for name in TABLES:
        (FOLDER / name).write_text(table(name))
    README.write_text(readme())
