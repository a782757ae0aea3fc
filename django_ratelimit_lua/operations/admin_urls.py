"""The URLs of admin pages, on the admin site that serves a request."""

from __future__ import annotations

from urllib.parse import urlencode

from django.http import HttpRequest
from django.urls import reverse


def admin_url(request: HttpRequest, name: str, *arguments: object) -> str:
    """Return the URL of a page of the admin site that serves a request.

    A project may have several admin sites. `{% url %}` in templates does the same.

    Args:
        request: The request for a page of the admin.
        name: The name of the URL without its namespace, such as `ratelimit_statistics_statistics`.
        arguments: Its arguments.

    Raises:
        NoReverseMatch: The site has no such page.
    """
    match = request.resolver_match
    site = match.namespace if match else None
    return reverse(f"admin:{name}", args=arguments, current_app=site)


def page_query(request: HttpRequest, **values: str) -> str:
    """Return the query of a link to a page: these values, and the period of the present page."""
    values["period"] = request.GET.get("period", "")
    return urlencode({name: value for name, value in values.items() if value}, errors="replace")
