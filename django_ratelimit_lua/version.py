"""The version number, in a file that packaging tools read without importing Django."""

__version__ = "1.0.0rc1"
