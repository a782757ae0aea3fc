"""`fallback=`: the result of a refused call."""

from __future__ import annotations

import inspect
from typing import Any

from asgiref.sync import iscoroutinefunction

NO_FALLBACK = object()
"""The default of `fallback=`, because None is a valid fallback."""


def async_mismatch(fallback: object, *, is_async: bool) -> str:
    """Return why a fallback does not fit the function that it replaces; empty if it fits.

    Args:
        fallback: A value, or a callable.
        is_async: Whether the function is a coroutine function, for which every fallback fits.
    """
    has_coroutine = iscoroutinefunction(fallback) or iscoroutinefunction(type(fallback).__call__)
    if is_async or not has_coroutine:
        return ""
    return (
        "is a coroutine function, but the function that it replaces is not: use async "
        "def for both, or for neither"
    )


def fall_back(fallback: object, error: Exception, *args: object, **kwargs: object) -> Any:
    """Return the result of a refused call, or raise `error` if the fallback is `NO_FALLBACK`.

    The result is that of the fallback with the arguments of the call, or the fallback itself if it
    is not callable.
    """
    if fallback is NO_FALLBACK:
        raise error
    if callable(fallback):
        return fallback(*args, **kwargs)
    return fallback


async def afall_back(fallback: object, error: Exception, *args: object, **kwargs: object) -> Any:
    """Async twin of `fall_back`. The fallback may be a coroutine function."""
    result = fall_back(fallback, error, *args, **kwargs)
    if inspect.isawaitable(result):
        return await result
    return result
