"""Circuit breakers: `CircuitBreaker`, `@circuit`, their rows and pages."""

from .breaker import CircuitBreaker
from .decorators import circuit
from .exceptions import CircuitOpen

__all__ = ["CircuitBreaker", "CircuitOpen", "circuit"]
