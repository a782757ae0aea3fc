"""Intended differences: the test that fails, and words of the guide that explain it."""

from __future__ import annotations

Differences = dict[str, str]

DJANGO_RATELIMIT: Differences = {
    "RateParsingTests::test_simple": "A rate without a unit",
    "RatelimitTests::test_no_key": "Rates, keys and options are checked",
    "FunctionsTests::test_not_increment_after_increment": "A refused request is not counted",
    "CacheFailTests::test_cache_timeout": "Another kind of cache",
    "CacheFailTests::test_is_ratelimited_cache_connection_error_without_increment": "When Redis is "
    "down",
    "IpMetaTests::test_empty_ip": "An empty REMOTE_ADDR",
}
DRF: Differences = {
    "ThrottlingTests::test_request_throttling_multiple_throttles": "A refused request is not "
    "counted",
    "ThrottlingTests::test_throttle_rate_change_negative": "A refused request is not counted",
    "SimpleRateThrottleTests::test_wait_returns_correct_waiting_time_without_history": "There is "
    "no ``history``",
}
GUIDES = {
    "docs/how-to/from-django-ratelimit.rst": DJANGO_RATELIMIT,
    "docs/how-to/drf.rst": DRF,
}
