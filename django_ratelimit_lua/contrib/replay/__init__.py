"""Replays access logs against limits: line → request → charges → decision → report."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .deciding import Progress, Replayed, ReplayTooSlowError, replay
    from .reading import Log, UnreadableLogError

__all__ = ["Log", "Progress", "ReplayTooSlowError", "Replayed", "UnreadableLogError", "replay"]


def __getattr__(name: str) -> object:
    """Import a public name when it is first used.

    Django imports this package before its apps are ready.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "deciding"
    if name in ("Log", "UnreadableLogError"):
        module = "reading"
    return getattr(import_module(f"{__name__}.{module}"), name)
