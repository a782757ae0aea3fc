"""Checks of the values of settings, and callables that are given by a dotted path.

A check returns the value as the package uses it, or raises `ValueError` with the valid values. A
path is imported when it is first used. `manage.py check` imports all of them.
"""

from __future__ import annotations

import inspect
import ipaddress
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from ..limits import algorithms
from ..limits.values import Number, Whole

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Function = Callable[..., Any]
"""A function of the project, with any parameters."""

known_paths: dict[str, str] = {}
"""The dotted paths that call sites name, and the purpose of each, for `manage.py check`. At most
`MAX_ENTRIES` paths of at most `MAX_LENGTH` characters.
"""
MAX_ENTRIES = 10_000
MAX_LENGTH = 300

MIN_SLOT_SECONDS = 0.5
MAX_WEIGHT = 1000
check_weight = Whole(1, MAX_WEIGHT, "whole number")
"""Checks the weight of a host."""
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{16,}=*")
"""As RFC 6750 has them; no shorter ones, which could be guessed."""
_HEADER = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
"""Without underscores, which servers drop or take for hyphens."""
_KEY_NAME = re.compile(r"[a-z][a-z0-9_]{0,49}")
_META_KEY = re.compile(r"[A-Z][A-Z0-9_]*")
"""As CGI writes them: headers as HTTP_X_REAL_IP, the rest as REMOTE_ADDR."""
_MAPPED = 96  # Leading bits of IPv6 addresses that may embed an IPv4 address.


def unmapped(network: Network) -> Network:
    """Return an IPv4-mapped network as IPv4, and any other unchanged.

    Client addresses are converted in the same way.

    >>> unmapped(ipaddress.ip_network("::ffff:203.0.113.0/120"))
    IPv4Network('203.0.113.0/24')
    """
    if isinstance(network, ipaddress.IPv6Network) and network.prefixlen >= _MAPPED:
        address = network.network_address.ipv4_mapped
        if address is not None:
            return ipaddress.IPv4Network((address, network.prefixlen - _MAPPED))
    return network


def check_alias(value: object) -> str:
    """Check for an alias of `CACHES`."""
    if value and isinstance(value, str):
        return value
    raise ValueError("must be an alias of CACHES, such as 'default'")


def check_prefix(value: object) -> bytes:
    """Check for the prefix of keys, and encode it. Braces would begin a hash tag of Redis."""
    if isinstance(value, str) and not re.search("[{}\ud800-\udfff]", value):
        return value.encode()
    raise ValueError("must be text without braces, such as 'rl:'")


def check_algorithm(value: Any) -> str:
    """Check for an algorithm for units per period, and return its own name for a synonym."""
    name = algorithms.find(value).name
    if name not in algorithms.BY_RATE:
        raise ValueError(
            f"{name} is only for slots; choose one of: {', '.join(algorithms.BY_RATE)}"
        )
    return name


def check_slot_seconds(value: object) -> float:
    """Check for the lifetime of a slot in seconds."""
    seconds = Number(3600, "number of seconds", " to 3600, such as 10", is_above_0=True)(value)
    if seconds < MIN_SLOT_SECONDS:
        raise ValueError(
            f"must be at least {MIN_SLOT_SECONDS:g}: a slot is renewed four times before it expires"
        )
    return seconds


def check_keys(value: object) -> dict[str, object]:
    """Check the names of the keys of a site. Their functions are checked when they are used."""
    if not isinstance(value, dict):
        raise ValueError(
            "must be a dict of functions or dotted paths by name, such as {'tenant': "
            "'shop.limits.tenant'}"
        )
    for name in value:
        if not isinstance(name, str) or not _KEY_NAME.fullmatch(name):
            raise ValueError(
                f"the name {name!r} is invalid; use lower-case letters, digits and "
                "underscores, such as 'tenant'"
            )
    return value


def check_secrets(value: object) -> tuple[str | bytes, ...]:
    """Check for one secret or a list of them. None stands for those of Django."""
    secrets: list[Any]
    if value is None:
        secrets = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    elif isinstance(value, (list, tuple)) and value:
        secrets = list(value)
    else:
        secrets = [value]
    for secret in secrets:
        is_encodable = not isinstance(secret, str) or not re.search("[\ud800-\udfff]", secret)
        if not secret or not isinstance(secret, (str, bytes)) or not is_encodable:
            raise ValueError("must be text or bytes, or a list of these, the current one first")
    return tuple(secrets)


def check_token(value: object) -> str:
    """Check for a token that is long enough, and has only the characters that a header may have."""
    if isinstance(value, str) and _TOKEN.fullmatch(value):
        return value
    raise ValueError(
        "must be text of at least 16 letters, digits or -._~+/=, such as the result of "
        "secrets.token_urlsafe()"
    )


def check_tokens(value: object) -> tuple[str, ...]:
    """Check for one token or a list of them."""
    if isinstance(value, (list, tuple)) and value:
        return tuple([check_token(token) for token in value])
    return (check_token(value),)


def check_header(value: object) -> str:
    """Check for the name of a header."""
    if isinstance(value, str) and _HEADER.fullmatch(value):
        return value
    raise ValueError("must be the name of a header, such as 'X-Remote-User'")


def check_header_key(value: object) -> str:
    """Check for the name of a header, and return its key in `request.META`."""
    return "HTTP_" + check_header(value).upper().replace("-", "_")


