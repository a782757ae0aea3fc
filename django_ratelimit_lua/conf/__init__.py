"""All settings in one table, each read when it is first used.

A value is cached until Django signals that a setting has changed, as `override_settings` does. The
documentation's page of settings and `manage.py check` read this table. This module imports
`limits`, and does not depend on code that uses a setting.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.functional import cached_property

from ..limits import algorithms
from ..limits.terms import POLICIES, Policy
from ..limits.values import Check, Choice, Number, Whole, flag, or_none
from .callables import Function, accepts, find
from .changes import on_change

__all__ = [
    "Setting",
    "Table",
    "changes",
    "conf",
    "header",
    "proxies",
    "token",
    "tokens",
]

T = TypeVar("T")
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MIN_SLOT_SECONDS = 0.5
MAX_WEIGHT = 1000
whole_weight = Whole(1, MAX_WEIGHT, "whole number")
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


def _cache_alias(value: object) -> str:
    if value and isinstance(value, str):
        return value
    raise ValueError("must be an alias of CACHES, such as 'default'")


def _prefix(value: object) -> bytes:
    if isinstance(value, str) and not re.search("[{}\ud800-\udfff]", value):
        return value.encode()
    raise ValueError("must be text without braces, such as 'rl:'")


def _rate_algorithm(value: Any) -> str:
    name = algorithms.find(value).name
    if name not in algorithms.BY_RATE:
        raise ValueError(
            f"{name} is only for slots; choose one of: {', '.join(algorithms.BY_RATE)}"
        )
    return name


def _slot_seconds(value: object) -> float:
    seconds = Number(3600, "number of seconds", " to 3600, such as 10", is_above_0=True)(value)
    if seconds < MIN_SLOT_SECONDS:
        raise ValueError(
            f"must be at least {MIN_SLOT_SECONDS:g}: a slot is renewed four times before it expires"
        )
    return seconds


def _policy(value: object) -> Policy:
    if value is not None:
        return Choice(POLICIES)(value)
    if conf.FAIL_OPEN is None:
        return "local"
    if conf.FAIL_OPEN:
        return "open"
    return "closed"


def _keys(value: object) -> dict[str, object]:
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


def _secrets(value: object) -> tuple[str | bytes, ...]:
    if value is None:
        value = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    if not isinstance(value, (list, tuple)) or not value:
        value = [value]
    for secret in value:
        is_encodable = not isinstance(secret, str) or not re.search("[\ud800-\udfff]", secret)
        if not secret or not isinstance(secret, (str, bytes)) or not is_encodable:
            raise ValueError("must be text or bytes, or a list of these, the current one first")
    return tuple(value)


def token(value: object) -> str:
    """Return a token. Raises `ValueError` if it is too short or has other characters."""
    if isinstance(value, str) and _TOKEN.fullmatch(value):
        return value
    raise ValueError(
        "must be text of at least 16 letters, digits or -._~+/=, such as the result of "
        "secrets.token_urlsafe()"
    )


def tokens(value: object) -> tuple[str, ...]:
    """Return one or more tokens. Raises `ValueError` if one is invalid."""
    if not isinstance(value, (list, tuple)) or not value:
        value = [value]
    return tuple([token(each) for each in value])


def header(value: object) -> str:
    """Return the name of a header. Raises `ValueError` if it is not one."""
    if isinstance(value, str) and _HEADER.fullmatch(value):
        return value
    raise ValueError("must be the name of a header, such as 'X-Remote-User'")


def _function(value: object) -> Function:
    if isinstance(value, str):
        return find(value, "the path")
    if not callable(value):
        raise ValueError("must be a callable, or its dotted path")
    return value


def _exception(value: object) -> type[Exception]:
    named = _function(value)
    if isinstance(named, type) and issubclass(named, Exception):
        return named
    raise ValueError("must be an exception class, or its dotted path")


def _meta_key(value: object) -> str | Callable[..., str]:
    if not isinstance(value, str) or "." in value:
        return _function(value)
    if not _META_KEY.fullmatch(value):
        header = re.sub(r"[^A-Z0-9]", "_", value.upper()).removeprefix("HTTP_")
        raise ValueError(f"must be a key of request.META, such as 'HTTP_{header}'")
    return value


def proxies(value: object) -> int | tuple[Network, ...]:
    """Return the trusted proxies of `RATELIMIT_TRUSTED_PROXIES`. Raises `ValueError`."""
    problem = (
        "must be a number of proxies from 0 to 32, or a list of networks such as "
        "['10.0.0.0/8', 'unix']"
    )
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 32:
        return value
    return _networks(value, problem, "unix")


def _networks(value: object, problem: str, other: str = "") -> tuple[Network, ...]:
    kinds = (str, ipaddress.IPv4Network, ipaddress.IPv6Network)
    if not isinstance(value, (list, tuple)) or not all(
        isinstance(network, kinds) for network in value
    ):
        raise ValueError(problem)
    try:
        return tuple(
            unmapped(ipaddress.ip_network(network)) for network in value if network != other
        )
    except ValueError as error:
        raise ValueError(f"{problem}; {error}") from None


def _named_networks(value: object) -> dict[str, tuple[Network, ...] | Path]:
    """Return the ranges of each network, or the file that has them."""
    right = (
        "must be a dict of names with a list of networks or the absolute path of a JSON file, such "
        "as {'office': ['192.0.2.0/24'], 'google': '/var/lib/networks/google.json'}"
    )
    if not isinstance(value, dict) or any(str(name).startswith("!") for name in value):
        raise ValueError(right)
    return {
        name: Path(source)
        if isinstance(source, (str, Path)) and Path(source).is_absolute()
        else _networks(source, right)
        for name, source in value.items()
    }


def _header_key(value: object) -> str:
    return "HTTP_" + header(value).upper().replace("-", "_")


def _exemption(value: object) -> Function:
    function = _function(value)
    if iscoroutinefunction(function):
        raise ValueError("must be a plain function, not a coroutine function")
    if not accepts(function, "request"):
        raise ValueError("must accept one argument, the request")
    return function


PRIVATE: tuple[Network, ...] = tuple(
    map(
        ipaddress.ip_network,
        (
            "10.0.0.0/8",
            "172.16.0.0/12",
            "192.168.0.0/16",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "::1",
            "fc00::/7",
            "fe80::/10",
        ),
    )
)
"""Private networks, in which an unconfigured proxy may be."""


def _never_ban(value: object) -> tuple[Network, ...]:
    if value is None:
        names = ("RATELIMIT_TRUSTED_PROXIES", "RATELIMIT_IP_META_KEY")
        if any(getattr(settings, name, None) is not None for name in names):
            return ()
        return PRIVATE
    return _networks(value, "must be a list of networks, such as ['192.0.2.0/24']")


class Setting(Generic[T]):
    """Describe one setting: its default, the check that reads it, and its documentation.

    - `default`: the default, as a project would write it;
    - `check`: returns the value as the package uses it, or raises `ValueError` with a description
      of the valid values;
    - `doc`: reStructuredText; `shown`: the text that documents the default, if it is the default of
      another setting;
    - `is_secret`: no error contains the value.
    """

    def __init__(
        self,
        default: object,
        check: Check[T],
        doc: str,
        *,
        shown: str = "",
        is_secret: bool = False,
    ) -> None:
        self.default = default
        self.check = check
        self.doc = doc
        self.shown = shown
        self.is_secret = is_secret

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, conf: None, owner: type) -> Setting[T]: ...

    @overload
    def __get__(self, conf: Table, owner: type) -> T: ...

    def __get__(self, conf: Table | None, owner: type) -> Setting[T] | T:
        if conf is None:
            return self
        # Kept where Python looks first: from now on, reading the setting costs what an attribute
        # costs.
        value = vars(conf)[self.name] = self.read()
        return value

    def read(self) -> T:
        """Return the value that the project has set, or the default.

        Raises `ImproperlyConfigured`.
        """
        value = getattr(settings, f"RATELIMIT_{self.name}", self.default)
        try:
            return self.check(value)
        except (ValueError, ImproperlyConfigured) as error:
            shown = repr(value)
            if self.is_secret:
                shown = f"a {type(value).__name__}"
            raise ImproperlyConfigured(f"RATELIMIT_{self.name} is {shown}: {error}") from None


SETTINGS: dict[str, Setting[object]] = {}
"""All settings by name: the core's, and those of the optional apps that are installed."""


