"""What belongs to one process: forks, threads, and maps that stay bounded."""
