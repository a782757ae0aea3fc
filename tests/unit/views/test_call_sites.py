"""Limits in the code, which are rules without a name."""

from __future__ import annotations

import functools
from typing import Any

from django.views import View
from django.views.decorators.cache import never_cache

from django_ratelimit_lua.views.call_sites import KnownCallSites, compile_call_site
from django_ratelimit_lua.views.inspection import default_group
from tests.unit.rules.test_rule import limit_name


def test_an_unlisted_name_may_be_a_call_site_if_the_list_is_full() -> None:
    """Otherwise a name that is not listed is no call site."""
    sites = KnownCallSites()
    sites.add_name("login")
    sites.add_name("y" * 300)
    names = ("login", "logout", "y" * 300)
    assert [sites.may_contain(name) for name in names] == [True, False, True]
    assert sites.names() == ["login"]
    for number in range(KnownCallSites.MAX_ENTRIES):
        sites.add_name(f"made up {number}")
    assert sites.may_contain("logout")
    assert "logout" not in sites
    assert len(sites.names()) == KnownCallSites.MAX_ENTRIES


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
        limit_name(compile_call_site(group, key, rate, method, 1, {}))
        for group in ("a", "b")
        for key in ("ip", "user", ("ip", "user"))
        for rate in ("5/m", "5/h")
        for method in (None, "GET", ["POST"])
    }
    assert len(names) == 2 * 3 * 2 * 3
