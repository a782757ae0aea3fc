"""`python -m tests.tools.texts`: print the texts of the package, to be read from top to bottom.

python -m tests.tools.texts messages       messages of exceptions, checks, logs and commands
python -m tests.tools.texts admin          texts of the admin and of templates
python -m tests.tools.texts sample 7       random docstrings, messages and names of tests
python -m tests.tools.texts untranslated   texts that a catalogue lacks; exits with 1
"""

from __future__ import annotations

import ast
import random
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
    """Yield the messages of the package, each with its place."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if "migrations" not in path.parts and "admin" not in path.parts:
            for line, kind, text in calls(path):
                yield f"{path.relative_to(PACKAGE)}:{line}: [{kind}] {text}"


def admin_texts() -> Iterator[str]:
    """Yield the texts of the admin's code, and of all templates."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if "admin" in path.parts or path.name in ("admin.py", "extension.py"):
            for line, _kind, text in calls(path):
                yield f"{path.relative_to(PACKAGE)}:{line}: {text}"
    pattern = r'{% translate "([^"]+)"|{% blocktranslate[^%]*%}(.*?){%'
    for path in sorted(PACKAGE.rglob("*.html")):
        for found in re.finditer(pattern, path.read_text(), re.DOTALL):
            yield f"{path.name}: {' '.join((found[1] or found[2]).split())}"


def docstrings() -> Iterator[str]:
    """Yield the docstrings of the package, each with its place."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            text = ast.get_docstring(node) if isinstance(node, kinds) else None
            if text:
                place = path.relative_to(PACKAGE)
                yield f"{place}: {getattr(node, 'name', 'module')}: {text.partition('>>>')[0]}"


def test_names() -> Iterator[str]:
    """Yield the names of tests, as words."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name in re.findall(r"def test_(\w+)", path.read_text()):
            yield f"{path.name}: {name.replace('_', ' ')}"


def sample(seed: int) -> Iterator[str]:
    """Yield texts drawn by a seed."""
    chance = random.Random(seed)
    sources = (("docstring", docstrings, 60), ("message", messages, 30), ("test", test_names, 30))
    for kind, source, number in sources:
        for text in chance.sample(list(source()), number):
            yield f"[{kind}] {text}\n"


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


def main(arguments: list[str]) -> None:
    match arguments:
        case ["untranslated"]:
            missing = untranslated()
            print("\n".join(missing))
            sys.exit(bool(missing))
        case ["messages"]:
            texts = messages()
        case ["admin"]:
            texts = admin_texts()
        case ["sample", seed]:
            texts = sample(int(seed))
        case _:
            sys.exit(__doc__)
    for text in texts:
        print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
