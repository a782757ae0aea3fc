"""The columns that optional apps add to the lists of rules and limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest

from django_ratelimit_lua.admin.limits import ListColumn
from django_ratelimit_lua.exceptions import StoreError
from django_ratelimit_lua.extension import Column


def test_a_column_that_cannot_be_read_is_unknown_and_not_empty() -> None:
    """If Redis is unavailable, the column is unknown."""

    def fails(request: HttpRequest, rules: Mapping[str, Any]) -> Mapping[str, object]:
        raise StoreError("no reply")

    for cells, shown in ((lambda *_: {}, "—"), (fails, "unknown")):
        column = ListColumn(Column("last_day", "last day", cells))
        assert column.read_cells(HttpRequest(), {"login": None}) == {"login": shown}
