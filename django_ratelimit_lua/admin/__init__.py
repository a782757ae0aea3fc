"""Rules, overrides, breakers and their history in Django's admin."""

from django.contrib import admin

from ..models import RateLimitBreaker, RateLimitChange, RateLimitClient, RateLimitOverride, RateLimitRule
from .breakers import BreakerAdmin
from .clients import ClientAdmin
from .history import ChangeAdmin
from .index_entry import (
    BansEntry,
    BansEntryAdmin,
    InspectorEntry,
    InspectorEntryAdmin,
    ProcessesEntry,
    ProcessesEntryAdmin,
    SlotsEntry,
    SlotsEntryAdmin,
    StatisticsEntry,
    StatisticsEntryAdmin,
)
from .overrides import OverrideAdmin
from .rules import RuleAdmin

admin.site.register(RateLimitRule, RuleAdmin)
admin.site.register(RateLimitOverride, OverrideAdmin)
admin.site.register(RateLimitClient, ClientAdmin)
admin.site.register(RateLimitBreaker, BreakerAdmin)
admin.site.register(RateLimitChange, ChangeAdmin)
admin.site.register([InspectorEntry], InspectorEntryAdmin)
admin.site.register([StatisticsEntry], StatisticsEntryAdmin)
admin.site.register([BansEntry], BansEntryAdmin)
admin.site.register([SlotsEntry], SlotsEntryAdmin)
admin.site.register([ProcessesEntry], ProcessesEntryAdmin)
