"""`Extension`: the interface by which an optional app (under `contrib/`) extends the core.

The core never imports an optional app. It calls the extensions that `AppConfig.ready` has
registered, in the order of `INSTALLED_APPS`; without any, each hook is a loop over an empty list.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured

if TYPE_CHECKING:
    from datetime import datetime

    from django.db.models import Model, QuerySet
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
"""Which optional app defines a setting. If a project uses the setting without the app, the system
check names the app to install.
"""
VERBS_OF_ANNEXES = {
    "grpc": "gateway",
    "proxy": "gateway",
    "replay": "replay",
    "stats": "statistics",
}
"""Which optional app defines a verb of `manage.py ratelimit`, by its first word."""
FIELDS_OF_ANNEXES = {"descriptor": "gateway", "durable": "statistics"}
"""Which optional app defines an option of rules."""
PLACES_OF_ANNEXES = ("descriptor",)
"""Those of these options that say where a rule applies. Without its app, such a rule does not
apply.
"""


class Finding(NamedTuple):
    """The effect of an optional app on a request that no limit refuses, for the inspector.

    - `label`, `words`: its name, and its state in one line;
    - `passes`: whether it lets the request through; None if unknown;
    - `verdict`: the sentence to show if it does not;
    - `url_name`, `query`: its page, for users with one of the `permissions`.
    """

    label: str
    words: str
    passes: bool | None
    verdict: str
    url_name: str
    query: str
    permissions: Sequence[str]


class ClientRecord(NamedTuple):
    """What an optional app has recorded about a client, as a table of its page.

    - `name`: the parts of its name, as `RATELIMIT_SHOW_IDENTITIES` allows;
    - `title`, `headings`, `rows`: the table, whose cells are texts or safe HTML.
    """

    name: Sequence[tuple[str, str]]
    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Any]]


class Metric(NamedTuple):
    """A gauge: its name, its help text and the names of its labels.

    `read` returns a number for each tuple of label values, or raises `StoreError`.
    """

    name: str
    help: str
    labels: Sequence[str]
    read: Callable[[], Mapping[tuple[str, ...], float]]


class Column(NamedTuple):
    """A column of the lists of rules and of limits: its name, its heading and its cells.

    `cells(request, rules)` returns a cell for each limit name that has one; `rules` maps the names
    of the list to their rows, or to None if a limit has no rule. Raises `StoreError`.
    """

    name: str
    heading: str | Promise
    cells: Callable[[HttpRequest, Mapping[str, Any]], Mapping[str, object]]


class HomeSection(NamedTuple):
    """A section of the page of the app.

    - `heading`; `body`: safe HTML;
    - `is_problem`: it stands before the others.
    """

    heading: Any
    body: str
    is_problem: bool = False


class Extension:
    """What an optional app adds to the core. Every hook has an empty default.

    >>> class Audit(Extension):
    ...     name = "audit"
    """

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
    tasks: Mapping[str, str] = MappingProxyType({})
    """Its tasks that run in the background, by name: what each does, for `manage.py ratelimit
    health`.
    """

    def snapshot(self, using: str) -> object:
        """Return the app's part of the snapshot, as JSON, from this database.

        None: the app publishes nothing. A process without the app does not change the published
        part.
        """

    def load(self, part: Any, before: Any, problems: list[str]) -> object:
        """Compile the app's part of the snapshot, once per revision.

        Args:
            part: The published part. None: nothing is published.
            before: The result for the previous revision, or None.
            problems: A list to which entries that cannot be parsed are added.

        Returns:
            The compiled part, which `Ruleset.parts` stores under the app's name.
        """

    def on_decision(
        self,
        charges: Sequence[Any],
        decision: Any,
        seconds: float,
        exempt: Sequence[Any],
        state: Any,
    ) -> None:
        """Count a decision about a hit.

        It may only add to memory, which `store.flusher` writes once a second.

        - `charges`: the `DecidedCharge` of each of the decision's limits;
        - `exempt`: the charges that an override has removed;
        - `seconds`: how long the decision took;
        - `state`: the `RequestState` of the request, or None. The same request may have several
          decisions.
        """

    def on_failed_rule(self, name: str) -> None:
        """Count that a rule could not be applied to a request, which continues without it."""

    def on_message(self, words: Collection[bytes]) -> None:
        """Handle the received messages `ANNEX <name> <word> ...` with this app's name.

        `words` contains the words of all of them.
        """

    def is_urgent(self) -> bool:
        """Return whether new rules are loaded at once, instead of within half a second."""
        return False

    def inspect(self, marks: Sequence[Any], has_handler: bool) -> Iterable[Finding]:
        """Return the effect of the app's decorators on a request.

        Args:
            marks: The marks that the decorators have left on the view.
            has_handler: Whether the middleware or DRF converts exceptions to responses; see
                `error_details`.
        """
        return ()

    def error_details(self, error: Exception) -> Any:
        """Return the `ErrorDetails` for the response to an exception that a view raised.

        None if the exception is not one of the app's.
        """

    def notices(self, rule: Any) -> Iterable[str]:
        """Return sentences about a compiled rule, shown in its form and when it is saved."""
        return ()

    def links(self, request: HttpRequest, rule: Any) -> Iterable[tuple[str, str]]:
        """Return the links on the form of a rule, as (label, URL)."""
        return ()

    def limit_url(self, request: HttpRequest, name: str) -> str:
        """Return the URL of the app's page about the limit of this name, or an empty text."""
        return ""

    def rehearsal(self, rule: Any) -> str:
        """Return a sentence about the requests that a rule in shadow mode would have refused."""
        return ""

    def history(self, met: Any) -> str:
        """Return a sentence with the app's information about a client, for the inspector."""
        return ""

    def client(self, request: Any, digest: str, name: str = "") -> Mapping[str, ClientRecord]:
        """Return the app's records of the clients whose digests begin with `digest`, by digest.

        With `name`, only records under that limit are returned. Raises `StoreError`.
        """
        return {}

    def home(self, request: Any) -> Iterable[HomeSection]:
        """Return the sections that the app adds to the home page, for a user who may see rules.

        Raises `StoreError`.
        """
        return ()

    def metrics(self) -> Iterable[Metric]:
        """Return the app's gauges."""
        return ()

    def tend(self) -> None:
        """Start the background work that is due.

        One process calls it every ten seconds while requests arrive.
        """

    def outdated(self, using: str, before: datetime) -> Mapping[str, QuerySet[Model]]:
        """Return the app's rows from before this moment, as ordered querysets, by name.

        `RATELIMIT_HISTORY_DAYS` and `manage.py ratelimit history prune` delete these rows.
        """
        return {}

    def health(self) -> Iterable[str]:
        """Return warnings for `manage.py ratelimit health`. Raises `StoreError`."""
        return ()

    def forget(self, digests: Collection[bytes]) -> Mapping[str, int]:
        """Erase everything about one identity, in Redis and in all processes.

        `digests` contains one digest of the identity for each secret. Return the number of erased
        items by kind. The hook is called twice: the second call erases what processes were writing
        during the first. Raises `StoreError`.
        """
        return {}


