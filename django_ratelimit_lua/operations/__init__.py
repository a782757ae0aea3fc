"""The tasks of operators, as functions that the admin, the commands and scripts share.

They explain a request, list and lift bans, import and export rules, and forget an identity. This
package imports `web`, `models` and lower packages. It does not know forms, pages or the command
line.
"""

from ..identity.address import ClientAddress, client_address
from ..identity.text import normalised
from ..process.tasks import finish
from ..rules.describe import describe_spec
from .bans import ActiveBan, active_bans, lift_bans
from .explain import Explanation, explain
from .health import Health, ahealth, health
from .reference import BadReferenceError, KnownLimit, OpenedReference, open_reference

__all__ = [
    "ActiveBan",
    "BadReferenceError",
    "ClientAddress",
    "Explanation",
    "Health",
    "KnownLimit",
    "OpenedReference",
    "active_bans",
    "admin_urls",
    "ahealth",
    "call_sites",
    "client_address",
    "describe_spec",
    "explain",
    "finish",
    "formatting",
    "health",
    "lift_bans",
    "normalised",
    "open_reference",
    "plot",
]
