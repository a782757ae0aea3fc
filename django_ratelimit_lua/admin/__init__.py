"""The pages of the Django admin: rules, overrides, history, inspector, clients, bans and slots.

This package shows the results of operations, and saves models. It imports `operations` and lower
packages. It does not decide anything about a request itself.
"""

from django.contrib import admin
from django.utils.translation import gettext_lazy as _

from ..models import RateLimitChange, RateLimitOverride, RateLimitRule
from .bans import BanPage
from .clients import ClientPage
from .history import ChangeAdmin
from .inspector import InspectorPage
from .overrides import OverrideAdmin
from .pages import register_page
from .processes import ProcessPage
from .rules import RuleAdmin
from .slots import SlotPage

__all__ = [
    "base",
    "client_links",
    "curves",
    "history",
    "identities",
    "inspector",
    "pages",
    "times",
]

admin.site.register(RateLimitRule, RuleAdmin)
admin.site.register(RateLimitOverride, OverrideAdmin)
admin.site.register(RateLimitChange, ChangeAdmin)
register_page("Inspector", _("Inspector"), InspectorPage)
register_page("Client", _("Clients"), ClientPage)
register_page("Bans", _("Bans"), BanPage)
register_page("Slots", _("Slots"), SlotPage)
register_page("Processes", _("Processes"), ProcessPage)
