"""The choices of the form of a rule, and the options that it shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import Group
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from ..conf import conf
from ..identity.keys import BUILT_IN, registered_keys
from ..limits.algorithms import ALGORITHMS, find
from ..rules.options import NAMES, option_table
from ..views.call_sites import discover_call_sites, known_call_sites
from .fields import OTHER, is_set

GROUP = "group:"
"""The prefix of an audience that is a group."""
MAX_NAMES = 1000
"""Maximum number of names on a page. More would make it slow, and are not read."""


def key_choices() -> list[tuple[str, str]]:
    """Return the keys to choose from, each with its label."""
    keys = [*BUILT_IN.values(), *registered_keys().values()]
    return [
        ("", "---------"),
        *((key.name, capfirst(str(key.label))) for key in keys),
        (OTHER, _("Other")),
    ]


def group_names() -> list[str]:
    """Return the names of Django's groups."""
    return list(Group.objects.order_by("name").values_list("name", flat=True))


def audience_choices(groups: list[str], stored: list[str]) -> list[tuple[str, str]]:
    """Return the audiences to choose from: those of logins, groups, and stored ones."""
    labels = {name: capfirst(_(words)) for name, words in NAMES["audience"].items()}
    for name in (*(f"{GROUP}{group}" for group in groups), *stored):
        labels.setdefault(name, _("Group %(name)s") % {"name": name.removeprefix(GROUP)})
    labels.pop("everyone", None)
    return [*labels.items()]


def code_names() -> list[str]:
    """Return the names of limits in the code."""
    discover_call_sites()
    return known_call_sites.names()[:MAX_NAMES]


def conditions() -> dict[str, dict[str, Any]]:
    """Return when the form shows an option: its algorithms, what it excludes, and what it needs.

    An option that always has an effect has no entry. Of two options that need each other, the first
    is always shown.
    """
    table = option_table()
    found = {}
    for number, (name, option) in enumerate(table.items()):
        algorithms = [each.name for each in ALGORITHMS.values() if name in each.options]
        needs = option.needs if option.needs in [*table][:number] else ""
        if algorithms or option.excludes or needs:
            excludes = [*option.excludes]
            found[name] = {"algorithms": algorithms, "excludes": excludes, "needs": needs}
    return found


def default_algorithm() -> str:
    """Return the algorithm of rules that name none."""
    return find(conf.ALGORITHM).name


def hidden_options(values: Mapping[str, Any]) -> list[str]:
    """Return the options that have neither a value nor an effect, by the values of the form."""
    algorithm = values.get("algorithm") or default_algorithm()
    return [
        name
        for name, condition in conditions().items()
        if not is_set(values.get(name))
        and (
            algorithm not in (condition["algorithms"] or [algorithm])
            or any(is_set(values.get(other)) for other in condition["excludes"])
            or (condition["needs"] and not is_set(values.get(condition["needs"])))
        )
    ]
