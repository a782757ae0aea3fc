"""Statistics of decisions: counts, pages, metrics, durable hours."""
