"""From the database to Redis."""

__all__ = ["cleanup", "publish"]
