"""The settings, read when they are first used, through one typed object.

What was read is kept until Django says that settings have changed, as `override_settings` does.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Any, cast

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.functional import cached_property

from ..limits import algorithms
from ..limits.limit import POLICIES, Policy
from ..limits.rate import LimitError
from .callables import find

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
CLOCKS = ("redis", "client")


_LONE = re.compile("[\ud800-\udfff]")
"""Half a character, which UTF-8 has no bytes for."""
_META_KEY = re.compile(r"[A-Z][A-Z0-9_]*")
"""As CGI writes them: headers as HTTP_X_REAL_IP, the rest as REMOTE_ADDR."""


_MAPPED = 96  # Leading bits of an IPv6 address that may say that the rest is an IPv4 address.


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


def _is_secret(value: object) -> bool:
    if isinstance(value, str):
        return bool(value) and not _LONE.search(value)
    return isinstance(value, bytes) and bool(value)


def _bad(name: str, value: object, right: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(f"RATELIMIT_{name} is {value!r}: {right}")


class Conf:
    """`RATELIMIT_*`, with defaults. A property raises `ImproperlyConfigured` for a value it cannot take."""

    @cached_property
    def ENABLE(self) -> bool:
        return bool(getattr(settings, "RATELIMIT_ENABLE", True))

    @cached_property
    def USE_CACHE(self) -> str:
        """The alias in `CACHES`, which must be django-redis."""
        value = getattr(settings, "RATELIMIT_USE_CACHE", "default")
        if not isinstance(value, str) or not value:
            raise _bad("USE_CACHE", value, "must be an alias of CACHES, such as 'default'")
        return value

    @cached_property
    def CACHE_PREFIX(self) -> bytes:
        """What every key in Redis begins with."""
        value = getattr(settings, "RATELIMIT_CACHE_PREFIX", "rl:")
        if not isinstance(value, str) or set(value) & set("{}"):
            raise _bad("CACHE_PREFIX", value, "must be text without braces, such as 'rl:'")
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise _bad("CACHE_PREFIX", value, f"must be text without braces, such as 'rl:'; {error}") from None

    @cached_property
    def ALGORITHM(self) -> str:
        """The algorithm of limits that name none."""
        return self._algorithm("ALGORITHM", "sliding_window")

    @cached_property
    def THROTTLE_ALGORITHM(self) -> str:
        """The algorithm of DRF throttles that name none; what DRF documents is a sliding log."""
        return self._algorithm("THROTTLE_ALGORITHM", "sliding_log")

    @cached_property
    def TIMEOUT(self) -> float:
        """Seconds that Redis may keep one decision waiting: connecting, sending and reading together."""
        value = getattr(settings, "RATELIMIT_TIMEOUT", 0.1)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 3600:
            raise _bad("TIMEOUT", value, "must be a number of seconds above 0, such as 0.1")
        return float(value)

    @cached_property
    def MAX_WAIT(self) -> float:
        """Seconds that a request is held at most by a limit that makes callers wait and names no `max_wait`."""
        value = getattr(settings, "RATELIMIT_MAX_WAIT", 5.0)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 3600:
            raise _bad("MAX_WAIT", value, "must be a number of seconds from 0, such as 5")
        return float(value)

    @cached_property
    def ON_STORE_ERROR(self) -> Policy:
        """What a decision is when Redis cannot be asked."""
        value = getattr(settings, "RATELIMIT_ON_STORE_ERROR", None)
        if value is None:
            fail_open = getattr(settings, "RATELIMIT_FAIL_OPEN", None)
            return "local" if fail_open is None else "open" if fail_open else "closed"
        if value not in POLICIES:
            raise _bad("ON_STORE_ERROR", value, f"choose one of: {', '.join(POLICIES)}")
        return cast(Policy, value)

    @cached_property
    def LOCAL_FLOOR(self) -> int:
        """The least units that this process's share of a limit has when Redis cannot be asked."""
        value = getattr(settings, "RATELIMIT_LOCAL_FLOOR", 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise _bad("LOCAL_FLOOR", value, "must be a whole number from 0, such as 1")
        return value

    @cached_property
    def INSTANCE_WEIGHT(self) -> float:
        """This process's part of limits with `split="weighted"`, as against the other processes' weights."""
        value = getattr(settings, "RATELIMIT_INSTANCE_WEIGHT", 1)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1_000_000:
            raise _bad("INSTANCE_WEIGHT", value, "must be a number above 0, such as 1")
        return float(value)

    @cached_property
    def CLOCK(self) -> str:
        """Whose clock counts: "redis", or "client" for servers that refuse TIME in scripts."""
        value = getattr(settings, "RATELIMIT_CLOCK", "redis")
        if value not in CLOCKS:
            raise _bad("CLOCK", value, f"choose one of: {', '.join(CLOCKS)}")
        return cast(str, value)

    @cached_property
    def HEADERS(self) -> str | None:
        """Which headers tell clients what is left: None, "draft-10" or "x"."""
        value = getattr(settings, "RATELIMIT_HEADERS", None)
        if value not in (None, "draft-10", "x"):
            raise _bad("HEADERS", value, "choose one of: None, draft-10, x")
        return cast("str | None", value)

    @cached_property
    def RULES_MAX_AGE(self) -> float | None:
        """Seconds that a request may go by the rules as this process knows them, where no call for its limits asks.

        None: 0 where that costs at most one call, else 1.
        """
        value = getattr(settings, "RATELIMIT_RULES_MAX_AGE", None)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 3600:
            raise _bad("RULES_MAX_AGE", value, "must be a number of seconds from 0, such as 1")
        return float(value)

    @cached_property
    def HISTORY_DAYS(self) -> float | None:
        """Days that the history of rules and overrides that have ended are kept in the database; None: for good."""
        value = getattr(settings, "RATELIMIT_HISTORY_DAYS", 365)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 36_500:
            raise _bad("HISTORY_DAYS", value, "must be a number of days above 0, such as 365, or None")
        return float(value)

    @cached_property
    def DENY_CACHE_SECONDS(self) -> float:
        """Seconds that a refusal may be repeated without asking Redis; 0: never."""
        value = getattr(settings, "RATELIMIT_DENY_CACHE_SECONDS", 1.0)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 3600:
            raise _bad("DENY_CACHE_SECONDS", value, "must be a number of seconds from 0, such as 1")
        return float(value)

    @cached_property
    def BODY_BYTES(self) -> int:
        """The largest body that keys and overrides by a field of it look at; 0: none."""
        value = getattr(settings, "RATELIMIT_BODY_BYTES", 64 * 1024)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise _bad("BODY_BYTES", value, "must be a number of bytes from 0, such as 65536")
        return value

    @cached_property
    def KEY_SECRET(self) -> str | bytes:
        """What the digests of identities are keyed with."""
        value = getattr(settings, "RATELIMIT_KEY_SECRET", None) or settings.SECRET_KEY
        if not _is_secret(value):
            # The value itself is not shown: it may be most of a secret.
            raise ImproperlyConfigured(f"RATELIMIT_KEY_SECRET is a {type(value).__name__}: must be text or bytes")
        return cast("str | bytes", value)

    @cached_property
    def KEY_SECRET_FALLBACKS(self) -> tuple[str | bytes, ...]:
        """What they were keyed with before: what is said of somebody by such a digest is still found."""
        own = getattr(settings, "RATELIMIT_KEY_SECRET", None)
        default = () if own else settings.SECRET_KEY_FALLBACKS
        value = getattr(settings, "RATELIMIT_KEY_SECRET_FALLBACKS", default)
        if not isinstance(value, (list, tuple)) or not all(map(_is_secret, value)):
            # The value itself is not shown: there are secrets in it.
            raise ImproperlyConfigured("RATELIMIT_KEY_SECRET_FALLBACKS must be a list of earlier secrets")
        return tuple(value)

    @cached_property
    def IP_META_KEY(self) -> str | Callable[[Any], str] | None:
        """Where the client's address is: a key of `request.META`, a callable, or the dotted path of one."""
        value = getattr(settings, "RATELIMIT_IP_META_KEY", None)
        if value is None or not isinstance(value, str) or "." in value:
            return None if value is None else self._callable("IP_META_KEY")
        if not _META_KEY.fullmatch(value):
            header = re.sub(r"[^A-Z0-9]", "_", value.upper()).removeprefix("HTTP_")
            raise _bad("IP_META_KEY", value, f"must be a key of request.META, such as 'HTTP_{header}'")
        return value

    @cached_property
    def TRUSTED_PROXIES(self) -> int | tuple[Network, ...] | None:
        """How many proxies stand before us, or the networks they ask from; None: none is trusted."""
        value = getattr(settings, "RATELIMIT_TRUSTED_PROXIES", None)
        right = "must be a number of proxies, or a list of networks such as ['10.0.0.0/8', 'unix']"
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool):
            if not 0 <= value <= 32:
                raise _bad("TRUSTED_PROXIES", value, f"{right}; at most 32")
            return value
        if not isinstance(value, (list, tuple)):
            raise _bad("TRUSTED_PROXIES", value, right)
        if not all(isinstance(network, (str, ipaddress.IPv4Network, ipaddress.IPv6Network)) for network in value):
            raise _bad("TRUSTED_PROXIES", value, right)
        try:
            return tuple(unmapped(ipaddress.ip_network(network)) for network in value if network != "unix")
        except ValueError as error:
            raise _bad("TRUSTED_PROXIES", value, f"{right}; {error}") from None

    @cached_property
    def TRUSTS_SOCKET(self) -> bool:
        """Whether who asks by a Unix socket, and so without an address, is a trusted proxy."""
        value = getattr(settings, "RATELIMIT_TRUSTED_PROXIES", None)
        return isinstance(value, (list, tuple)) and "unix" in value

    @cached_property
    def PROXY_HEADER(self) -> str:
        """The header that the trusted proxies write. Never both: clients could write the other one."""
        value = getattr(settings, "RATELIMIT_PROXY_HEADER", "X-Forwarded-For")
        if not isinstance(value, str) or value.lower() not in ("x-forwarded-for", "forwarded"):
            raise _bad("PROXY_HEADER", value, "choose one of: X-Forwarded-For, Forwarded")
        return value

    @cached_property
    def IPV4_MASK(self) -> int:
        return self._mask("IPV4_MASK", 32, 32)

    @cached_property
    def IPV6_MASK(self) -> int:
        return self._mask("IPV6_MASK", 64, 128)

    @staticmethod
    def _algorithm(name: str, default: str) -> str:
        value = getattr(settings, f"RATELIMIT_{name}", default)
        try:
            return algorithms.find(value).name
        except LimitError as error:
            raise _bad(name, value, str(error)) from None

    @staticmethod
    def _mask(name: str, default: int, longest: int) -> int:
        value = getattr(settings, f"RATELIMIT_{name}", default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= longest:
            raise _bad(name, value, f"must be a prefix length from 0 to {longest}")
        return value

    @cached_property
    def EXCEPTION_CLASS(self) -> type[Exception] | None:
        """Raised instead of answering 429, where set."""
        found = self._callable("EXCEPTION_CLASS")
        if found is not None and not (isinstance(found, type) and issubclass(found, Exception)):
            raise _bad("EXCEPTION_CLASS", found, "must be a class of exceptions, or its dotted path")
        return found

    @cached_property
    def VIEW(self) -> Callable[..., Any] | None:
        """Called with the request and the `Ratelimited` to make the answer to a blocked request, where set."""
        return self._callable("VIEW")

    @staticmethod
    def _callable(name: str) -> Callable[..., Any] | None:
        value = getattr(settings, f"RATELIMIT_{name}", None)
        if value is None:
            return None
        if isinstance(value, str):
            return find(value, f"RATELIMIT_{name}")
        if not callable(value):
            raise _bad(name, value, "must be callable, or the dotted path of a callable")
        return cast(Callable[..., Any], value)


conf = Conf()


def _settings_changed(*, setting: str, **kwargs: object) -> None:
    if setting in ("SECRET_KEY", "SECRET_KEY_FALLBACKS") or setting.startswith("RATELIMIT_"):
        vars(conf).clear()


setting_changed.connect(_settings_changed, dispatch_uid="django_ratelimit_lua.conf")
NAMES = tuple(name for name in vars(Conf) if name.isupper() and name != "TRUSTS_SOCKET")
"""Every setting but `RATELIMIT_FAIL_OPEN`, which `ON_STORE_ERROR` reads."""
