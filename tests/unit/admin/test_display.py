"""Columns of optional apps, and the filters of templates for numbers and names."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from django.http import HttpRequest
from django.template import Context, Template

from django_ratelimit_lua.admin.limits import ListColumn
from django_ratelimit_lua.exceptions import StoreError
from django_ratelimit_lua.extension import Column


def test_a_column_that_cannot_be_read_is_unknown_and_not_empty() -> None:
    """If Redis is unavailable, the column is unknown."""

    def fails(request: HttpRequest, rules: Mapping[str, Any]) -> Mapping[str, object]:
        raise StoreError("no reply")

    limit: Any = SimpleNamespace(name="login")
    for cells, shown in ((lambda *_: {}, "—"), (fails, "unknown")):
        column = ListColumn(Column("last_day", "last day", cells))
        column.read(HttpRequest(), {"login": None})
        assert column(limit) == shown


def test_template_filters_format_numbers_and_names() -> None:
    """Names are escaped, and a line break is possible after each of their parts."""
    text = (
        "{% load ratelimit_words %}{{ number|number_words }} {{ share|share_words }} {{ "
        "rate|rate_words }} "
        "{{ seconds|milliseconds_words }} {{ name|name_words|breakable }} {{ half|readable }}"
    )
    values = {"number": 1234, "share": 0.25, "rate": 1.96, "seconds": 0.005}
    values |= {"name": "<b>.c\n", "half": "x\ud800"}
    found = Template(text).render(Context(values))
    assert found == "1,234 25% 2.0 5 ms &lt;b&gt;.<wbr>c\\n x?"
