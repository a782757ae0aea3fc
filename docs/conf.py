"""Sphinx configuration."""

import os
import sys

sys.path.insert(0, os.path.abspath(".."))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")

import django

django.setup()

from docutils import nodes  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402
from sphinx.util.docutils import SphinxDirective  # noqa: E402

from django_ratelimit_lua.conf import SETTINGS  # noqa: E402
from django_ratelimit_lua.limits.algorithms import ALGORITHMS  # noqa: E402
from django_ratelimit_lua.limits.options import OPTIONS  # noqa: E402
from django_ratelimit_lua.version import __version__  # noqa: E402

project = "django_ratelimit_lua"
copyright = "2026, the django_ratelimit_lua authors"
version = release = __version__
extensions = ["sphinx.ext.autodoc"]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
html_theme = "furo"
html_title = "django_ratelimit_lua"
exclude_patterns = ["_build", "__pycache__"]
nitpicky = False
default_role = "code"


def settings_rows() -> list[tuple[str, ...]]:
    """The settings: name, default and meaning."""
    rows = [("Setting", "Default", "Meaning")]
    for name, row in SETTINGS.items():
        default = "not set" if row.default is None else "``" + repr(row.default).replace("'", '"') + "``"
        rows.append((f"``RATELIMIT_{name}``", row.shown or default, row.doc))
    return rows


def option_rows() -> list[tuple[str, ...]]:
    """The options of a limit: name, algorithms that take it, and meaning."""
    rows = [("Option", "Of", "Meaning")]
    for name, row in OPTIONS.items():
        takers = [f"``{algorithm.name}``" for algorithm in ALGORITHMS.values() if name in algorithm.options]
        everyone = row.is_general or len(takers) == len(ALGORITHMS)
        values = ", ".join(f'``"{value}"`` ({called})' for value, called in row.names.items())
        meaning = f"{row.label}. {row.help}" + (f" One of: {values}." if values else "")
        rows.append((f"``{name}``", "every limit" if everyone else ", ".join(takers), meaning))
    return rows


class TableOf(SphinxDirective):
    """`.. table-of:: settings` or `options`: a table of the package's own."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        lines = [".. list-table::", "   :header-rows: 1", "   :widths: 34 20 46", ""]
        for row in {"settings": settings_rows, "options": option_rows}[self.arguments[0]]():
            lines += ["   * - " + row[0], *("     - " + cell for cell in row[1:])]
        return self.parse_text_to_nodes("\n".join(lines))


def setup(app: Sphinx) -> None:
    app.add_directive("table-of", TableOf)
