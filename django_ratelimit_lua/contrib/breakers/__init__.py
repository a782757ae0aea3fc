"""Circuit breakers: `CircuitBreaker`, `@circuit`, their rows and pages."""