def check_meta_key(value: object) -> str | Callable[..., str]:
    """Check for a key of `request.META`, or a callable that returns an address."""
    if not isinstance(value, str) or "." in value:
        return check_function(value)
    if not _META_KEY.fullmatch(value):
        header = re.sub(r"[^A-Z0-9]", "_", value.upper()).removeprefix("HTTP_")
        raise ValueError(f"must be a key of request.META, such as 'HTTP_{header}'")
    return value


def check_function(value: object) -> Function:
    """Check for a callable or its dotted path, and import it."""
    if isinstance(value, str):
        return import_callable(value, "the path")
    if not callable(value):
        raise ValueError("must be a callable, or its dotted path")
    return value


def check_exception(value: object) -> type[Exception]:
    """Check for an exception class or its dotted path, and import it."""
    exception = check_function(value)
    if isinstance(exception, type) and issubclass(exception, Exception):
        return exception
    raise ValueError("must be an exception class, or its dotted path")


def check_exemption(value: object) -> Function:
    """Check for a plain function of the request, or its dotted path, and import it."""
    function = check_function(value)
    if inspect.iscoroutinefunction(function):
        raise ValueError("must be a plain function, not a coroutine function")
    if not accepts(function, "request"):
        raise ValueError("must accept one argument, the request")
    return function


def check_proxies(value: object) -> int | tuple[Network, ...]:
    """Check for the trusted proxies: their number, or their networks without "unix"."""
    problem = (
        "must be a number of proxies from 0 to 32, or a list of networks such as "
        "['10.0.0.0/8', 'unix']"
    )
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 32:
        return value
    return _parse_networks(value, problem, skipped="unix")


def _parse_networks(value: object, problem: str, skipped: str = "") -> tuple[Network, ...]:
    """Return the networks of a list, except a `skipped` entry.

    Raises `ValueError`, which begins with the `problem`, if the list is invalid.
    """
    types = (str, ipaddress.IPv4Network, ipaddress.IPv6Network)
    if not isinstance(value, (list, tuple)) or not all(isinstance(each, types) for each in value):
        raise ValueError(problem)
    try:
        return tuple([unmapped(ipaddress.ip_network(each)) for each in value if each != skipped])
    except ValueError as error:
        raise ValueError(f"{problem}; {error}") from None


def check_named_networks(value: object) -> dict[str, tuple[Network, ...] | Path]:
    """Check for networks by name: the ranges of each, or the file that has them."""
    problem = (
        "must be a dict of names with a list of networks or the absolute path of a JSON file, such "
        "as {'office': ['192.0.2.0/24'], 'google': '/var/lib/networks/google.json'}"
    )
    if not isinstance(value, dict) or any(str(name).startswith("!") for name in value):
        raise ValueError(problem)
    networks: dict[str, tuple[Network, ...] | Path] = {}
    for name, source in value.items():
        if isinstance(source, (str, Path)) and Path(source).is_absolute():
            networks[name] = Path(source)
        else:
            networks[name] = _parse_networks(source, problem)
    return networks


PRIVATE: tuple[Network, ...] = tuple(
    ipaddress.ip_network(private)
    for private in (
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "::1",
        "fc00::/7",
        "fe80::/10",
    )
)
"""Private networks, in which an unconfigured proxy may be."""


def check_never_ban(value: object) -> tuple[Network, ...]:
    """Check for the networks that are never banned.

    None stands for the private ones, unless a setting names the source of addresses.
    """
    if value is not None:
        return _parse_networks(value, "must be a list of networks, such as ['192.0.2.0/24']")
    for name in ("RATELIMIT_TRUSTED_PROXIES", "RATELIMIT_IP_META_KEY"):
        if getattr(settings, name, None) is not None:
            return ()
    return PRIVATE


def import_callable(path: str, purpose: str, *arguments: str) -> Function:
    """Import the callable at a dotted path.

    Raises `ImproperlyConfigured`, which names the purpose, if it cannot be imported, or cannot be
    called with these arguments, if any are given.
    """
    try:
        target: object = import_string(path)
    except Exception as error:  # Importing runs code, which may raise anything.
        raise ImproperlyConfigured(f"{purpose} {path!r} cannot be imported: {error}") from error
    if not callable(target):
        raise ImproperlyConfigured(f"{purpose} {path!r} is not callable")
    if arguments and not accepts(target, *arguments):
        raise ImproperlyConfigured(f"{purpose} {path!r} must accept ({', '.join(arguments)})")
    return target


def accepts(function: Function, *arguments: str) -> bool:
    """Return whether a function can be called with this number of arguments.

    >>> accepts(lambda request: "ada", "group", "request")
    False
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # Some built-in functions have no signature.
        return True
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def import_lazily(path: str, purpose: str) -> Function:
    """Return a function that imports the callable of a dotted path when it is called.

    The path is added to `known_paths`. The function has the name of the path for `dotted_name`.
    """
    if len(known_paths) < MAX_ENTRIES and len(path) <= MAX_LENGTH:
        known_paths[path] = purpose

    def call(*args: object) -> object:
        return import_callable(path, purpose, "group", "request")(*args)

    module, _dot, name = path.rpartition(".")
    call.__module__ = module
    call.__qualname__ = name
    return call


def dotted_name(function: Function) -> str:
    """Return the dotted name of a function.

    >>> dotted_name(import_lazily("shop.limits.tenant", "Key"))
    'shop.limits.tenant'
    """
    named = function
    if not hasattr(function, "__qualname__"):
        named = type(function)
    return f"{named.__module__}.{named.__qualname__}"
