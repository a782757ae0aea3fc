"""A module that exists and raises an exception when it is imported."""

raise RuntimeError("not today")