class Table:
    """Settings that are declared as attributes. An optional app has a table of its own."""

    def __init__(self) -> None:
        SETTINGS.update(
            (name, row) for name, row in vars(type(self)).items() if isinstance(row, Setting)
        )
        on_change(("RATELIMIT_*", "SECRET_KEY", "SECRET_KEY_FALLBACKS"), vars(self).clear)


class Conf(Table):
    """The settings `RATELIMIT_*`. Reading an invalid value raises `ImproperlyConfigured`."""

    ENABLE = Setting(True, flag, "``False`` allows everything, without a call to Redis")
    USE_CACHE = Setting(
        "default",
        _cache_alias,
        "the alias in ``CACHES``; must be ``django_redis.cache.RedisCache``",
    )
    CACHE_PREFIX = Setting("rl:", _prefix, "the prefix of all keys in Redis, without braces")
    ALGORITHM = Setting("sliding_window", _rate_algorithm, "the default algorithm")
    TIMEOUT = Setting(
        0.1,
        Number(3600, "number of seconds", ", such as 0.1", is_above_0=True),
        "the deadline of one decision in seconds: to connect, send and read, see :doc:`failures`",
    )
    ON_STORE_ERROR = Setting(
        None,
        _policy,
        'the policy while Redis is unavailable: ``"local"``, ``"open"`` or ``"closed"``, see '
        ":doc:`failures`",
        shown='``"local"``',
    )
    FAIL_OPEN = Setting(
        None,
        or_none(flag),
        'as in django-ratelimit: ``True`` is ``"open"``, ``False`` is ``"closed"``. '
        "``RATELIMIT_ON_STORE_ERROR`` has precedence",
    )
    DENY_CACHE_SECONDS = Setting(
        1,
        Number(3600, "number of seconds", ", such as 1"),
        "the maximum number of seconds for which a process repeats a refusal without a call to "
        "Redis; ``0``: never. More than one second applies only while the process receives "
        "changes, and not in a cluster",
    )
    SLOT_SECONDS = Setting(
        10,
        _slot_seconds,
        "seconds after which slots expire that are not renewed, because their process was killed; "
        "a running process renews them four times in that time, see "
        ":doc:`/how-to/limit-concurrency`",
    )
    WEIGHT = Setting(
        1,
        whole_weight,
        "the weight of this process' host in limits with ``split``, if the admin page *Processes* "
        "sets none for the host, see :doc:`/how-to/hot-keys`",
    )
    TRUSTED_PROXIES = Setting(
        None,
        or_none(proxies),
        "the proxies that may report the client's address: a list of networks, or the number of "
        "proxies; ``0``: there is no proxy; see :doc:`/how-to/behind-a-proxy`",
    )
    PROXY_HEADER = Setting(
        "X-Forwarded-For",
        lambda header: Choice(("X-Forwarded-For", "Forwarded"))(str(header).title()),
        'the header that these proxies write, or ``"Forwarded"``. Only one is read, because '
        "clients could write the other one",
    )
    IP_META_KEY = Setting(
        None,
        or_none(_meta_key),
        "another source of the address: a key of ``request.META``, a callable ``(request)``, or "
        "its dotted path",
    )
    NETWORKS = Setting(
        {},
        _named_networks,
        "networks by name, for the condition ``network`` of rules: a list of ranges, or the path "
        "of a JSON file as Google, Bing and OpenAI publish it, see :doc:`/how-to/crawlers`",
    )
    REQUEST_START = Setting(
        None,
        or_none(_header_key),
        "the header in which a proxy of ``RATELIMIT_TRUSTED_PROXIES`` writes when it received the "
        "request, such as ``X-Request-Start``, see :doc:`/how-to/crawlers`",
    )
    EXEMPT = Setting(
        None,
        or_none(_exemption),
        "a function of the request, or its dotted path. No limit applies to a request for which it "
        "returns true",
    )
    IPV4_MASK = Setting(
        32, Whole(0, 32, "prefix length"), "the prefix length to which IPv4 addresses are masked"
    )
    IPV6_MASK = Setting(
        64, Whole(0, 128, "prefix length"), "the prefix length to which IPv6 addresses are masked"
    )
    NEVER_BAN = Setting(
        None,
        _never_ban,
        "networks that are never banned, see :doc:`/how-to/ban-repeat-offenders`. Without a "
        "proxy setting, the default is private networks and this host: a ban would be of a proxy, "
        "and of all clients behind it",
        shown="private networks if ``RATELIMIT_TRUSTED_PROXIES`` is not set, otherwise ``[]``",
    )
    RULES = Setting[Any](
        [], lambda rules: rules, "the rules that the middleware applies, see :doc:`rules`"
    )
    KEYS = Setting(
        {},
        _keys,
        "keys of this site by name, usable like the built-in ones: a function ``(request)``, a "
        "``Key``, or the dotted path of one, see :doc:`keys`",
    )
    HISTORY_DAYS = Setting(
        365,
        or_none(Number(36_500, "number of days", ", such as 365, or None", is_above_0=True)),
        "days for which the database keeps the history of rules, expired overrides, and durable "
        ":doc:`/annexes/statistics`; ``None``: without end",
    )
    HEADERS = Setting(
        None,
        Choice((None, "ietf", "x")),
        'the format of rate-limit headers: ``"ietf"`` or ``"x"``, see :doc:`responses`',
        shown="``None``",
    )
    KEY_SECRET = Setting(
        None,
        _secrets,
        "the secret for digests of identities, or a list: the current one, then earlier ones, with "
        "which overrides still match, see :doc:`keys`",
        shown="``SECRET_KEY`` and ``SECRET_KEY_FALLBACKS``",
        is_secret=True,
    )
    EXCEPTION_CLASS = Setting(
        None,
        or_none(_exception),
        "an exception, or its dotted path, to raise instead of answering 429",
    )
    VIEW = Setting(
        None,
        or_none(_function),
        "a view ``(request, exception)``, plain or ``async``, or its dotted path, that returns the "
        "response to a refused request; ``exception.decision`` has the numbers. ``Cache-Control: "
        "no-store`` and ``Retry-After`` are added if it does not set them",
    )
    SHOW_IDENTITIES = Setting(
        "masked",
        Choice(("masked", "plain", "off")),
        "how the names of the clients that are refused most, or use most, are stored for a day, "
        "and those of banned clients until the end of the ban: "
        '``"masked"`` '
        '(addresses as /24 and /56, the first letters of other values), ``"plain"``, or '
        '``"off"``: not at all; see '
        ":doc:`/annexes/statistics`",
    )

    @cached_property
    def TRUSTS_SOCKET(self) -> bool:
        """Whether a client on a Unix socket, which has no address, is a trusted proxy."""
        value = getattr(settings, "RATELIMIT_TRUSTED_PROXIES", None)
        return isinstance(value, (list, tuple)) and "unix" in value


conf = Conf()
