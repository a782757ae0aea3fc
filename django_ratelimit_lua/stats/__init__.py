"""What was decided, counted."""
