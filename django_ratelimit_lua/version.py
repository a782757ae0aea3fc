"""The version, in a file that packaging reads without importing Django."""

__version__ = "0.1.0"