extensions: list[Extension] = []
"""The extensions of the optional apps that are installed."""
decision_hooks: list[Callable[..., None]] = []
"""`Extension.on_decision` of those that have one. Without any, a hit pays for a look at an empty
list.
"""


def register(extension: Extension) -> None:
    """Register an optional app. `AppConfig.ready` calls this once per process."""
    if extension.name not in {other.name for other in extensions}:
        extensions.append(extension)
        if type(extension).on_decision is not Extension.on_decision:
            decision_hooks.append(extension.on_decision)


def is_installed(name: str) -> bool:
    """Return whether an optional app is installed.

    It works before `AppConfig.ready` as well, because models may import limiters.
    """
    if apps.ready:
        return any(extension.name == name for extension in extensions)
    return apps.is_installed(f"django_ratelimit_lua.contrib.{name}")


def annex_options() -> dict[str, Any]:
    """Return the options that installed optional apps add to rules, by name."""
    return {name: option for each in extensions for name, option in each.options.items()}


def install(name: str) -> str:
    """Return a sentence that explains how to install an optional app.

    >>> install("gateway")
    'Add "django_ratelimit_lua.contrib.gateway" to INSTALLED_APPS'
    """
    return f'Add "django_ratelimit_lua.contrib.{name}" to INSTALLED_APPS'


def require(name: str) -> None:
    """Raise `ImproperlyConfigured` if an optional app is not installed.

    Without this check, its models would become part of the core's app.
    """
    if not apps.is_installed(f"django_ratelimit_lua.contrib.{name}"):
        raise ImproperlyConfigured(
            f"django_ratelimit_lua.contrib.{name} is not installed. {install(name)}."
        )
