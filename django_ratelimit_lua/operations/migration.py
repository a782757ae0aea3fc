"""Find what a project must change to move here from django-ratelimit or DRF's throttles.

The source code is parsed, and never imported or changed.
"""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ..limits.rate import LimitError, Rate

MAX_BYTES = 1_000_000
"""Larger files are data, not code."""
_MENTIONED = re.compile(rb"ratelimit|throttl|CACHES", re.IGNORECASE)
SKIPPED_FOLDERS = {"node_modules", "site-packages", "__pycache__", "build", "dist"}

MODULES = {
    "": "django_ratelimit_lua",
    "core": "django_ratelimit_lua.core",
    "decorators": "django_ratelimit_lua.decorators",
    "exceptions": "django_ratelimit_lua.exceptions",
    "utils": "django_ratelimit_lua.core",
}
"""The modules of django-ratelimit, and ours. Before version 4, its package was `ratelimit`."""
OTHER_NAMES = {"get_header": "use request.headers"}
NAMES = {"ALL", "UNSAFE", "Ratelimited", "get_usage", "is_ratelimited", "ratelimit"}
THROTTLES = {
    "AnonRateThrottle",
    "BaseThrottle",
    "ScopedRateThrottle",
    "SimpleRateThrottle",
    "UserRateThrottle",
}
DRF = "rest_framework.throttling"
OURS = "django_ratelimit_lua.throttling"
DJANGO_REDIS = "django_redis.cache.RedisCache"
OF_THE_CACHE = {"cache", "history", "now", "key"}
"""The attributes of DRF's throttles that these do not have."""
SETTINGS = {
    "RATELIMIT_FAIL_OPEN": "it means the same. Without it, each process enforces its share of a "
    "limit while Redis is unavailable (RATELIMIT_ON_STORE_ERROR)",
    "RATELIMIT_HASH_ALGORITHM": "remove it; identities are always stored as keyed digests",
    "RATELIMIT_USE_CACHE": "the alias must be a cache of django-redis",
    "RATELIMIT_VIEW": "it means the same, and needs no middleware; answer with status 429",
}
ARGUMENTS = ("group", "key", "rate", "method", "block")
"""The arguments of the decorator, in order."""


class Finding(NamedTuple):
    """Something to change, or to decide.

    - `path`, `line`: where it is;
    - `text`: the text that stands there;
    - `remedy`: what to do.
    """

    path: Path
    line: int
    text: str
    remedy: str


def find_changes(roots: Iterable[Path]) -> Iterator[Finding]:
    """Read all Python files below these folders, and return the findings."""
    for path in _files(roots):
        try:
            if path.stat().st_size > MAX_BYTES:
                yield Finding(path, 1, path.name, f"not read: it has more than {MAX_BYTES:,} bytes")
                continue
            source = path.read_bytes()
            if not _MENTIONED.search(source):
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # About the project's code, such as odd escapes.
                tree = ast.parse(source)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            yield Finding(
                path, getattr(error, "lineno", None) or 1, path.name, f"not read: {error}"
            )
            continue
        reader = _Reader(path)
        reader.read(tree)
        yield from sorted(set(reader.findings), key=lambda finding: finding.line)


def _files(roots: Iterable[Path]) -> Iterator[Path]:
    for root in roots:
        if root.is_file():
            yield root
            continue
        for name, folders, names in os.walk(root):
            folder = Path(name)
            folders[:] = sorted(each for each in folders if _is_searched(folder / each))
            yield from (folder / each for each in sorted(names) if each.endswith(".py"))


def _is_searched(folder: Path) -> bool:
    if folder.name.startswith(".") or folder.name in SKIPPED_FOLDERS:
        return False
    return not (folder / "pyvenv.cfg").exists()  # A virtual environment.


