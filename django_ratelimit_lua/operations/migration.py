"""Find what a project must change to migrate from django-ratelimit or DRF's throttles.

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

PACKAGES = ("django_ratelimit", "ratelimit")
"""The names of django-ratelimit's package: the second one before version 4."""
MODULES = {
    f"{package}{module}": ours
    for package in PACKAGES
    for module, ours in {
        "": "django_ratelimit_lua",
        ".core": "django_ratelimit_lua.core",
        ".decorators": "django_ratelimit_lua.decorators",
        ".exceptions": "django_ratelimit_lua.exceptions",
        ".middleware": "django_ratelimit_lua",
        ".mixins": "django_ratelimit_lua",
        ".utils": "django_ratelimit_lua.core",
    }.items()
}
"""The modules of django-ratelimit, and ours."""
NAMES = {"ALL", "UNSAFE", "Ratelimited", "get_usage", "is_ratelimited", "ratelimit"}
OTHER_NAMES = {"get_header": "use request.headers"}
EXCEPTION = "django_ratelimit_lua.exceptions.Ratelimited"
MIDDLEWARE = (
    "remove it: RATELIMIT_VIEW needs no middleware. If you raise Ratelimited yourself, use "
    "'django_ratelimit_lua.middleware.RateLimitMiddleware'"
)
DRF = "rest_framework.throttling"
OURS = "django_ratelimit_lua.throttling"
THROTTLES = {
    f"{DRF}.{name}": f"{OURS}.{name}"
    for name in (
        "AnonRateThrottle",
        "BaseThrottle",
        "ScopedRateThrottle",
        "SimpleRateThrottle",
        "UserRateThrottle",
    )
}
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
PATHS = {
    "django_ratelimit": "'django_ratelimit_lua'",
    **{f"{package}.middleware.RatelimitMiddleware": MIDDLEWARE for package in PACKAGES},
    **{f"{package}.exceptions.Ratelimited": EXCEPTION for package in PACKAGES},
    **THROTTLES,
}
"""Texts in settings, and what to do about each."""
ARGUMENTS = ("group", "key", "rate", "method", "block")
"""The arguments of the decorator, in order."""
KEYS = {
    "header": "values that differ only in case or white space count as one. For exact values, "
    "write 'exact:{key}'",
    "post": "requests of more than 64 KiB count as their address",
    "user": "anonymous users share one count, as before; consider 'user_or_ip'",
}
"""By kind of key: what is different."""


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


Found = Iterator[tuple[ast.stmt | ast.expr, str, str]]
"""Places in a file, each with its text and its remedy."""


def find_changes(roots: Iterable[Path]) -> Iterator[Finding]:
    """Read all Python files below these folders, and return the findings."""
    for path in _files(roots):
        try:
            if path.stat().st_size > MAX_BYTES:
                raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
            source = path.read_bytes()
            if not _MENTIONED.search(source):
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # About the project's code, such as odd escapes.
                tree = ast.parse(source)
            found = {
                Finding(path, node.lineno, text, remedy)
                for node, text, remedy in _Reader(tree).read()
            }
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None) or 1
            found = {Finding(path, line, path.name, f"not read: {error}")}
        yield from sorted(found)


def _files(roots: Iterable[Path]) -> Iterator[Path]:
    for root in roots:
        if root.is_file():
            yield root
        for name, folders, names in os.walk(root):
            folder = Path(name)
            folders[:] = sorted(each for each in folders if _is_searched(folder / each))
            yield from (folder / each for each in sorted(names) if each.endswith(".py"))


def _is_searched(folder: Path) -> bool:
    if folder.name.startswith(".") or folder.name in SKIPPED_FOLDERS:
        return False
    return not (folder / "pyvenv.cfg").exists()  # A virtual environment.


