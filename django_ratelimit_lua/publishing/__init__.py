"""From the database to Redis."""
