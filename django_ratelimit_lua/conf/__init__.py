"""All settings in one table, each read when it is first used.

A value is cached until Django signals that a setting has changed, as `override_settings` does. The
documentation's page of settings and `manage.py check` read this table. This room imports
`limits`, and does not depend on code that uses a setting.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any, Generic, TypeVar, overload

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.functional import cached_property

from ..limits.algorithms.algorithm import POLICIES, Policy
from ..limits.values import Check, Choice, Number, Whole, flag, or_none
from . import values

__all__ = ["Setting", "Table", "conf", "on_change", "values"]

T = TypeVar("T")

_receivers: list[tuple[tuple[str, ...], Callable[[], object]]] = []


def on_change(names: tuple[str, ...], receive: Callable[[], object]) -> None:
    """Call a function whenever one of these settings has changed.

    Functions are called in the order of their registration. A name may end in a star: "RATELIMIT_*"
    matches all settings of this package.
    """
    _receivers.append((names, receive))


def _call_receivers(*, setting: str, **kwargs: object) -> None:
    """Call the functions that wait for a change of this setting."""
    if setting == "CACHES":
        # Django's own receiver may come after this one. Until it has run,
        # `django.core.cache.caches` has the previous aliases, and another thread would open
        # connections to them.
        from django.test.signals import clear_cache_handlers

        clear_cache_handlers(setting=setting)
    for names, receive in _receivers:
        if any(fnmatchcase(setting, name) for name in names):
            receive()


setting_changed.connect(_call_receivers, dispatch_uid="django_ratelimit_lua.conf")


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
        value = self.read()
        # As an attribute of the table, which Python finds first: reading it again calls no code.
        vars(conf)[self.name] = value
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
        on_change(("RATELIMIT_*", "SECRET_KEY", "SECRET_KEY_FALLBACKS"), self._forget_values)

    def _forget_values(self) -> None:
        """Drop the values that were read, so that they are read again."""
        vars(self).clear()


def _check_policy(value: object) -> Policy:
    """Check for a policy. None stands for the one that `RATELIMIT_FAIL_OPEN` names, or "local"."""
    if value is not None:
        return Choice(POLICIES)(value)
    if conf.FAIL_OPEN is None:
        return "local"
    if conf.FAIL_OPEN:
        return "open"
    return "closed"


class Conf(Table):
    """The settings `RATELIMIT_*`. Reading an invalid value raises `ImproperlyConfigured`."""

    ENABLE = Setting(True, flag, "``False`` allows everything, without a call to Redis")
    USE_CACHE = Setting(
        "default",
        values.check_alias,
        "the alias in ``CACHES``; must be ``django_redis.cache.RedisCache``",
    )
    CACHE_PREFIX = Setting(
        "rl:", values.check_prefix, "the prefix of all keys in Redis, without braces"
    )
    ALGORITHM = Setting("sliding_window", values.check_algorithm, "the default algorithm")
    TIMEOUT = Setting(
        0.1,
        Number(3600, "number of seconds", ", such as 0.1", is_above_0=True),
        "the deadline of one decision in seconds: to connect, send and read, see :doc:`failures`",
    )
    ON_STORE_ERROR = Setting(
        None,
        _check_policy,
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
        values.check_slot_seconds,
        "seconds after which slots expire that are not renewed, because their process was killed; "
        "a running process renews them four times in that time, see "
        ":doc:`/how-to/limit-concurrency`",
    )
    WEIGHT = Setting(
        1,
        values.check_weight,
        "the weight of this process' host in limits with ``split``, if the admin page *Processes* "
        "sets none for the host, see :doc:`/how-to/hot-keys`",
    )
    TRUSTED_PROXIES = Setting(
        None,
        or_none(values.check_proxies),
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
        or_none(values.check_meta_key),
        "another source of the address: a key of ``request.META``, a callable ``(request)``, or "
        "its dotted path",
    )
    NETWORKS = Setting(
        {},
        values.check_named_networks,
        "networks by name, for the condition ``network`` of rules: a list of ranges, or the path "
        "of a JSON file as Google, Bing and OpenAI publish it, see :doc:`/how-to/crawlers`",
    )
    REQUEST_START = Setting(
        None,
        or_none(values.check_header_key),
        "the header in which a proxy of ``RATELIMIT_TRUSTED_PROXIES`` writes when it received the "
        "request, such as ``X-Request-Start``, see :doc:`/how-to/crawlers`",
    )
    EXEMPT = Setting(
        None,
        or_none(values.check_exemption),
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
        values.check_never_ban,
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
        values.check_keys,
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
        values.check_secrets,
        "the secret for digests of identities, or a list: the current one, then earlier ones, with "
        "which overrides still match, see :doc:`keys`",
        shown="``SECRET_KEY`` and ``SECRET_KEY_FALLBACKS``",
        is_secret=True,
    )
    EXCEPTION_CLASS = Setting(
        None,
        or_none(values.check_exception),
        "an exception, or its dotted path, to raise instead of answering 429",
    )
    VIEW = Setting(
        None,
        or_none(values.check_function),
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
