"""`Extension`: the interface by which an optional app (under `contrib/`) extends the core.

The core never imports an optional app. It calls the extensions that `AppConfig.ready` registered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured

if TYPE_CHECKING:
    from django.http import HttpRequest
    from django.utils.functional import Promise

ANNEXES = ("statistics", "breakers", "replay", "gateway")
SETTINGS_OF_ANNEXES = {
    "METRICS_TOKEN": "statistics",
    "OPENTELEMETRY": "statistics",
    "GATEWAY_DIALECT": "gateway",
    "GATEWAY_SECRET": "gateway",
    "GATEWAY_USER_HEADER": "gateway",
}
"""Which optional app defines a setting. Without the app, the system check names it."""
VERBS_OF_ANNEXES = {
    "grpc": "gateway",
    "proxy": "gateway",
    "replay": "replay",
}
"""Which optional app defines a verb of `manage.py ratelimit`, by its first word."""
FIELDS_OF_ANNEXES = {"descriptor": "gateway", "durable": "statistics"}
"""Which optional app defines an option of rules."""
PLACES_OF_ANNEXES = ("descriptor",)
"""Those of these options that say where a rule applies. Without its app, such a rule does not
apply.
"""


class ClientRecord(NamedTuple):
    """The name of a client, and a table about it, whose cells are texts or safe HTML."""

    name: Sequence[tuple[str, str]]
    title: str
    headings: Sequence[str]
    rows: list[Sequence[Any]]


class Metric(NamedTuple):
    """A gauge: `read` returns a number for each tuple of label values, or raises `StoreError`."""

    name: str
    help: str
    labels: Sequence[str]
    read: Callable[[], Mapping[tuple[str, ...], float]]


class Column(NamedTuple):
    """A column of the list of limits.

    `cells(request, rules)` returns the cells by the names of limits, or raises `StoreError`;
    `rules` has the row of each name, or None.
    """

    name: str
    heading: str | Promise
    cells: Callable[[HttpRequest, Mapping[str, Any]], Mapping[str, object]]


class Section(NamedTuple):
    """A section of a page; `body` is safe HTML. Problems stand before the others."""

    heading: Any
    body: str
    is_problem: bool = False


class Extension:
    """The hooks of an optional app. Its settings, checks, URLs and models are any Django app's."""

    name = ""
    """The name of its folder in `contrib/`."""
    verbs: Sequence[str] = ()
    """Modules that declare verbs of `manage.py ratelimit`."""
    options: Mapping[str, Any] = MappingProxyType({})
    """Options that it adds to rules: a `limits.options.Option` by name, see `FIELDS_OF_ANNEXES`. An
    empty or false value counts as missing.
    """
    columns: Sequence[Column] = ()
    """Columns that it adds to lists."""

    def sections(self, request: Any, name: str = "") -> Iterable[Section]:
        """Return sections of a page, for a user who may see rules. Raises `StoreError`.

        Args:
            request: The request for the page.
            name: The limit that the page is about; empty: the page *Overview*.
        """
        return ()

    def client(self, request: Any, digest: str, name: str = "") -> Mapping[str, ClientRecord]:
        """Return the records of clients, under one limit or under all, by digest.

        `digest` is the beginning of the digests. Raises `StoreError`.
        """
        return {}

    def metrics(self) -> Iterable[Metric]:
        """Return the app's gauges."""
        return ()

    def on_decision(
        self, charges: Any, decision: Any, seconds: float, exempt: Any, state: Any
    ) -> None:
        """Count a decision about a hit in memory, which `store.flusher` writes.

        `charges` are `DecidedCharge`, and `exempt` those that an override has removed. `state` is
        the `RequestState` of the request, which may have several decisions, or None.
        """

    def snapshot(self, using: str) -> object:
        """Return what all processes get as this app's part of the rules (`Ruleset.parts`).

        It is read from this database, and made of values of JSON. None: nothing.
        """

    def on_message(self, words: Collection[bytes]) -> None:
        """Handle the received messages `ANNEX <name> <word> ...` with this app's name."""

    def forget(self, digests: Collection[bytes]) -> Mapping[str, int]:
        """Erase everything about one identity, in Redis and in all processes.

        `digests` has one digest for each secret. Return the number of erased items by kind. A
        second call erases what processes were writing during the first. Raises `StoreError`.
        """
        return {}


extensions: list[Extension] = []
"""The extensions of the optional apps that are installed."""
decision_hooks: list[Callable[..., None]] = []
"""`Extension.on_decision` of those that have one. A hit without any looks at an empty list."""


def register(extension: Extension) -> None:
    """Register an optional app, unless it is registered already, for `AppConfig.ready`."""
    if any(registered.name == extension.name for registered in extensions):
        return
    extensions.append(extension)
    if type(extension).on_decision is not Extension.on_decision:  # The app has a hook.
        decision_hooks.append(extension.on_decision)


def is_installed(name: str) -> bool:
    """Return whether an optional app is installed, also before `AppConfig.ready`."""
    if apps.ready:
        return any(extension.name == name for extension in extensions)
    return apps.is_installed(f"django_ratelimit_lua.contrib.{name}")


def annex_options() -> dict[str, Any]:
    """Return the options that installed optional apps add to rules, by name."""
    return {name: option for each in extensions for name, option in each.options.items()}


def install_hint(name: str) -> str:
    """Return a sentence that explains how to install an optional app.

    >>> install_hint("gateway")
    'Add "django_ratelimit_lua.contrib.gateway" to INSTALLED_APPS'
    """
    return f'Add "django_ratelimit_lua.contrib.{name}" to INSTALLED_APPS'


def require_annex(name: str) -> None:
    """Raise `ImproperlyConfigured` if an optional app is not installed.

    Without this, Django would take its models for models of the core.
    """
    if not apps.is_installed(f"django_ratelimit_lua.contrib.{name}"):
        raise ImproperlyConfigured(
            f"django_ratelimit_lua.contrib.{name} is not installed. {install_hint(name)}."
        )
