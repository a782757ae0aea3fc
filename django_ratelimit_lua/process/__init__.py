"""What belongs to one process: forks, background tasks, and maps with a bound.

It starts background work lazily and renews it after a fork. It imports nothing of this package
except the ground floor. It does not know what the tasks do.
"""

__all__ = ["forks", "tasks"]
