"""The tasks of operators, as functions that the admin, the commands and scripts share.

They list limits and bans, explain a request, and change what is stored about a client. This room
imports `web`, `models` and lower rooms. It does not know forms, pages or the command line.
"""

from ..identity.address import ClientAddress, client_address
from ..identity.fields import normalize_text
from ..process.tasks import finish
from ..rules.describe import describe_spec
from ..web.reference import BadReferenceError
from .bans import ActiveBan, active_bans, lift_bans
from .explain import Explanation, explain
from .health import Health, ahealth, health
from .known_limits import KnownLimit, OpenedReference, open_reference

__all__ = [
    "ActiveBan",
    "BadReferenceError",
    "ClientAddress",
    "Explanation",
    "Health",
    "KnownLimit",
    "OpenedReference",
    "active_bans",
    "ahealth",
    "client_address",
    "describe_spec",
    "explain",
    "finish",
    "formatting",
    "health",
    "known_limits",
    "lift_bans",
    "normalize_text",
    "open_reference",
]
