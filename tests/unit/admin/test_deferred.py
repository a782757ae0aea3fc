"""Model admins that are imported when they are first used."""

from __future__ import annotations

import pytest
from django.contrib import admin

from django_ratelimit_lua.admin.rules import RuleAdmin
from django_ratelimit_lua.models import RateLimitRule

MODELS = [
    model for model in admin.site._registry if model._meta.app_label == "django_ratelimit_lua"
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_each_deferred_model_admin_exists(model: type) -> None:
    """The model admin of each model is created, belongs to that model and passes its checks."""
    model_admin = admin.site.get_model_admin(model)
    assert isinstance(model_admin, admin.ModelAdmin)
    assert model_admin.model is model
    assert model_admin.check() == []


def test_another_admin_site_takes_the_deferred_class() -> None:
    """A project can register the deferred class with an admin site of its own."""
    site = admin.AdminSite("staff")
    site.register(RateLimitRule, type(admin.site.get_model_admin(RateLimitRule)))
    model_admin = site.get_model_admin(RateLimitRule)
    assert isinstance(model_admin, RuleAdmin)
    assert model_admin.admin_site is site
