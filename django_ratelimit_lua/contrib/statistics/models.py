"""The durable hourly counts of rules and limits, which the database keeps longer than Redis."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from ...extension import require_annex

require_annex("statistics")


class RateLimitHour(models.Model):
    """The requests of one rule or limiter in one hour, by result.

    - `moment`: the beginning of the hour, in seconds since 1970;
    - `banned`: the number of refused requests that a ban has refused.
    """

    LETTERS: ClassVar = {
        "allowed": "a",
        "refused": "r",
        "would_be_refused": "s",
        "blocked": "b",
        "exempt": "x",
        "policy": "e",
        "failed": "f",
        "banned": "g",
    }
    """A letter of the result that each column counts, see `counters`."""

    name = models.CharField(max_length=200)
    moment = models.BigIntegerField()
    allowed = models.BigIntegerField(default=0)
    refused = models.BigIntegerField(default=0)
    would_be_refused = models.BigIntegerField(default=0)
    blocked = models.BigIntegerField(default=0)
    exempt = models.BigIntegerField(default=0)
    policy = models.BigIntegerField(default=0)
    failed = models.BigIntegerField(default=0)
    banned = models.BigIntegerField(default=0)

    class Meta:
        """Options of the model: one row for each name and hour."""

        default_permissions = ()
        constraints = (
            models.UniqueConstraint(fields=("name", "moment"), name="ratelimit_hour_once"),
        )
        indexes = (models.Index(fields=("moment",), name="ratelimit_hour_moment"),)

    def __str__(self) -> str:
        return f"{self.name} {self.moment}"
