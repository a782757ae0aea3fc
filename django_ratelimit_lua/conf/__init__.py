"""The settings: a table with one row for each, read when it is first used.

A value is cached until Django signals a change of settings, as `override_settings` does. The settings page of the
documentation and `manage.py check` read this table. It imports limits, and does not know where a setting is used.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast, overload

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.functional import cached_property

from ..limits import algorithms
from ..limits.options import POLICIES, Policy
from ..limits.values import Check, Choice, Number, Whole, or_none
from .callables import find
from .changes import on_change

__all__ = ["Setting", "Table", "callables", "changes", "conf", "header", "proxies", "token", "tokens"]

T = TypeVar("T")
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MIN_SLOT_SECONDS = 0.5
_LONE = re.compile("[\ud800-\udfff]")
"""Half a character, which UTF-8 has no bytes for."""
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{16,}=*")
"""As RFC 6750 has them; no shorter ones, which could be guessed."""
_HEADER = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
"""Without underscores, which servers drop or take for hyphens."""
_KEY_NAME = re.compile(r"[a-z][a-z0-9_]{0,49}")
_META_KEY = re.compile(r"[A-Z][A-Z0-9_]*")
"""As CGI writes them: headers as HTTP_X_REAL_IP, the rest as REMOTE_ADDR."""
_MAPPED = 96  # Leading bits of IPv6 addresses that may embed an IPv4 address.


def unmapped(network: Network) -> Network:
    """The same network, as IPv4 if it is an IPv4-mapped one: every client address is read so.

    >>> unmapped(ipaddress.ip_network("::ffff:203.0.113.0/120"))
    IPv4Network('203.0.113.0/24')
    """
    if isinstance(network, ipaddress.IPv6Network) and network.prefixlen >= _MAPPED:
        address = network.network_address.ipv4_mapped
        if address is not None:
            return ipaddress.IPv4Network((address, network.prefixlen - _MAPPED))
    return network


def _cache_alias(value: Any) -> str:
    if value and isinstance(value, str):
        return value
    raise ValueError("must be an alias of CACHES, such as 'default'")


def _prefix(value: Any) -> bytes:
    try:
        if isinstance(value, str) and not set(value) & set("{}"):
            return value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"must be text without braces, such as 'rl:'; {error}") from None
    raise ValueError("must be text without braces, such as 'rl:'")


def _algorithm(value: Any) -> str:
    return algorithms.find(value).name


def _rate_algorithm(value: Any) -> str:
    name = _algorithm(value)
    if name not in algorithms.BY_RATE:
        raise ValueError(f"limits of slots name it themselves; choose one of: {', '.join(algorithms.BY_RATE)}")
    return name


def _slot_seconds(value: Any) -> float:
    seconds = Number(3600, "number of seconds", " to 3600, such as 10", is_above_0=True)(value)
    if seconds < MIN_SLOT_SECONDS:
        raise ValueError(f"must be at least {MIN_SLOT_SECONDS:g}: slots are renewed four times in that time")
    return seconds


def _policy(value: Any) -> Policy:
    if value is not None:
        return Choice(POLICIES)(value)
    return "local" if conf.FAIL_OPEN is None else "open" if conf.FAIL_OPEN else "closed"


def _keys(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(
            "must be a dict of functions or dotted paths by name, such as {'tenant': 'shop.limits.tenant'}"
        )
    for name in value:
        if not isinstance(name, str) or not _KEY_NAME.fullmatch(name):
            raise ValueError(f"has the name {name!r}; use lower-case letters, digits and underscores, such as 'tenant'")
    return value


def _secrets(value: Any) -> tuple[str | bytes, ...]:
    given = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS] if value is None else value
    secrets = given if isinstance(given, (list, tuple)) and given else [given]
    if not all(map(_is_secret, secrets)):
        raise ValueError("must be text or bytes, or a list of these, the current one first")
    return tuple(secrets)


def _is_secret(value: object) -> bool:
    if isinstance(value, str):
        return bool(value) and not _LONE.search(value)
    return isinstance(value, bytes) and bool(value)


def token(value: Any) -> str:
    if isinstance(value, str) and _TOKEN.fullmatch(value):
        return value
    raise ValueError("must be text of 16 or more letters, digits and -._~+/=, such as secrets.token_urlsafe() makes")


def tokens(value: Any) -> tuple[str, ...]:
    given = value if isinstance(value, (list, tuple)) and value else [value]
    return tuple([token(each) for each in given])


def header(value: Any) -> str:
    if isinstance(value, str) and _HEADER.fullmatch(value):
        return value
    raise ValueError("must be the name of a header, such as 'X-Remote-User'")


def _function(value: Any) -> Callable[..., Any]:
    if isinstance(value, str):
        return find(value, "the path")
    if not callable(value):
        raise ValueError("must be callable, or the dotted path of a callable")
    return cast(Callable[..., Any], value)


def _exception(value: Any) -> type[Exception]:
    named = _function(value)
    if isinstance(named, type) and issubclass(named, Exception):
        return named
    raise ValueError("must be a class of exceptions, or its dotted path")


def _meta_key(value: Any) -> str | Callable[[Any], str]:
    if not isinstance(value, str) or "." in value:
        return _function(value)
    if not _META_KEY.fullmatch(value):
        header = re.sub(r"[^A-Z0-9]", "_", value.upper()).removeprefix("HTTP_")
        raise ValueError(f"must be a key of request.META, such as 'HTTP_{header}'")
    return value


def proxies(value: Any) -> int | tuple[Network, ...]:
    """The trusted proxies of `RATELIMIT_TRUSTED_PROXIES`. Raises `ValueError`."""
    right = "must be a number of proxies, or a list of networks such as ['10.0.0.0/8', 'unix']"
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value <= 32:
            raise ValueError(f"{right}; at most 32")
        return value
    return _networks(value, right, "unix")


def _networks(value: Any, right: str, other: str = "") -> tuple[Network, ...]:
    kinds = (str, ipaddress.IPv4Network, ipaddress.IPv6Network)
    if not isinstance(value, (list, tuple)) or not all(isinstance(network, kinds) for network in value):
        raise ValueError(right)
    try:
        return tuple(unmapped(ipaddress.ip_network(network)) for network in value if network != other)
    except ValueError as error:
        raise ValueError(f"{right}; {error}") from None


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


def _never_ban(value: Any) -> tuple[Network, ...]:
    if value is None:
        said = (getattr(settings, f"RATELIMIT_{name}", None) for name in ("TRUSTED_PROXIES", "IP_META_KEY"))
        return PRIVATE if all(value is None for value in said) else ()
    return _networks(value, "must be a list of networks, such as ['192.0.2.0/24']")


class Setting(Generic[T]):
    """One row: a setting's default as a project would write it, the check that reads it, and its documentation.

    `check` returns the value as the package uses it, or raises `ValueError` with what would be right. `doc` is
    reStructuredText; `shown` replaces a default that is another setting's. No error shows a secret.
    """

    def __init__(self, default: Any, check: Check[T], doc: str, *, shown: str = "", is_secret: bool = False) -> None:
        self.default, self.check, self.doc, self.shown, self.is_secret = default, check, doc, shown, is_secret

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, conf: None, owner: type) -> Setting[T]: ...

    @overload
    def __get__(self, conf: Table, owner: type) -> T: ...

    def __get__(self, conf: Table | None, owner: type) -> Setting[T] | T:
        if conf is None:
            return self
        # Kept where Python looks first: from now on, reading the setting costs what an attribute costs.
        value = vars(conf)[self.name] = self.read()
        return value

    def read(self) -> T:
        """Return the value that the project has set, or the default. Raises `ImproperlyConfigured`."""
        value = getattr(settings, f"RATELIMIT_{self.name}", self.default)
        try:
            return self.check(value)
        except (ValueError, ImproperlyConfigured) as error:
            shown = f"a {type(value).__name__}" if self.is_secret else repr(value)
            raise ImproperlyConfigured(f"RATELIMIT_{self.name} is {shown}: {error}") from None


SETTINGS: dict[str, Setting[Any]] = {}
"""All settings by name: the core's, and those of the annexes that are installed."""


