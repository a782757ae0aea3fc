"""The choices of the rule form: keys in words, names from the code, and the options of each algorithm."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _

from ..conf import conf
from ..limits import algorithms
from ..rules.callsite import known_call_sites
from ..rules.places import look_for_call_sites, route_names

MOST_NAMES = 1000
"""Maximum number of names on a page. More would make it slow, and are not read."""


def key_choices() -> list[tuple[str, str]]:
    """Keys, or what they begin with where a name follows, in words."""
    return [
        ("", _("as the code says")),
        ("all", _("everybody together")),
        ("ip", _("client address")),
        ("user", _("signed-in user (all others share one count)")),
        ("user_or_ip", _("signed-in user, for others the address")),
        ("session", _("session")),
        ("header:", _("value of a header …")),
        ("cookie:", _("value of a cookie …")),
        ("post:", _("value of a form field …")),
        ("json:", _("value in a JSON body …")),
        ("data:", _("value of a form field or in a JSON body …")),
        ("get:", _("value in the query …")),
        ("kwarg:", _("part of the URL …")),
        ("path", _("path")),
        ("route", _("route")),
    ]


def choices() -> dict[str, Any]:
    """For the template of the form."""
    look_for_call_sites()
    takes = {name: sorted(algorithm.options) for name, algorithm in algorithms.ALGORITHMS.items()}
    return {
        "keys": key_choices(),
        "names": known_call_sites.names()[:MOST_NAMES],
        "routes": sorted(route_names())[:MOST_NAMES],
        "takes": {**takes, "": takes[algorithms.find(conf.ALGORITHM).name]},
    }
