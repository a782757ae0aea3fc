"""Django REST framework's throttle classes, by its own names."""

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
