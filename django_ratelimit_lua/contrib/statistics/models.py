"""The durable hours of rules and limits, which the database keeps longer than Redis does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from django.db import models, transaction

from ...extension import require

require("statistics")

BATCH = 500
Numbers = Mapping[str, int | None]
"""The columns of an hour, by name; None: not known."""


class RateLimitHour(models.Model):
    """Requests of one rule or limiter in one hour, by result; numbers only ever rise.

    `moment`: when it begins, in seconds since 1970; `units` that were taken; allowed `near` the
    limit; `people_refused`, about (None: not known).
    """

    name = models.CharField(max_length=200)
    moment = models.BigIntegerField()
    allowed = models.BigIntegerField(default=0)
    refused = models.BigIntegerField(default=0)
    banned = models.BigIntegerField(default=0)
    advised_allowed = models.BigIntegerField(default=0)
    advised_refused = models.BigIntegerField(default=0)
    shadow_allowed = models.BigIntegerField(default=0)
    shadow_refused = models.BigIntegerField(default=0)
    exempt = models.BigIntegerField(default=0)
    blocked = models.BigIntegerField(default=0)
    policy = models.BigIntegerField(default=0)
    failed = models.BigIntegerField(default=0)
    units = models.BigIntegerField(default=0)
    near = models.BigIntegerField(default=0)
    people_refused = models.BigIntegerField(null=True)

    class Meta:
        default_permissions = ("view",)
        constraints = (
            models.UniqueConstraint(fields=("name", "moment"), name="ratelimit_hour_once"),
        )
        indexes = (models.Index(fields=("moment",), name="ratelimit_hour_moment"),)

    def __str__(self) -> str:
        return f"{self.name} {self.moment}"

    @classmethod
    def columns(cls) -> list[str]:
        """The names of what is counted."""
        return [
            field.name
            for field in cls._meta.concrete_fields
            if field.name not in ("id", "name", "moment")
        ]

    @classmethod
    def keep(cls, using: str, name: str, hours: Mapping[int, Numbers]) -> int:
        """Write hours of one name, by their moment.

        Existing numbers are raised, and never lowered, so it may be repeated, and late. Return how
        many rows were made or raised.
        """
        moments = sorted(hours)
        return sum(
            cls._keep_some(using, name, hours, moments[at : at + BATCH])
            for at in range(0, len(moments), BATCH)
        )

    @classmethod
    def _keep_some(
        cls, using: str, name: str, hours: Mapping[int, Numbers], moments: Sequence[int]
    ) -> int:
        every = cls._base_manager.using(using)
        rows = every.select_for_update().filter(name=name, moment__in=moments)
        with transaction.atomic(using):
            present = {row.moment: row for row in rows}
            made = [
                cls(name=name, moment=moment, **hours[moment])
                for moment in moments
                if moment not in present
            ]
            if made:
                every.bulk_create(made, ignore_conflicts=True)
                present = {
                    row.moment: row for row in rows.all()
                }  # Another process may have made the same.
            raised = [row for moment, row in present.items() if row.raise_to(hours[moment])]
            every.bulk_update(raised, cls.columns())
        return len(made) + len(raised)

    def raise_to(self, numbers: Numbers) -> bool:
        """Raise the columns that are lower; whether one was."""
        higher = {
            column: number
            for column, number in numbers.items()
            if number is not None and ((before := getattr(self, column)) is None or number > before)
        }
        for column, number in higher.items():
            setattr(self, column, number)
        return bool(higher)