class _Reader(ast.NodeVisitor):
    """Collects the findings of one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.findings: list[Finding] = []
        self._imported: dict[str, str] = {}
        self._package = ""

    def read(self, tree: ast.Module) -> None:
        """Read the imports first, because a name may be used above its import."""
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                self._read_import_from(node)
            elif isinstance(node, ast.Import):
                self._read_import(node)
        self.visit(tree)

    def _add(self, node: ast.stmt | ast.expr, text: str, remedy: str) -> None:
        self.findings.append(Finding(self.path, node.lineno, text, remedy))

    # Imports

    def _read_import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._imported[alias.asname or alias.name] = alias.name
            if (ours := _module(alias.name)) is not None:
                self._package = alias.name.partition(".")[0]
                self._add(node, f"import {alias.name}", f"import {ours}")

    def _read_import_from(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level:
            return
        for alias in node.names:
            self._imported[alias.asname or alias.name] = f"{module}.{alias.name}"
        names = {alias.name for alias in node.names}
        text = f"from {module} import {', '.join(alias.name for alias in node.names)}"
        if module == DRF:
            self._read_throttles(node, text, names)
        elif module == "rest_framework" and "throttling" in names:
            self._add(
                node,
                "from rest_framework import throttling",
                "from django_ratelimit_lua import throttling",
            )
        elif _module(module) is not None and (module != "ratelimit" or names <= NAMES):
            self._read_names(node, text, module, names)

    def _read_throttles(self, node: ast.ImportFrom, text: str, names: set[str]) -> None:
        known = sorted(names & THROTTLES)
        if known:
            self._add(node, text, f"from {OURS} import {', '.join(known)}")

    def _read_names(self, node: ast.ImportFrom, text: str, module: str, names: set[str]) -> None:
        package, _dot, inner = module.partition(".")
        self._package = package
        if inner == "middleware":
            self._add(node, text, _MIDDLEWARE)
            return
        if inner == "mixins":
            self._add(node, text, "use method_decorator(ratelimit(...), name='dispatch') instead")
            return
        known = sorted(names & NAMES)
        if known:
            self._add(node, text, f"from {_module(module)} import {', '.join(known)}")
        for name in sorted(names - NAMES):
            self._add(node, f"{module}.{name}", OTHER_NAMES.get(name, "it has no equivalent"))
        if "Ratelimited" in names:
            self._add(
                node,
                "Ratelimited",
                "a refused view answers 429 and does not raise it. If your code handles it, set "
                f"RATELIMIT_EXCEPTION_CLASS = '{MODULES['exceptions']}.Ratelimited'",
            )

    def _origin(self, node: ast.expr) -> str:
        """Return the dotted name of an expression, from where it is imported."""
        if isinstance(node, ast.Name):
            return self._imported.get(node.id, "")
        if isinstance(node, ast.Attribute):
            written = ast.unparse(node.value)
            origin = self._imported.get(written) or self._origin(node.value)
            return origin and f"{origin}.{node.attr}"
        return ""

    # Uses

    def visit_Call(self, node: ast.Call) -> None:
        """Read the uses of the decorator and of the functions."""
        module, _dot, name = self._origin(node.func).rpartition(".")
        if _module(module) is not None:
            if name == "ratelimit":
                self._read_decorator(node)
            elif name in ("is_ratelimited", "get_usage"):
                self._read_function(node, name)
        self.generic_visit(node)

    def _read_decorator(self, node: ast.Call) -> None:
        given = dict(zip(ARGUMENTS, node.args, strict=False))
        given |= {word.arg: word.value for word in node.keywords if word.arg}
        self._read_limit(node, given)
        is_open = any(word.arg is None for word in node.keywords)
        if "key" not in given and not is_open:
            self._add(node, "ratelimit(...)", "add a key; a missing key is an error at import")
        if self._package == "ratelimit" and "block" not in given and not is_open:
            self._add(
                node,
                "ratelimit(...)",
                "add block=False, which was the default of this version; the default is True here",
            )

    def _read_function(self, node: ast.Call, name: str) -> None:
        given: dict[str, ast.expr] = {word.arg: word.value for word in node.keywords if word.arg}
        self._read_limit(node, given)
        increment = given.get("increment")
        if name == "is_ratelimited" and not (
            isinstance(increment, ast.Constant) and increment.value is True
        ):
            self._add(
                node,
                "is_ratelimited(...)",
                "without increment, it is true as soon as the limit is used up, not one request "
                "later",
            )

    def _read_limit(self, node: ast.Call, given: dict[str, ast.expr]) -> None:
        rate, key, method = (given.get(name) for name in ("rate", "key", "method"))
        if isinstance(rate, ast.Constant) and isinstance(rate.value, str):
            self._read_rate(rate, rate.value)
        if isinstance(method, ast.Constant) and method.value == "GET":
            self._add(node, "method='GET'", "it includes HEAD")
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            self._read_key(key, key.value)
        elif isinstance(key, (ast.Lambda, ast.Name, ast.Attribute)):
            self._add(
                key,
                f"key={ast.unparse(key)}",
                "it is called with (group, request), as before; the result may be text, bytes, a "
                "number, a UUID or None",
            )

    def _read_rate(self, node: ast.expr, rate: str) -> None:
        if re.fullmatch(r"[A-Za-z_][\w.]*", rate):
            return  # The path of a callable.
        try:
            Rate.parse(rate)
        except LimitError as error:
            self._add(node, repr(rate), str(error))

    def _read_key(self, node: ast.expr, key: str) -> None:
        kind, _colon, _name = key.partition(":")
        if kind == "header":
            self._add(
                node,
                repr(key),
                "values that differ only in case or white space count as one. For exact values, "
                f"write 'exact:{key}'",
            )
        elif kind == "post":
            self._add(node, repr(key), "requests of more than 64 KiB count as their address")
        elif key == "user":
            self._add(
                node, repr(key), "anonymous users share one count, as before; consider 'user_or_ip'"
            )

    # Throttle classes

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Read subclasses of throttles."""
        origins = {self._origin(base) for base in node.bases}
        if any(origin.rpartition(".")[::2] in _THROTTLE_PATHS for origin in origins):
            used = {
                each.attr
                for each in ast.walk(node)
                if isinstance(each, ast.Attribute)
                and isinstance(each.value, ast.Name)
                and each.value.id == "self"
            }
            methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
            if missing := sorted(used & OF_THE_CACHE):
                words = ", ".join(f"self.{name}" for name in missing)
                self._add(node, f"class {node.name}", f"{words}: keep this class on DRF's class")
            elif "allow_request" in methods:
                self._add(
                    node,
                    f"class {node.name}",
                    "it overrides allow_request, so it is decided in a call of its own",
                )
        self.generic_visit(node)

    # Settings

    def visit_Assign(self, node: ast.Assign) -> None:
        """Read settings."""
        for target in node.targets:
            if isinstance(target, ast.Name) and target.id in SETTINGS:
                self._add(node, target.id, SETTINGS[target.id])
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        """Read the caches, and the rates of scopes."""
        for key, value in zip(node.keys, node.values, strict=True):
            if not isinstance(key, ast.Constant):
                continue
            if key.value == "DEFAULT_THROTTLE_RATES" and isinstance(value, ast.Dict):
                for rate in value.values:
                    if isinstance(rate, ast.Constant) and isinstance(rate.value, str):
                        self._read_rate(rate, rate.value)
            if key.value == "BACKEND" and isinstance(value, ast.Constant):
                backend = str(value.value)
                if "cache" in backend.lower() and backend != DJANGO_REDIS:
                    self._add(value, repr(backend), f"limits need an alias with {DJANGO_REDIS!r}")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Read dotted paths in text."""
        text = node.value
        if not isinstance(text, str):
            return
        module, _dot, name = text.rpartition(".")
        if module == DRF and name in THROTTLES:
            self._add(node, repr(text), f"{OURS}.{name}")
        elif text == "django_ratelimit":
            self._add(node, repr(text), "'django_ratelimit_lua'")
        elif re.fullmatch(r"(django_)?ratelimit\.middleware\.RatelimitMiddleware", text):
            self._add(node, repr(text), _MIDDLEWARE)
        elif text.endswith(".exceptions.Ratelimited") and _module(module) is not None:
            self._add(node, repr(text), f"{MODULES['exceptions']}.Ratelimited")


def _module(name: str) -> str | None:
    """Return our module for one of django-ratelimit; None for any other."""
    package, _dot, inner = name.partition(".")
    if package not in ("django_ratelimit", "ratelimit"):
        return None
    if inner in ("middleware", "mixins"):
        return MODULES[""]
    return MODULES.get(inner)


_MIDDLEWARE = (
    "remove it: RATELIMIT_VIEW needs no middleware. If you raise Ratelimited yourself, use "
    "'django_ratelimit_lua.middleware.RateLimitMiddleware'"
)
_THROTTLE_PATHS = {(DRF, name) for name in THROTTLES}
