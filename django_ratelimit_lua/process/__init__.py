"""State and work of one process: clocks, forks, background tasks, and bounded maps.

This package starts background work when it is first needed, and again after a fork. It imports only
from floor 1 of the package, and does not know what the tasks do.
"""

__all__ = ["clock", "forks", "tasks"]
