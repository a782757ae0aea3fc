"""Arguments of commands that describe a request, or the subject of an override."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError
from django.http import HttpRequest
from django.utils import timezone

from ..identity.forwarded import parse_address, parse_network
from ..identity.keys import registered_keys
from ..limits.rate import SECOND, LimitError, duration, time_us
from ..operations.explain import Explanation
from ..operations.request_builder import build_request, find_user
from ..operations.subjects import Subject
from ..rules.describe import field_words

_FIELDS = {
    "header": ("header", ":", "may be repeated"),
    "cookie": ("cookie", "=", "may be repeated"),
    "query": ("get", "=", "a parameter of the query; may be repeated"),
    "field": ("post", "=", "a field of a form; may be repeated"),
    "json": ("json", "=", "a field of a JSON body (user.name: a nested one); may be repeated"),
    "key": ("", "=", "a key of RATELIMIT_KEYS; may be repeated"),
}
"""By option: the kind of the field in a key (empty: it is a key), the separator of name and value,
and the help.
"""


def add_subject(parser: Any) -> None:
    """Add the options that name the subject."""
    group = parser.add_argument_group("client", "One of these.")
    group.add_argument("--user", help="name or primary key")
    group.add_argument("--ip", help="address or network")
    group.add_argument(
        "--digest", help="digest of a client, as on pages and in the log: 32 hexadecimal digits"
    )
    _add_fields(group)


def _add_fields(group: Any) -> None:
    for option, (_kind, mark, text) in _FIELDS.items():
        group.add_argument(
            f"--{option}", action="append", default=[], metavar=f"NAME{mark}VALUE", help=text
        )


def add_request(parser: Any) -> None:
    """Add the options that describe a request."""
    parser.add_argument("--path", help="path and query, for example /api/?q=x (/)")
    parser.add_argument("--method", default="GET", type=str.upper)
    parser.add_argument("--host", help="host name")
    parser.add_argument("--user", help="name or primary key; default: no user is signed in")
    parser.add_argument("--ip", help="client address (127.0.0.1)")
    _add_fields(parser)


def add_length(*, default: str | None = None) -> Callable[[Any], None]:
    """Add the options for a duration."""

    def add(parser: Any) -> None:
        group = parser.add_mutually_exclusive_group(required=default is None)
        shown = "30m, 1h, 7d …" if default is None else f"30m, 7d …; {default} by default"
        group.add_argument("--for", dest="period", default=default, metavar="TIME", help=shown)
        group.add_argument("--for-good", action="store_true", help="without an end")

    return add


def seconds_of(option: str, period: str, otherwise: str = "") -> int:
    """The seconds of a time such as 30m.

    Raises `CommandError`, which names the option, and what would do as well.
    """
    try:
        return time_us(duration(period)) // SECOND
    except LimitError as error:
        raise CommandError(f"{option} {error}{otherwise}") from None


def format_moment(moment: datetime.datetime | None) -> str:
    """A moment in the current time zone, with its name; an empty text for None."""
    if moment is None:
        return ""
    local = timezone.localtime(moment) if timezone.is_aware(moment) else moment
    return f"{local:%Y-%m-%d %H:%M:%S %Z}".rstrip()


def require_urlconf() -> None:
    """Raise `CommandError` if the settings have no `ROOT_URLCONF`."""
    if not getattr(settings, "ROOT_URLCONF", None):
        raise CommandError("set ROOT_URLCONF: this command needs the URLs of the site")


def described(options: dict[str, Any]) -> HttpRequest:
    """The request that options describe. Raises `CommandError`."""
    address = options["ip"]
    if address is not None and parse_address(address) is None:
        raise CommandError(f"--ip {address!r} is not an address")
    try:
        return build_request(
            options["path"] or "/",
            options["method"],
            address,
            _user(options["user"]),
            host=options["host"],
            fields=_fields(options),
        )
    except LimitError as error:
        raise CommandError(str(error)) from error


def subject_of(options: dict[str, Any]) -> Subject:
    """The one subject that options name. Raises `CommandError`."""
    subjects = subjects_of(options)
    if len(subjects) != 1:
        names = ", ".join(("--user", "--ip", "--digest", *(f"--{option}" for option in _FIELDS)))
        raise CommandError(f"name one subject, by one of {names}; make one override for each")
    return subjects[0]


def subjects_of(options: dict[str, Any]) -> list[Subject]:
    """The subjects that options name. Raises `CommandError`."""
    address = options["ip"]
    if address is not None:
        try:
            parse_network(address)
        except ValueError:
            raise CommandError(f"--ip {address!r} is not an address or network") from None
    subjects = [Subject(field=field, value=value) for field, value in _fields(options)]
    subjects += [Subject(address=address)] if address else []
    subjects += [Subject(_user(options["user"]))] if options["user"] is not None else []
    subjects += [Subject(digest=options["digest"])] if options["digest"] else []
    return subjects


def _fields(options: dict[str, Any]) -> list[tuple[str, str]]:
    fields = []
    for option, (kind, mark, _help) in _FIELDS.items():
        for given in options[option]:
            name, found, value = given.partition(mark)
            if not found or not name.strip():
                raise CommandError(f"--{option} {given!r}: use NAME{mark}VALUE")
            name = name.strip()
            if not kind and name not in registered_keys():
                raise CommandError(
                    f"--key {name!r} is not in RATELIMIT_KEYS: "
                    f"{', '.join(registered_keys()) or 'empty'}"
                )
            fields.append((f"{kind}:{name}" if kind else name, value.strip()))
    return fields


def _user(name: str | None) -> Any:
    if name is None:
        return None
    user = find_user(name)
    if user is None:
        raise CommandError(f"--user {name!r}: no user has this name or primary key")
    return user


def hints(explanation: Explanation) -> list[str]:
    """Return options that would show more limits, or the right counts."""
    options = {
        kind: f"--{option} NAME{mark}VALUE" for option, (kind, mark, _help) in _FIELDS.items()
    }
    options["data"] = options["post"]
    lines = []
    for field in explanation.missing:
        kind, colon, name = field.partition(":")
        option = options[kind].replace("NAME", name) if colon else f"--key {field}=VALUE"
        lines.append(f"limits count by the {field_words(field)}: add {option}")
    if explanation.other_methods:
        lines.append(
            "other methods have more limits here: --method "
            f"{' or '.join(explanation.other_methods)}"
        )
    return lines


def verdict(explanation: Explanation) -> str:
    """Return the result of the next such request, in a sentence."""
    if explanation.stopped_by is not None:
        return f"{explanation.stopped_by.verdict}."
    if explanation.decision.allowed and explanation.unknown:
        return "The next request like this would be allowed, as far as known."
    return (
        "The next request like this would be "
        f"{'allowed' if explanation.decision.allowed else 'refused'}."
    )
