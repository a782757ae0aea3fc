"""Sphinx configuration."""

import os
import sys

sys.path.insert(0, os.path.abspath(".."))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")

import django

django.setup()

from django_ratelimit_lua.version import __version__  # noqa: E402

project = "django_ratelimit_lua"
copyright = "2026, the django_ratelimit_lua authors"
version = release = __version__
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon"]
napoleon_numpy_docstring = False
napoleon_use_ivar = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
html_theme = "furo"
html_title = "django_ratelimit_lua"
exclude_patterns = ["_build", "__pycache__"]
nitpicky = False
default_role = "code"
