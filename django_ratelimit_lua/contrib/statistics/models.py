"""The durable hourly counts of rules and limits, which the database keeps longer than Redis."""

from __future__ import annotations

from collections.abc import Mapping

from django.db import models, transaction

from ...extension import require

require("statistics")

BATCH = 500
Numbers = Mapping[str, int | None]
"""The columns of an hour, by name; None: not known."""


class RateLimitHour(models.Model):
    """The requests of one rule or limiter in one hour, by result. Numbers only ever rise.

    - `moment`: the beginning of the hour, in seconds since 1970;
    - `units`: the units that were taken;
    - `near`: allowed requests that came near the limit;
    - `people_refused`: the approximate number of refused identities (None: not known).
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
        """Options of the model: one row for each name and hour."""

        default_permissions = ("view",)
        constraints = (
            models.UniqueConstraint(fields=("name", "moment"), name="ratelimit_hour_once"),
        )
        indexes = (models.Index(fields=("moment",), name="ratelimit_hour_moment"),)

    def __str__(self) -> str:
        return f"{self.name} {self.moment}"

    @classmethod
    def columns(cls) -> list[str]:
        """Return the names of the columns that contain counts."""
        return [
            field.name
            for field in cls._meta.concrete_fields
            if field.name not in ("id", "name", "moment")
        ]

    @classmethod
    def keep(cls, using: str, name: str, hours: Mapping[int, Numbers]) -> int:
        """Write hourly counts of one name, by the beginning of the hour; at least one hour.

        Existing numbers are raised, and never lowered, so counts may be written repeatedly and
        late.

        Returns:
            The number of rows that were created or raised.
        """
        every = cls._base_manager.using(using)
        rows = every.select_for_update().filter(name=name, moment__range=(min(hours), max(hours)))
        with transaction.atomic(using):
            missing = sorted(hours.keys() - {row.moment for row in rows})
            if missing:
                made = [cls(name=name, moment=moment, **hours[moment]) for moment in missing]
                every.bulk_create(made, ignore_conflicts=True)
                rows = rows.all()  # Another process may have made the same.
            raised = [row for row in rows if row.raise_to(hours.get(row.moment, {}))]
            every.bulk_update(raised, cls.columns(), BATCH)
        return len(missing) + len(raised)

    def raise_to(self, numbers: Numbers) -> bool:
        """Raise the columns that are lower, and return whether one was."""
        is_raised = False
        for column, number in numbers.items():
            before = getattr(self, column)
            if number is not None and (before is None or number > before):
                setattr(self, column, number)
                is_raised = True
        return is_raised
