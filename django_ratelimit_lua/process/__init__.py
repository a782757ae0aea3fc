"""What belongs to one process: forks, threads, and maps that stay bounded."""

__all__ = ["forks", "tasks"]
