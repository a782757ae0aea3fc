"""The throttle classes of Django REST framework, with the same names.

All throttles of a view are decided in one call. This package imports `web`, `engine`, `rules` and
`identity`. Only projects with Django REST framework import it. It does not know models.
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
