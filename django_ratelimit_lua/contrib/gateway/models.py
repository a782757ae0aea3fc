"""Clients of the gateway: services with a token that may use some of the limits."""

from __future__ import annotations

import hashlib
import re
import secrets

from django.core.exceptions import ValidationError
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ...extension import require
from ...models.audit import AuditedModel, AuditedQuerySet, Declared

require("gateway")

PREFIX = "rl_"
"""What every token begins with, so that scanners of leaked secrets find it."""
SHOWN = 8
"""Digits of a digest that identify a token in the history."""
_NAME = re.compile(r"[^*\x00-\x1f\x7f\ud800-\udfff]*\*?")


def token_digest(token: str) -> str:
    """Return the stored form of a token, which is 256 random bits: SHA-256.

    >>> len(token_digest("rl_anything"))
    64
    """
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


class RateLimitClient(AuditedModel):
    """A service that calls the gateway. Only a digest of its token is stored."""

    CHANGE_KIND = "client"

    name = models.CharField(
        _("name"), max_length=200, unique=True, help_text=_("The name of the service.")
    )
    limits = models.TextField(
        _("may use"),
        help_text=_(
            "Names of rules and limits, one per line. A star at the end matches any text: mail* "
            "or a single *."
        ),
    )
    may_refund = models.BooleanField(
        _("may refund units"),
        default=False,
        db_default=False,
        help_text=_(
            "With the operation refund, which can undo every limit that the service may use."
        ),
    )
    is_active = models.BooleanField(
        _("active"),
        default=True,
        help_text=_("If not active, its token is refused from the next request on."),
    )
    digest = models.CharField(_("digest of the token"), max_length=64, unique=True, editable=False)
    created_at = models.DateTimeField(_("created at"), auto_now_add=True)
    last_used = models.DateTimeField(_("last used"), null=True, blank=True, editable=False)

    objects = AuditedQuerySet.as_manager()

    class Meta:
        """Options of the model."""

        verbose_name = _("gateway service")
        verbose_name_plural = _("gateway services")
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    def new_token(self) -> str:
        """Set and return another token, of which only the digest is stored.

        The previous token becomes invalid when the row is saved.
        """
        token = PREFIX + secrets.token_urlsafe(32)
        self.digest = token_digest(token)
        return token

    def names(self) -> list[str]:
        """Return the limits that the client may use, by name; a final star matches any text."""
        return [line.strip() for line in self.limits.splitlines() if line.strip()]

    def declared(self) -> Declared:
        """Return the row as a declaration, with the digits that identify its token."""
        return {
            "name": self.name,
            "limits": self.names(),
            "may_refund": self.may_refund,
            "is_active": self.is_active,
            "digest": self.digest[:SHOWN],
        }

    def clean(self) -> None:
        """Check the row. Raises `ValidationError`, which names the field."""
        for name in self.names():
            if not _NAME.fullmatch(name):
                problem = _("A star is only allowed at the end: %(name)s.") % {"name": name[:100]}
                raise ValidationError({"limits": problem})

    @classmethod
    def note_use(cls, using: str, digest: str) -> None:
        """Record that the client has just used its token. That is not a change of the rules."""
        cls._base_manager.using(using).filter(digest=digest).update(last_used=timezone.now())
