"""`python -m tests.tools.texts`: print the texts of the package for readers.

`python -m tests.tools.texts untranslated` prints those that a catalogue lacks, and exits with 1.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "django_ratelimit_lua"
TRANSLATED = {"_", "gettext", "gettext_lazy", "gettext_noop", "ngettext", "ngettext_lazy"}
LOGGED = {"debug", "info", "warning", "error", "exception", "critical", "log"}
PRINTED = {"say", "write", "message"}
MIN_WORDS = 2


def text_of(node: ast.AST | None) -> str:
    """Return the text of a string or an f-string, with `{}` for what is inserted."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "{}" for part in node.values)
    if isinstance(node, ast.BinOp):
        return text_of(node.left)
    return ""


def name_of(function: ast.expr) -> str:
    """Return the last part of the name of a called function."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def calls(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the kind and the text of each call that has a text for people."""
    tree = ast.parse(path.read_text())
    raised = {id(node.exc) for node in ast.walk(tree) if isinstance(node, ast.Raise)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = name_of(node.func)
        if name in TRANSLATED:
            kind = "translated"
        elif id(node) in raised or name.endswith("Error") or name == "ImproperlyConfigured":
            kind = "error"
        elif name in LOGGED:
            kind = "log"
        elif name in PRINTED or name == "Problem":
            kind = "command"
        else:
            continue
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
            text = text_of(argument)
            if len(text.split()) >= MIN_WORDS:
                yield node.lineno, kind, text


def messages() -> Iterator[str]:
    """Yield the texts of the package and of its templates, each with its place."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if "migrations" not in path.parts:
            for line, kind, text in calls(path):
                yield f"{path.relative_to(PACKAGE)}:{line}: [{kind}] {text}"
    pattern = r'{% translate "([^"]+)"|{% blocktranslate[^%]*%}(.*?){%'
    for path in sorted(PACKAGE.rglob("*.html")):
        for found in re.finditer(pattern, path.read_text(), re.DOTALL):
            yield f"{path.name}: {' '.join((found[1] or found[2]).split())}"


def untranslated() -> list[str]:
    """Return the texts without a translation, each with its language."""
    marked = {
        text
        for path in PACKAGE.rglob("*.py")
        if "migrations" not in path.parts
        for _line, kind, text in calls(path)
        if kind == "translated" and "\n" not in text
    }
    for path in PACKAGE.rglob("*.html"):
        marked |= set(re.findall(r'{% translate "([^"]+)"', path.read_text()))
    missing = []
    for catalogue in sorted(PACKAGE.rglob("*.po")):
        # An entry of several lines is one text.
        content = re.sub(r'"\n"', "", catalogue.read_text())
        found = re.findall(r'^msgid(?:_plural)? "(.*)"$', content, re.MULTILINE)
        known = {text.replace('\\"', '"').replace("\\n", "\n") for text in found}
        empty = re.findall(r'^msgid "(.+)"\nmsgstr ""$', content, re.MULTILINE)
        language = catalogue.parts[-3]
        missing += [f"{language}: {text}" for text in [*sorted(marked - known), *empty]]
    return missing


def main(arguments: list[str]) -> int:
    """Print texts, and return 1 if a translation is missing."""
    if arguments == ["untranslated"]:
        missing = untranslated()
        print("\n".join(missing))
        return int(bool(missing))
    print("\n".join(messages()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
