"""Clients in words, with links to their page, their user and the form of an override."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlencode

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils.translation import gettext as _

from ..extension import extensions
from ..identity.names import NOTHING, Name, Part
from ..models import RateLimitOverride
from ..operations.bans import active_bans
from ..operations.formatting import readable
from ..rules.describe import key_label
from .client_limits import override_subject, overrides_of
from .pages import admin_url, may, may_see_rules, page_query

SEE_NAMES = "django_ratelimit_lua.view_identities"
"""May see the names of clients."""
LETTERS = 12
"""Letters of a digest that stand for a client, as on the page of bans and in the command."""


def visible_name(request: HttpRequest, name: Iterable[Part]) -> Name:
    """Return the name of a client; empty if the user may not see it."""
    if not request.user.has_perm(SEE_NAMES):
        return []
    return list(name)


def readable_names(names: Sequence[Name]) -> list[str]:
    """Return the names of clients as the pages show them. The users are read by one query."""
    users = _find_users([value for name in names for kind, value in name if kind == "user"])
    return [
        ", ".join([_readable_part(kind, value, users) for kind, value in name]) for name in names
    ]


def identity_words(name: Iterable[Part]) -> str:
    """Describe an identity by its masked parts, without looking up users."""
    return ", ".join([_part_words(kind, value) for kind, value in name])


def may_see_overrides(request: HttpRequest) -> bool:
    """Return whether the user may see the overrides. All users that may end them may see them."""
    return may(request, "view_ratelimitoverride", "change_ratelimitoverride", "block_identity")


def may_see_clients(request: HttpRequest) -> bool:
    """Return whether the user may see the clients and bans: all that may see rules or overrides."""
    return may_see_rules(request) or may_see_overrides(request)


def may_see_names(request: HttpRequest) -> bool:
    """Return whether pages about a client may show the client and the reason of an override."""
    return may_see_overrides(request) or may(request, "view_identities")


def override_words(request: HttpRequest, override: RateLimitOverride) -> str:
    """Return the client of an override in words, or its number if the user may not see names."""
    if may_see_names(request):
        return str(override)
    return numbered_override(override.pk)


def numbered_override(number: int | None) -> str:
    """Return the name of an override for users that may not see its client."""
    name = _("Override")
    return f"{name} {number}"


def client_words(name: str, digest: str) -> str:
    """Return a name for a client. The digest distinguishes clients with the same masked name."""
    short = digest[:LETTERS]
    if not name:
        return short
    return f"{name} ({short})"


def _find_users(keys: Sequence[str]) -> dict[str, User]:
    """Return the users with these primary keys, by the keys. Some of the keys may be no keys."""
    model = get_user_model()
    valid = []
    for key in keys:
        with suppress(ValidationError):
            valid.append(model._meta.pk.to_python(key))
    return {str(user.pk): user for user in model._default_manager.filter(pk__in=valid)}


def _readable_part(kind: str, value: str, users: Mapping[str, User]) -> str:
    """Return a part of an identity in words. A user in `users` is named."""
    if kind == "user" and value in users:
        return _("user %(user)s") % {"user": users[value]}
    value = readable(value)
    if kind == "ip":
        return value
    if kind and value == NOTHING:
        return _("no %(kind)s") % {"kind": key_label(kind)}
    return _part_words(kind, value)


def _part_words(kind: str, value: str) -> str:
    if not kind:
        return value
    return f"{key_label(kind)} {value}"


class ClientLinks(NamedTuple):
    """The actions of a row about a client, for users with permission.

    - `digest`: its beginning is shown; `words`: the client in words; `url`: its page;
    - `block`: the override that blocks it, or None; `override_url`: the form of an override.
    """

    digest: str
    words: str
    url: str
    block: RateLimitOverride | None
    override_url: str


def client_url(request: HttpRequest, digest: str, name: str = "", **query: str) -> str:
    """Return the URL of a client's page. With `name`, the page always includes that limit."""
    page = admin_url(request, "django_ratelimit_lua_client_changelist")
    return f"{page}?{page_query(request, digest=digest, name=name, **query)}"


def client_links(
    request: HttpRequest, clients: Sequence[tuple[str, Name]], name: str = "", rule: str = ""
) -> list[ClientLinks]:
    """Return the actions for each of these clients.

    Args:
        request: The request of the page.
        clients: The digest of each, and its name as far as the user may see it.
        name: The limit that all rows are about, if there is one.
        rule: The name of its rule, if it has one.
    """
    overrides = overrides_of([digest for digest, _name in clients])
    links = []
    for digest, parts in clients:
        rows = overrides[digest]
        block = next((row for row in rows if row.effect == "block" and row.is_active()), None)
        links.append(
            ClientLinks(
                digest=digest,
                words=client_words(", ".join(value for _kind, value in parts), digest),
                url=client_url(request, digest, name),
                block=block,
                override_url=override_url(request, digest, parts, rule),
            )
        )
    return links


def override_url(request: HttpRequest, digest: str, parts: Iterable[Part], rule: str = "") -> str:
    """Return the URL of the form of an override about exactly this client.

    It is empty for users without permission.
    """
    field, value = override_subject(digest, parts)
    query = {field: value}
    if field == "client_digest":  # It needs an end.
        query["duration"] = "86400"
    if rule:
        query["rule"] = rule
    return form_url(request, query)


def form_url(request: HttpRequest, query: Mapping[str, str]) -> str:
    """Return the URL of the form of an override with these values.

    It is empty for users without permission.
    """
    if not may(request, "add_ratelimitoverride"):
        return ""
    form = admin_url(request, "django_ratelimit_lua_ratelimitoverride_add")
    return f"{form}?{urlencode(query)}"


def known_clients(request: HttpRequest, prefix: str = "") -> dict[str, Name]:
    """Return the clients that a ban, an override or an optional app names, by their digests.

    Their recorded names are included if the user may see them.

    Args:
        request: The request of the page.
        prefix: The beginning of their digests.

    Raises:
        StoreError: Redis is unavailable.
    """
    names = {ban.identity: ban.who for ban in active_bans(identities=[prefix])}
    rows = RateLimitOverride.objects.filter(client_digest__startswith=prefix)
    for digest in rows.exclude(client_digest="").values_list("client_digest", flat=True):
        names.setdefault(digest, [])
    for extension in extensions:
        for digest, record in extension.client(request, prefix).items():
            names[digest] = names.get(digest) or list(record.name)
    return {digest: visible_name(request, name) for digest, name in names.items()}
