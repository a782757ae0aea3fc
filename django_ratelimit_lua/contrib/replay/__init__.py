"""Access logs run against limits."""
