"""Rules are read where they are written: from the primary, also where a router sends other reads to a replica.

A replica lags behind. Whoever published from it would publish what was there before the edit, and whoever edited by it
would compare with an older row.
"""

from __future__ import annotations

from typing import TypeVar

from django.db import models, router

M = TypeVar("M", bound=models.Model)


class PrimaryQuerySet(models.QuerySet[M]):
    """Reads from the database that is written to, unless `using` names another."""

    @property
    def db(self) -> str:
        """The alias that this query asks."""
        return self._db or router.db_for_write(self.model, **self._hints)  # type: ignore[attr-defined]
