"""`{% load ratelimit_home %}`: the context of the app's index page, shown by Django's view."""

from typing import Any

from django import template

from ..admin.home import home_context

register = template.Library()


@register.simple_tag(takes_context=True)
def ratelimit_home(context: Any) -> dict[str, object]:
    """Return what the page shows; empty if the user may not see rules."""
    return home_context(context.request)
