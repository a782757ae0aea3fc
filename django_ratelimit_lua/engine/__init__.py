"""From a call to its decision: what this process remembers, what Redis says, and what holds where Redis is away."""

__all__ = ["bans", "decide", "listener", "run", "slots", "waiting"]
