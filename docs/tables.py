"""Writes the tables of settings and options into their pages: `python -m docs.tables`. A test
compares.
"""

from __future__ import annotations

from pathlib import Path

import django_ratelimit_lua.contrib.gateway.conf
import django_ratelimit_lua.contrib.statistics.conf  # noqa: F401 - they add their settings
from django_ratelimit_lua.conf import SETTINGS
from django_ratelimit_lua.extension import SETTINGS_OF_ANNEXES
from django_ratelimit_lua.limits.algorithms import ALGORITHMS
from django_ratelimit_lua.limits.options import OPTIONS

BEGIN, END = (
    ".. Begin of what docs/tables.py writes.\n\n",
    "\n.. End of what docs/tables.py writes.\n",
)


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
    """The options of a limit: name, algorithms that take it, and meaning."""
    rows = [("Option", "Of", "Meaning")]
    for name, row in OPTIONS.items():
        takers = [
            f"``{algorithm.name}``"
            for algorithm in ALGORITHMS.values()
            if name in algorithm.options
        ]
        is_for_all = row.is_general or len(takers) == len(ALGORITHMS)
        values = ", ".join(f'``"{value}"`` ({called})' for value, called in row.names.items())
        meaning = f"{row.label}. {row.help}" + (f" One of: {values}." if values else "")
        rows.append((f"``{name}``", "every limit" if is_for_all else ", ".join(takers), meaning))
    return rows


PAGES = {"settings.rst": settings_rows, "algorithms.rst": option_rows}


def with_table(name: str) -> str:
    """The text of a page, with its table as it should be."""
    before, _, rest = (Path(__file__).parent / name).read_text().partition(BEGIN)
    lines = [".. list-table::", "   :header-rows: 1", "   :widths: 34 20 46", ""]
    for row in PAGES[name]():
        lines += ["   * - " + row[0], *("     - " + cell for cell in row[1:])]
    return before + BEGIN + "\n".join(lines) + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    for page in PAGES:
        (Path(__file__).parent / page).write_text(with_table(page))
