"""Django REST framework's request wraps Django's: which of the two is meant.

What clients choose (a key, a cost, a user) is asked of the request that the view has, so that DRF's own authentication
counts. What is kept on a request, and its body, are those of Django's request: one of each, whoever asks.
"""

from __future__ import annotations

from typing import Any


def plain(request: Any) -> Any:
    """Django's request, inside DRF's."""
    # Not by getattr: an object that makes up its attributes, as a mock does, wraps nothing.
    return getattr(request, "__dict__", {}).get("_request", request)


def kept_on(request: Any) -> dict[str, Any]:
    """What is kept on a request, the same for the middleware, a view of Django's and a view of DRF's."""
    kept: dict[str, Any] = vars(plain(request))
    return kept
