"""The version number, in a file that packaging tools read without importing Django."""

__version__ = "0.1.0"
