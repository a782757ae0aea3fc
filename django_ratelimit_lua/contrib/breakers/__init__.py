"""Circuit breakers: `CircuitBreaker`, `@circuit`, and their rows and pages in the admin."""

from .breaker import CircuitBreaker
from .decorators import circuit
from .exceptions import CircuitOpen

__all__ = ["CircuitBreaker", "CircuitOpen", "circuit"]
