"""Django REST framework's throttle classes, by its own names."""

from .classes import (
    AnonRateThrottle,
    BaseThrottle,
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
