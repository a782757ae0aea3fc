"""Identities that a service sends as values by key, converted for rules and overrides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.http import HttpHeaders

from ...identity import Identity
from ...identity.address import ClientAddress, address_as
from ...identity.forwarded import Address
from ...identity.keys import field_identity, known_identities, split_field
from ...limits.rate import LimitError
from .users import MAX_USER_LENGTH, VouchedUser, primary_key


class NamedIdentities(NamedTuple):
    """A client that a service describes by a JSON object: its values, by key.

    All values together identify one client. The class also reads the subjects of overrides, as
    `web.overrides.SubjectSource` declares.

    >>> NamedIdentities({"user": "7", "header:X-Key": "K"}).identity()
    (('user', '7'), ('header', 'X-Key', 'k'))
    """

    values: Mapping[str, str]

    def identity(self) -> Identity:
        """Return the identity to count.

        Raises `LimitError` for an invalid key, and for a value that no request can have.
        """
        parts = [self._part(key) for key in self.values]
        return parts[0] if len(parts) == 1 else tuple(parts)

    def _part(self, key: str) -> Identity:
        value = self.values[key]
        if key == "ip":
            if self.address() is None:
                raise LimitError("identity: 'ip' must be an address, such as 203.0.113.9")
            return (key, self._address().network)
        if key == "user":
            if not _may_be_user(value):
                raise LimitError("identity: 'user' must be a primary key of a user")
            return (key, self.user())
        if key == "session" and not value:
            raise LimitError("identity: 'session' must not be empty")
        if key == "path" and not value.startswith("/"):
            raise LimitError("identity: 'path' must begin with /")
        if key in ("session", "path", "route"):
            return (key, value)
        if split_field(key) is None:
            raise LimitError(
                f"identity: unknown key {key[:100]!r}; use ip, user, session, path, route, a "
                "field such as header:NAME, or a key of RATELIMIT_KEYS"
            )
        return field_identity(key, value)

    def _address(self) -> ClientAddress:
        return address_as(self.values.get("ip"), "it is in the identity")

    def user(self) -> str | None:
        """Return the primary key of the user as the database stores it, or None."""
        if "user" not in self.values:
            return None
        return str(VouchedUser(self.values["user"]))

    def address(self) -> Address | None:
        return self._address().address

    def fields(self, field: str) -> Sequence[Identity]:
        """Return the identities by the value of a field; see `SubjectSource`.

        The override decides whether letter case matters.
        """
        kind, name = _place(field)
        places = [(kind, name)]
        if kind == "data":
            places += [("post", name), ("json", name)]
        values = [value for key, value in self.values.items() if _place(key) in places]
        return known_identities(*{field_identity(field, value): None for value in values})


def _may_be_user(text: str) -> bool:
    """Return whether text is a possible primary key of a user.

    If the site has no users, any text is.
    """
    try:
        primary_key(text)
    except (ValidationError, ValueError):
        return False
    except ImproperlyConfigured:
        pass
    return 0 < len(text) <= MAX_USER_LENGTH


def _place(key: str) -> tuple[str, str]:
    """Return the kind and the normalized name of a field."""
    kind, name = split_field(key) or (key, "")
    if kind == "header":
        name = str(HttpHeaders.to_wsgi_name(name))
    return kind, name
