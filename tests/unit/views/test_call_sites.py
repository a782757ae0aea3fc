"""Limits in the code, which are rules without a name."""

from __future__ import annotations

import functools
from typing import Any

from django.views import View
from django.views.decorators.cache import never_cache

from django_ratelimit_lua.views.call_sites import KnownCallSites, call_site
from django_ratelimit_lua.views.inspection import default_group
from tests.unit.rules.test_rule import limit_name


def test_an_unlisted_name_may_be_a_call_site_if_the_list_is_full() -> None:
    """Otherwise a name that is not listed is no call site."""
    names = KnownCallSites()
    names.add("login")
    names.add("y" * 300)
    found = ("login" in names, "logout" in names, "y" * 300 in names, len(names.names()))
    assert found == (True, False, True, 1)
    for number in range(KnownCallSites.MAX_ENTRIES):
        names.add(f"made up {number}")
    found = ("login" in names, "logout" in names, len(names.names()))
    assert found == (True, True, KnownCallSites.MAX_ENTRIES)


def view(request: Any) -> None:
    """Stand in for a view."""


class OnClass(View):
    def get(self, request: Any) -> None:
        """Stand in for a view's method."""


class Heir(OnClass):
    pass


def test_a_view_is_named_by_its_module_and_function() -> None:
    """Subclasses are counted separately, and a lambda is named by its line too."""
    here = __name__
    assert default_group(view) == default_group(functools.partial(view)) == f"{here}.view"
    found = (default_group(OnClass.as_view()), default_group(Heir.as_view()))
    assert found == (f"{here}.OnClass", f"{here}.Heir")
    bound = Heir().get
    as_method_decorator_does = functools.wraps(Heir.get)(functools.partial(bound))
    for method in (bound, as_method_decorator_does, never_cache(as_method_decorator_does)):
        assert default_group(method) == f"{here}.Heir.get"
    one, other = (lambda request: None), (lambda request: None)
    assert default_group(one).startswith(
        f"{here}.test_a_view_is_named_by_its_module_and_function.<locals>.<lambda>:"
    )
    assert default_group(one) == default_group(other), "on one line"


def test_limits_of_call_sites_never_share_a_count() -> None:
    """Call sites that differ in group, methods, key or rate have different names of limits."""
    names = {
        limit_name(call_site(group, key, rate, method, 1, {}))
        for group in ("a", "b")
        for key in ("ip", "user", ("ip", "user"))
        for rate in ("5/m", "5/h")
        for method in (None, "GET", ["POST"])
    }
    assert len(names) == 2 * 3 * 2 * 3
