"""What the admin and the commands share: explain, simulate, rules as YAML, health."""
