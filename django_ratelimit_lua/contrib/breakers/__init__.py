"""Circuit breakers: `CircuitBreaker`, and its page in the admin.

It may import the rooms of the core, `admin` included, but no other optional app. It must not know
limits: a breaker stops the calls of a resource, for all clients.
"""

from .breaker import CircuitBreaker
from .exceptions import CircuitOpen

__all__ = ["CircuitBreaker", "CircuitOpen"]
