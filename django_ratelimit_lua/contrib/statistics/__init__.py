"""Statistics of decisions: counts, pages, metrics, and hourly counts in the database."""
