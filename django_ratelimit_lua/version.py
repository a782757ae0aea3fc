"""The version, where packaging reads it without importing Django."""

__version__ = "0.1.0"
