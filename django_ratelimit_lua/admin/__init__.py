"""The pages of the Django admin: rules, clients, overrides, bans and the history of changes.

It shows what operations return, and saves models. It imports `operations` and lower rooms. It does
not know the command line, and decides nothing about a request.
"""

from typing import Any

from django.contrib import admin
from django.utils.functional import LazyObject
from django.utils.module_loading import import_string
from django.utils.translation import gettext_lazy as _

from ..models import RateLimitChange, RateLimitOverride, RateLimitRule
from .pages import register_page

__all__ = [
    "history",
    "identities",
    "limits",
    "pages",
]


class DeferredAdmin(LazyObject):  # type: ignore[type-arg]
    """A model admin that is imported when it is first used: when the admin's URLs are resolved.

    The pages and their operations are a third of the package, and a process starts without them.
    """

    _path = ""

    def __init__(self, *args: object) -> None:
        self.__dict__["_arguments"] = args
        super().__init__()

    def _setup(self) -> None:
        admin_class = import_string(f"{__name__}.{self._path}")
        self._wrapped = admin_class(*self.__dict__["_arguments"])


def deferred(path: str) -> Any:
    """Return a class that stands for the model admin at this path."""
    return type("DeferredAdmin", (DeferredAdmin,), {"_path": path})


admin.site.register(RateLimitRule, deferred("rules.RuleAdmin"))
admin.site.register(RateLimitOverride, deferred("overrides.OverrideAdmin"))
admin.site.register(RateLimitChange, deferred("history.ChangeAdmin"))
register_page("Overview", _("Overview"), deferred("overview.OverviewPage"))
register_page("Client", _("Clients"), deferred("clients.ClientPage"))
register_page("Bans", _("Bans"), deferred("bans.BanPage"))
register_page("Processes", _("Processes"), deferred("processes.ProcessPage"))
