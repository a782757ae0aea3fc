"""From a call to its decision: what this process remembers, what Redis says, and what holds where Redis is away."""

__all__ = ["decide", "listener", "run", "waiting"]
