"""The migrations of statistics."""
