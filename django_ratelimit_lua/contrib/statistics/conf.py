"""The settings of this optional app."""

from __future__ import annotations

from ...conf import Setting, Table
from ...conf.values import check_token
from ...limits.values import flag, or_none


class StatisticsSettings(Table):
    """The settings of statistics. Reading an invalid value raises `ImproperlyConfigured`."""

    METRICS_TOKEN = Setting(
        None,
        or_none(check_token),
        "the token that Prometheus sends as ``Authorization: Bearer …`` to read the metrics. If "
        "it is not set, only "
        "users with permission to view rules can read them, see :doc:`/annexes/statistics`",
        is_secret=True,
    )
    OPENTELEMETRY = Setting(
        False,
        flag,
        "record every decision with OpenTelemetry, as metrics and as spans, see "
        ":doc:`/annexes/statistics`",
    )


settings = StatisticsSettings()