class _Reader:
    """Finds the uses in one file."""

    def __init__(self, tree: ast.Module) -> None:
        self._nodes = list(ast.walk(tree))
        self._imported: dict[str, str] = {}
        for node in self._nodes:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                package = ""
                if isinstance(node, ast.ImportFrom):
                    package = "." * node.level + f"{node.module}."
                for alias in node.names:
                    self._imported[alias.asname or alias.name] = package + alias.name

    def read(self) -> Found:
        for node in self._nodes:
            match node:
                case ast.Import():
                    for alias in node.names:
                        if alias.name in MODULES:
                            yield node, f"import {alias.name}", f"import {MODULES[alias.name]}"
                case ast.ImportFrom(module, _, 0):
                    yield from _read_import_from(node, str(module))
                case ast.Call():
                    yield from self._read_call(node)
                case ast.ClassDef():
                    yield from self._read_class(node)
                case ast.Dict():
                    yield from _read_dict(node)
                case ast.Name(name, ast.Store()) if name in SETTINGS:
                    yield node, name, SETTINGS[name]
                case ast.Constant(str(text)) if text in PATHS:
                    yield node, repr(text), PATHS[text]

    def _origin(self, node: ast.expr) -> str:
        """Return the dotted name of an expression, including the module it was imported from."""
        if isinstance(node, ast.Name):
            return self._imported.get(node.id, "")
        if isinstance(node, ast.Attribute):
            origin = self._imported.get(ast.unparse(node.value)) or self._origin(node.value)
            return f"{origin}.{node.attr}"
        return ""

    def _read_call(self, node: ast.Call) -> Found:
        module, _dot, name = self._origin(node.func).rpartition(".")
        if module not in MODULES:
            return
        given = {word.arg: word.value for word in node.keywords}
        if name == "ratelimit":
            given |= zip(ARGUMENTS, node.args, strict=False)
            if not given.keys() & {"key", None}:  # None stands for **options.
                yield node, "ratelimit(...)", "add a key; a missing key is an error at import"
            if module.startswith("ratelimit") and not given.keys() & {"block", None}:
                yield (
                    node,
                    "ratelimit(...)",
                    "add block=False, which was the default of this version; the default is True "
                    "here",
                )
        increment = given.get("increment")
        is_counted = isinstance(increment, ast.Constant) and increment.value is True
        if name == "is_ratelimited" and not is_counted:
            yield (
                node,
                "is_ratelimited(...)",
                "without increment, it is true as soon as the limit is used up, not one request "
                "later",
            )
        yield from _read_rate(given.get("rate"))
        match given.get("method"):
            case ast.Constant("GET"):
                yield node, "method='GET'", "it includes HEAD"
        match given.get("key"):
            case ast.Constant(str(text)) as key:
                remedy = KEYS.get(text.partition(":")[0])
                if remedy is not None:
                    yield key, repr(text), remedy.format(key=text)
            case ast.Lambda() | ast.Name() | ast.Attribute() as key:
                yield (
                    key,
                    f"key={ast.unparse(key)}",
                    "it is called with (group, request), as before; the result may be text, "
                    "bytes, a number, a UUID or None",
                )

    def _read_class(self, node: ast.ClassDef) -> Found:
        if THROTTLES.keys().isdisjoint(map(self._origin, node.bases)):
            return
        used = {
            each.attr
            for each in ast.walk(node)
            if isinstance(each, ast.Attribute) and ast.unparse(each.value) == "self"
        }
        methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
        missing = ", ".join(f"self.{name}" for name in sorted(used & OF_THE_CACHE))
        if missing:
            yield node, f"class {node.name}", f"{missing}: keep this class on DRF's class"
        elif "allow_request" in methods:
            remedy = "it overrides allow_request, so it is decided in a call of its own"
            yield node, f"class {node.name}", remedy


def _read_import_from(node: ast.ImportFrom, module: str) -> Found:
    written = [alias.name for alias in node.names]
    names = set(written)
    text = f"from {module} import {', '.join(written)}"
    if module == "rest_framework" and "throttling" in names:
        yield (
            node,
            f"from {module} import throttling",
            "from django_ratelimit_lua import throttling",
        )
    elif module == DRF:
        known = sorted(name for name in names if f"{DRF}.{name}" in THROTTLES)
        if known:
            yield node, text, f"from {OURS} import {', '.join(known)}"
    elif module not in MODULES or (module == "ratelimit" and not names <= NAMES):
        return  # Another package of that name.
    elif module.endswith(".middleware"):
        yield node, text, MIDDLEWARE
    elif module.endswith(".mixins"):
        yield node, text, "use method_decorator(ratelimit(...), name='dispatch') instead"
    else:
        known = sorted(names & NAMES)
        if known:
            yield node, text, f"from {MODULES[module]} import {', '.join(known)}"
        for name in names - NAMES:
            yield node, f"{module}.{name}", OTHER_NAMES.get(name, "it has no equivalent")
        if "Ratelimited" in names:
            yield (
                node,
                "Ratelimited",
                "a refused view answers 429 and does not raise it. If your code handles it, set "
                f"RATELIMIT_EXCEPTION_CLASS = '{EXCEPTION}'",
            )


def _read_rate(node: ast.expr | None) -> Found:
    match node:
        # A name is the path of a callable.
        case ast.Constant(str(rate)) if not re.fullmatch(r"[A-Za-z_][\w.]*", rate):
            try:
                Rate.parse(rate)
            except LimitError as error:
                yield node, repr(rate), str(error)


def _read_dict(node: ast.Dict) -> Found:
    """Read the caches, and the rates of scopes."""
    for key, value in zip(node.keys, node.values, strict=True):
        match key, value:
            case ast.Constant("DEFAULT_THROTTLE_RATES"), ast.Dict(_, rates):
                for rate in rates:
                    yield from _read_rate(rate)
            case ast.Constant("BACKEND"), ast.Constant(str(backend)):
                if "cache" in backend.lower() and backend != DJANGO_REDIS:
                    yield value, repr(backend), f"limits need an alias with {DJANGO_REDIS!r}"
