"""`fallback=`: the result of a refused call."""

from __future__ import annotations

import inspect
from typing import Any

from asgiref.sync import iscoroutinefunction

NO_FALLBACK = object()
"""None is a fallback."""


def async_mismatch(fallback: object, *, is_async: bool) -> str:
    """Return why a fallback does not fit a plain function; empty if it fits."""
    if is_async or not (
        iscoroutinefunction(fallback) or iscoroutinefunction(type(fallback).__call__)
    ):
        return ""
    return (
        "is a coroutine function, but the function that it replaces is not: use async "
        "def for both, or for neither"
    )


def fall_back(fallback: object, error: Exception, *args: object, **kwargs: object) -> Any:
    """Return the fallback: a value, or the result of a callable with the arguments of the call.

    Raise the error if there is no fallback.
    """
    if fallback is NO_FALLBACK:
        raise error
    if callable(fallback):
        return fallback(*args, **kwargs)
    return fallback


async def afall_back(fallback: object, error: Exception, *args: object, **kwargs: object) -> Any:
    """`fall_back`, for coroutine functions. The fallback may be a coroutine function."""
    answer = fall_back(fallback, error, *args, **kwargs)
    if inspect.isawaitable(answer):
        return await answer
    return answer
