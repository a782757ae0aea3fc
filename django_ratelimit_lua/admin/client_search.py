"""Find clients by an address, a network, a user, the value of a field, or a digest."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from django.contrib.auth.models import User

from ..conf.values import Network
from ..identity import digest as digest_of
from ..identity.address import parse_address, parse_client_address, parse_network
from ..identity.keys import field_identity, split_field, split_prefix
from ..identity.names import Name, Part
from ..operations.known_limits import known_limits
from ..operations.subjects import find_user
from ..rules.describe import key_label
from .client_limits import (
    MAX_LISTED,
    counted_clients,
    counted_digests,
    counted_identity,
    overrides_of,
)

_PREFIX = re.compile(r"[0-9a-f]{6,32}")
"""The part of a digest that a search needs. A reference contains 6 digits."""


class FoundClient(NamedTuple):
    """A client that a search has found.

    - `digest`: the digest that a limit counts;
    - `name`: the parts of the identity;
    - `label`: the key of that limit with its values, in words; empty if a record names the client;
    - `key`: the name of the key.
    """

    digest: str
    name: tuple[Part, ...] = ()
    label: str = ""
    key: str = ""


def search_clients(text: str, named: Mapping[str, Name]) -> list[FoundClient]:
    """Return the known clients that match a text, at most `MAX_LISTED`.

    An address and a user are always known. Any other client is known if a limit has counted it, if
    it has an override, or if a record names it.

    Args:
        text: An address, a network, a user, the value of a field, several of these for one client,
            or the beginning of a digest.
        named: The recorded names of clients, by their digests.

    Raises:
        StoreError: Redis is unavailable.
    """
    computed = {client.digest: client for client in computed_clients(text)}
    known_digests = _known_digests(computed, named)
    clients = {digest: computed[digest] for digest in computed if digest in known_digests}
    shown = {  # The page of a found client includes these.
        digest
        for client in clients.values()
        for digest in counted_digests(client.digest, client.name)
    }
    matches = compile_matcher(text)
    for digest, name in named.items():
        if digest not in shown and matches(digest, name):
            clients.setdefault(digest, FoundClient(digest, tuple(name)))
    return list(clients.values())[:MAX_LISTED]


def _known_digests(clients: Mapping[str, FoundClient], named: Mapping[str, Name]) -> set[str]:
    """Return the digests of addresses, users, and clients with a record, an override or a count."""
    keys = {digest: client.key for digest, client in clients.items()}
    digests = {digest for digest, key in keys.items() if key in ("ip", "user")}
    digests |= clients.keys() & named.keys()
    digests |= {digest for digest, rows in overrides_of(clients.keys()).items() if rows}
    return digests | counted_clients(keys)


def computed_clients(text: str) -> list[FoundClient]:
    """Return the clients that limits in force would count for these values, known or not.

    The same user or address is another client for each kind of key, with another digest.
    """
    words = _split_words(text)
    addresses = [word for word in words if parse_address(word) is not None]
    if len(addresses) > 1 or not words:
        return []
    value = " ".join(word for word in words if word not in addresses)
    values: dict[str, str] = {}
    if addresses:
        values["ip"] = parse_client_address(addresses[0], "").network or ""
    user = find_user(value) if value else None
    if user is not None:
        values["user"] = str(user.pk)
    keys = dict.fromkeys(["user", "ip", *(limit.key for limit in known_limits() if limit.key)])
    clients = [_compute_client(key, values, value) for key in keys]
    countable = [client for client in clients if client is not None]
    # If limits count by the address and the value together, that client is meant.
    number = len(addresses) + bool(value)
    return [client for client in countable if len(client.name) == number] or countable


def _compute_client(key: str, values: Mapping[str, str], value: str) -> FoundClient | None:
    """Return the client that limits with a key count; None if the key needs other values.

    Args:
        key: The name of the key.
        values: The address and the user in the text, as `ip` and `user`.
        value: The text without the address, which may be the value of any field.
    """
    parts: dict[str, str] = {}
    for kind in key.split("+"):
        if kind == "user_or_ip":
            kind = "user" if "user" in values else "ip"
        if kind in values:
            parts[kind] = values[kind]
        elif split_field(kind) is not None and value:
            parts[split_prefix(kind)[1]] = str(field_identity(kind, value)[-1])
        else:
            return None
    identities = {kind: (*kind.split(":", 1), text) for kind, text in parts.items()}
    identity = counted_identity(key, identities)
    texts = [values["ip"] if kind == "ip" else value for kind in parts]
    label = f"{key_label(list(parts))}: {' + '.join(texts)}"
    if key == "user_or_ip":
        (key,) = parts
    return FoundClient(digest_of(identity).decode(), tuple(parts.items()), label, key)


def _split_words(text: str) -> list[str]:
    return [word for word in text.split() if word != "+"]


def find_network(text: str) -> Network | None:
    """Return the network of more than one address that a text is, or None."""
    with suppress(ValueError):
        network = parse_network(text)
        if network.prefixlen < network.max_prefixlen:
            return network
    return None


def compile_matcher(text: str) -> Callable[[str, Sequence[Part]], bool]:
    """Return a function that compares the digest and the recorded name of a client with a text.

    A client matches if the text is the beginning of its digest, or if its name contains each value
    in the text, or an address in the network.
    """
    words = _split_words(text)
    users = {word: find_user(word) for word in words}

    def matches(digest: str, name: Sequence[Part]) -> bool:
        if _PREFIX.fullmatch(text.lower()) and digest.startswith(text.lower()):
            return True
        if not words or not name:
            return False
        return all(
            any(_matches_part(kind, value, word, users[word]) for kind, value in name)
            for word in words
        )

    return matches


def _matches_part(kind: str, value: str, word: str, user: User | None) -> bool:
    """Return whether a part of a name matches a word, which may be the name of a user."""
    if kind == "user":
        return user is not None and value == str(user.pk)
    if kind != "ip":
        return word.casefold() in value.casefold()
    with suppress(ValueError, TypeError):  # No network, or one of the other version of IP.
        return parse_network(value).subnet_of(parse_network(word))  # type: ignore[arg-type]
    return False


def matching_digests(text: str, named: Mapping[str, Name]) -> set[str]:
    """Return the digests of the clients that a text means, among all that limits would count.

    Clients with a recorded name match also by a part of their name, and by a network.
    """
    matches = compile_matcher(text)
    digests = {client.digest for client in computed_clients(text)}
    return digests | {digest for digest, name in named.items() if matches(digest, name)}
