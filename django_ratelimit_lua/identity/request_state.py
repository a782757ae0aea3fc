"""The data that this package stores on a request, even if DRF's request wraps Django's.

Functions of the project (a key, a cost, a user) receive the view's request, so that DRF's
authentication counts. The data and the body are those of Django's request, of which there is only
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from django.urls import ResolverMatch


@dataclass(slots=True, eq=False, repr=False)
class RequestState:
    """The data of one request, from the middleware to the end of its view.

    - `counted`: the rules that were counted for it, each with its call site;
    - `running`: the charges of each decorator, until its view has ended; nothing for the
      middleware, which is the outermost. An empty list: the request has ended;
    - `charged`: the counters that `cost_after` has charged for it;
    - `waits`: whether some rules wait until the user and the session are known;
    - `throttles`: the decision about all throttles of its DRF view;
    - `held`: the slots that it holds;
    - `groups`: a user, and the names of this user's Django groups;
    - `key_values`: values of registered keys, by name, that an operator or a service has supplied;
    - `looked_ahead`, `ahead`: whether its route was resolved before Django did, and the result;
    - `fields`: the result of parsing its body;
    - `waited`: the seconds that it waited before this process began with it (None: not known), once
      `is_wait_measured`;
    - `busy`: the limits with the option `waited` that were decided for it, by name, each with the
      seconds after which a refused client may try again;
    - `refusal`: the content of the last refusal;
    - `count`: an optional app's data for counting the request once, at its end;
    - `device_cookie`: the arguments of `set_cookie` after a login.
    """

    counted: dict[str, object] = field(default_factory=dict)
    running: list[Sequence[Any]] = field(default_factory=list)
    charged: set[tuple[bytes, bytes]] = field(default_factory=set)
    waits: bool = False
    throttles: Any = None
    held: list[Any] = field(default_factory=list)
    groups: tuple[object, frozenset[str]] = (None, frozenset())
    key_values: dict[str, object] = field(default_factory=dict)
    looked_ahead: bool = False
    ahead: ResolverMatch | None = None
    fields: Any = None
    waited: float | None = None
    is_wait_measured: bool = False
    busy: dict[str, float] = field(default_factory=dict)
    refusal: Any = None
    count: Any = None
    device_cookie: dict[str, Any] = field(default_factory=dict)


def plain(request: object) -> Any:
    """Return Django's request, which a request of Django REST framework wraps."""
    # Not by getattr: an object that makes up its attributes, as a mock does, wraps nothing.
    return getattr(request, "__dict__", {}).get("_request", request)


def request_state(request: object) -> RequestState:
    """Return the data of a request, which the middleware, Django views and DRF views share."""
    # DRF's own tests call throttles with an empty dict.
    attributes = getattr(request, "__dict__", {})
    if "_request" in attributes:
        attributes = vars(attributes["_request"])
    state: RequestState | None = attributes.get("_ratelimit")
    if state is None:
        state = attributes["_ratelimit"] = RequestState()
    return state
