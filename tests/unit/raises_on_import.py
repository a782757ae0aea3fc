"""A module that cannot be imported, although it is there."""

raise RuntimeError("not today")
