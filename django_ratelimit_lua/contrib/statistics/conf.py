"""The settings of this annex."""

from __future__ import annotations

from ...conf import Setting, Table, token
from ...limits.values import or_none


class StatisticsSettings(Table):
    """`RATELIMIT_*`. An attribute raises `ImproperlyConfigured` for a value it cannot take."""

    # fmt: off
    METRICS_TOKEN = Setting(None, or_none(token),
        "what Prometheus says as ``Authorization: Bearer …`` to read the metrics; not set: only users who may view "
        "rules read them, see :doc:`metrics`", is_secret=True)
    OPENTELEMETRY = Setting(False, bool,
        "whether OpenTelemetry is told of every decision: as metrics, and as spans, see "
        ":doc:`metrics`")
    # fmt: on


settings = StatisticsSettings()
