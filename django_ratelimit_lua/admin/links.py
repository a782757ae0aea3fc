"""Links in rows about clients: to the page of the client, and to the form of an override."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import urlencode

from django.http import HttpRequest

from ..extension import extensions
from ..identity.names import Name, Part
from ..models import RateLimitOverride
from ..operations.admin_urls import admin_url, page_query
from ..operations.bans import active_bans
from ..operations.clients import override_subject, overrides_of
from .identities import client_words, visible_name
from .pages import may


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
        blocks = [each for each in overrides[digest] if each.effect == "block" and each.is_active()]
        words = client_words(", ".join(value for _kind, value in parts), digest)
        url = client_url(request, digest, name)
        form = override_url(request, digest, parts, rule)
        links.append(ClientLinks(digest, words, url, next(iter(blocks), None), form))
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
    found = {active.identity: active.who for active in active_bans(identities=[prefix])}
    about = RateLimitOverride.objects.filter(client_digest__startswith=prefix)
    for digest in about.exclude(client_digest="").values_list("client_digest", flat=True):
        found.setdefault(digest, [])
    for extension in extensions:
        for digest, record in extension.client(request, prefix).items():
            found[digest] = found.get(digest) or list(record.name)
    return {digest: visible_name(request, parts) for digest, parts in found.items()}
