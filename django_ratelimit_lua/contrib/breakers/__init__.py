"""Circuit breakers: `CircuitBreaker`, and its page in the admin."""

from .breaker import CircuitBreaker
from .exceptions import CircuitOpen

__all__ = ["CircuitBreaker", "CircuitOpen"]
