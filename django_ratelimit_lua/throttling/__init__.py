"""The throttle classes of Django REST framework, with the same names.

All throttles of a view are decided in one call. It imports web, engine, rules and identity. It is
imported only by projects that use Django REST framework, and does not know models.
"""

from rest_framework.throttling import BaseThrottle

from .classes import (
    AnonRateThrottle,
    RuleThrottle,
    ScopedRateThrottle,
    SimpleRateThrottle,
    UserRateThrottle,
    exception_handler,
)

__all__ = [
    "AnonRateThrottle",
    "BaseThrottle",
    "RuleThrottle",
    "ScopedRateThrottle",
    "SimpleRateThrottle",
    "UserRateThrottle",
    "exception_handler",
]
