"""State and work of one process: forks, background tasks, and bounded maps.

This package starts background work lazily and renews it after a fork. It imports only the lowest
floor of this package. It does not know what the tasks do.
"""

__all__ = ["forks", "tasks"]