class Table:
    """Settings that are declared as attributes. An annex has a table of its own."""

    def __init__(self) -> None:
        SETTINGS.update((name, row) for name, row in vars(type(self)).items() if isinstance(row, Setting))
        on_change(("RATELIMIT_*", "SECRET_KEY", "SECRET_KEY_FALLBACKS"), vars(self).clear)


class Conf(Table):
    """`RATELIMIT_*`. An attribute raises `ImproperlyConfigured` for a value it cannot take."""

    # fmt: off
    ENABLE = Setting(True, bool, "``False`` lets everything through, without asking Redis")
    USE_CACHE = Setting("default", _cache_alias, "the alias in ``CACHES``; must be ``django_redis.cache.RedisCache``")
    CACHE_PREFIX = Setting("rl:", _prefix, "what every key in Redis begins with; no braces")
    ALGORITHM = Setting("sliding_window", _rate_algorithm, "the algorithm of limits that name none")
    TIMEOUT = Setting(0.1, Number(3600, "number of seconds", ", such as 0.1", is_above_0=True),
        "seconds that Redis may keep one decision waiting: connecting, sending and reading, see :doc:`failures`")
    ON_STORE_ERROR = Setting(None, _policy,
        'what a decision is when Redis cannot be asked: ``"local"``, ``"open"`` or ``"closed"``, see :doc:`failures`',
        shown='``"local"``')
    FAIL_OPEN = Setting(None, or_none(bool),
        "django-ratelimit's: ``True`` is ``\"open\"``, ``False`` is ``\"closed\"``; the setting above goes first")
    DENY_CACHE_SECONDS = Setting(1, Number(3600, "number of seconds", ", such as 1"),
        "seconds that a refusal may be repeated without asking Redis, see :doc:`how-it-works`; ``0``: never; more than "
        "a second only while this process hears of changes, and not in a cluster")
    SLOT_SECONDS = Setting(10, _slot_seconds,
        "seconds after which the slots of a process that was killed end; while it lives, they are renewed four times "
        "in that time, see :doc:`concurrency`")
    CLOCK = Setting("redis", Choice(("redis", "client")),
        '``"client"`` for servers that refuse ``TIME`` in scripts; keep the clocks of your hosts together then')
    TRUSTED_PROXIES = Setting(None, or_none(proxies),
        "whose word is taken for the client's address: a list of networks, or how many proxies there are; ``0``: "
        "nobody's, as no proxy stands before the site; see :doc:`proxies`")
    PROXY_HEADER = Setting("X-Forwarded-For",
        lambda header: Choice(("X-Forwarded-For", "Forwarded"))(str(header).title()),
        'the header that these proxies write, or ``"Forwarded"``; never both, as clients could write the other one')
    IP_META_KEY = Setting(None, or_none(_meta_key),
        "where the address is, instead: a key of ``request.META``, a callable ``(request)``, or its dotted path")
    IPV4_MASK = Setting(32, Whole(0, 32, "prefix length"), "how many leading bits of an IPv4 address count")
    IPV6_MASK = Setting(64, Whole(0, 128, "prefix length"), "how many leading bits of an IPv6 address count")
    NEVER_BAN = Setting(None, _never_ban,
        "networks whose requests earn no ban and are not banned, see :doc:`bans`. By default private ones and this "
        "host, as long as nothing says where addresses come from: a ban would be of a proxy, and of all behind it",
        shown="private networks where ``RATELIMIT_TRUSTED_PROXIES`` is not set, else ``[]``")
    RULES = Setting[Any]([], lambda rules: rules, "what the middleware applies, see :doc:`middleware`")
    KEYS = Setting({}, _keys,
        "keys of this site by name, usable like the built-in ones: a function ``(request)``, a ``Key``, or the dotted "
        "path of one, see :doc:`keys`")
    HISTORY_DAYS = Setting(365, or_none(Number(36_500, "number of days", ", such as 365, or None", is_above_0=True)),
        "days that the database keeps the history of rules, overrides that have ended, and the hours of durable "
        ":doc:`statistics`, if they are installed; ``None``: for good, see :doc:`rules`")
    HEADERS = Setting(None, Choice((None, "draft-10", "x")),
        'which headers tell clients what is left: ``"draft-10"`` or ``"x"``, see :doc:`headers`', shown="``None``")
    KEY_SECRET = Setting(None, _secrets,
        "what digests of identities are keyed with; or a list whose others are earlier ones, by which overrides are "
        "still found, see :doc:`production`", shown="``SECRET_KEY`` and ``SECRET_KEY_FALLBACKS``", is_secret=True)
    EXCEPTION_CLASS = Setting(None, or_none(_exception),
        "an exception, or its dotted path, to raise instead of answering 429")
    VIEW = Setting(None, or_none(_function),
        "a callable ``(request, exception)``, plain or ``async``, or its dotted path, that makes the answer to a "
        "blocked request; ``exception.decision`` has the numbers. ``Cache-Control: no-store`` and ``Retry-After`` "
        "are added where it does not set them")
    SHOW_IDENTITIES = Setting("masked", Choice(("masked", "plain", "off")),
        'how those who are refused most, or use most, are kept for a day: ``"masked"`` (addresses as /24 and /56, the '
        'first letters of other values), ``"plain"`` or ``"off"``: not at all; see :doc:`statistics`')
    # fmt: on

    @cached_property
    def TRUSTS_SOCKET(self) -> bool:
        """Whether a client on a Unix socket, which has no address, is a trusted proxy."""
        value = getattr(settings, "RATELIMIT_TRUSTED_PROXIES", None)
        return isinstance(value, (list, tuple)) and "unix" in value


conf = Conf()
