"""Sphinx configuration."""

import os
import sys

sys.path.insert(0, os.path.abspath(".."))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")

import django
from docutils import nodes
from docutils.parsers.rst import Directive
from pygments.lexers import LuaLexer

django.setup()

from django_ratelimit_lua import __version__  # noqa: E402

project = "django_ratelimit_lua"
copyright = "2026, the django_ratelimit_lua authors"
version = release = __version__
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon"]
napoleon_numpy_docstring = False
napoleon_use_ivar = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
html_theme = "furo"
pygments_dark_style = "monokai"  # Furo's own underlines names of modules, as if they were links.
html_title = "django_ratelimit_lua"
html_extra_path = ["llms.txt"]
html_static_path = ["_static"]
html_css_files = ["phone.css"]
exclude_patterns = ["_build", "__pycache__"]
nitpicky = True
# Sphinx knows only the names of this documentation: it does not load those of Python and Django.
nitpick_ignore = [
    ("py:class", "collections.abc.Callable"),
    ("py:class", "django.utils.functional.Promise"),
    ("py:exc", "ImproperlyConfigured"),
    # The annotation of a throttle's `options`. The names in it are those of the page on options.
    ("py:class", "django_ratelimit_lua.limits.options.Options"),
]
default_role = "code"


class Screenshot(Directive):
    """A picture of docs/screenshots, in light or dark like the page. The content is its caption."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        name, caption = self.arguments[0], " ".join(self.content)
        files = {"only-light": f"{name}.png", "only-dark": f"{name}-dark.png"}
        images = [
            nodes.image(uri=f"/screenshots/{file}", alt=caption, classes=[shown])
            for shown, file in files.items()
        ]
        return [nodes.figure("", *images, nodes.caption("", caption))]


class Lua51Lexer(LuaLexer):
    """The Lua of Redis. It has no attributes, for which Pygments takes "a < b and c > d"."""

    tokens = LuaLexer.tokens | {
        "base": [rule for rule in LuaLexer.tokens["base"] if "<.+?>" not in str(rule[0])]
    }


def setup(app: object) -> None:
    app.add_directive("screenshot", Screenshot)
    app.add_lexer("lua", Lua51Lexer)
