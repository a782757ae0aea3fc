"""Identities in words, with a link to each user that they name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.urls import NoReverseMatch
from django.utils.translation import gettext as _

from ..identity.names import NOTHING, Name, Part
from ..models import RateLimitOverride
from ..operations.admin_urls import admin_url
from ..operations.formatting import readable
from ..rules.describe import key_label
from .pages import may, may_see_rules

WHO = "django_ratelimit_lua.view_identities"
"""May see the names of clients."""
LETTERS = 12
"""Letters of a digest that stand for a client, as on the page of bans and in the command."""


class ReadablePart(NamedTuple):
    """A part of an identity in words.

    - `url`: the page of the user, if the operator may see it.
    """

    words: str
    url: str = ""
    is_known_user: bool = False


def visible_name(request: HttpRequest, name: Iterable[Part]) -> Name:
    """Return the name of a client; empty if the user may not see it."""
    if not request.user.has_perm(WHO):
        return []
    return list(name)


def readable_parts(request: HttpRequest, named: Sequence[Name]) -> list[list[ReadablePart]]:
    """Return the parts of identities as the pages show them."""
    users = _users([value for name in named for kind, value in name if kind == "user"])
    return [[_readable(request, kind, value, users) for kind, value in name] for name in named]


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


def link_words(parts: Iterable[ReadablePart], digest: str) -> str:
    """Return a name for a client, by its readable parts."""
    return client_words(", ".join(part.words for part in parts), digest)


def _users(keys: Sequence[str]) -> dict[str, User]:
    model = get_user_model()
    found = []
    for key in keys:
        with suppress(ValidationError):
            found.append(model._meta.pk.to_python(key))
    return {str(user.pk): user for user in model._default_manager.filter(pk__in=found)}


def _readable(
    request: HttpRequest, kind: str, value: str, users: Mapping[str, User]
) -> ReadablePart:
    if kind == "user" and value in users:
        user = _("user %(user)s") % {"user": users[value]}
        return ReadablePart(user, _user_url(request, users[value]), is_known_user=True)
    value = readable(value)
    if kind == "ip":
        return ReadablePart(value)
    if kind and value == NOTHING:
        return ReadablePart(_("no %(kind)s") % {"kind": key_label(kind)})
    return ReadablePart(_part_words(kind, value))


def _part_words(kind: str, value: str) -> str:
    if not kind:
        return value
    return f"{key_label(kind)} {value}"


def _user_url(request: HttpRequest, user: User) -> str:
    meta = user._meta
    if not request.user.has_perm(f"{meta.app_label}.view_{meta.model_name}"):
        return ""
    with suppress(NoReverseMatch):
        return admin_url(request, f"{meta.app_label}_{meta.model_name}_change", user.pk)
    return ""
