"""`{% load ratelimit_home %}`: the context of the app's index page, shown by Django's view."""

from typing import Any

from django import template

register = template.Library()


@register.simple_tag(takes_context=True)
def ratelimit_home(context: Any) -> dict[str, object]:
    """Return what the page shows; empty if the user may not see rules."""
    from ..admin.home import home_context  # Django imports all libraries, also without the admin.

    return home_context(context.request)
