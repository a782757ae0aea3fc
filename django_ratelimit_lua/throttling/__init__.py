"""The throttle classes of Django REST framework, with the same names, and the exception handler.

It decides all throttles of a view in one call. It imports only from floors below its own, and only
projects with Django REST framework import it. It must not know models or Redis.
"""

from rest_framework.throttling import BaseThrottle

from .classes import (
    AnonRateThrottle,
    RuleThrottle,
    ScopedRateThrottle,
    SimpleRateThrottle,
    UserRateThrottle,
)
from .handler import exception_handler

__all__ = [
    "AnonRateThrottle",
    "BaseThrottle",
    "RuleThrottle",
    "ScopedRateThrottle",
    "SimpleRateThrottle",
    "UserRateThrottle",
    "exception_handler",
]
