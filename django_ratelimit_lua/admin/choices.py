"""The choices of the rule form: keys, names from the code, and the options of each algorithm."""

from __future__ import annotations

from django.utils.text import capfirst
from django.utils.translation import gettext as _

from ..conf import conf
from ..identity.keys import BUILT_IN, FIELDS, registered_keys
from ..limits import algorithms
from ..rules.callsite import known_call_sites
from ..rules.places import look_for_call_sites, route_names

MAX_NAMES = 1000
"""Maximum number of names on a page. More would make it slow, and are not read."""


def choices() -> dict[str, object]:
    """Return the choices for the template of the form."""
    look_for_call_sites()
    keys = [*BUILT_IN.values(), *registered_keys().values()]
    takes = {name: sorted(algorithm.options) for name, algorithm in algorithms.ALGORITHMS.items()}
    return {
        "keys": [
            ("", _("as in the code")),
            *((key.name, capfirst(str(key.label))) for key in keys),
            *((f"{kind}:", capfirst(str(field.label) % "…")) for kind, field in FIELDS.items()),
        ],
        "names": known_call_sites.names()[:MAX_NAMES],
        "routes": sorted(route_names())[:MAX_NAMES],
        "takes": {**takes, "": takes[algorithms.find(conf.ALGORITHM).name]},
    }
