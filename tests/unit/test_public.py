"""What is public: names that other projects may import, and that stay."""

from __future__ import annotations

import importlib
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.kept import is_available

PUBLIC = {
    "": "ALL Decision Key Limit LimitError LimitState Rate RateLimiter Ratelimited UNSAFE "
    "ratelimit ratelimit_exempt",
    "asgi": "finish_at_shutdown",
    "core": "ALL UNSAFE Usage get_usage is_ratelimited",
    "decorators": "ALL UNSAFE ratelimit",
    "exceptions": "LimitError Ratelimited StoreError",
    "contrib.gateway.asgi": "application",
    "contrib.gateway.urls": "urlpatterns",
    "middleware": "RateLimitMiddleware",
    "models": "RateLimitChange RateLimitOverride RateLimitRevision RateLimitRule RateLimitTier",
    "operations": "ActiveBan BadReferenceError ClientAddress Explanation Health KnownLimit "
    "OpenedReference "
    "RuleError active_bans ahealth client_address compile_rule explain finish health lift_bans "
    "normalised "
    "open_reference publish reading",
    "contrib.breakers": "CircuitBreaker CircuitOpen circuit",
    "contrib.breakers.models": "RateLimitBreaker",
    "contrib.breakers.signals": "circuit_closed circuit_half_open circuit_opened",
    "contrib.statistics.prometheus": "Collector register",
    "contrib.statistics.urls": "urlpatterns",
    "signals": "banned limit_exceeded rules_changed slot_lost store_down store_up",
    "store": "ClusterConnectionFactory",
    "testing": "Server move_clock override_ratelimits",
    "throttling": "AnonRateThrottle BaseThrottle RuleThrottle ScopedRateThrottle "
    "SimpleRateThrottle UserRateThrottle "
    "exception_handler",
    "apps": "RatelimitConfig",
    "pytest_plugin": "override_ratelimits ratelimit_clock ratelimit_server",
}
AVAILABLE = [name for name in PUBLIC if is_available(f"django_ratelimit_lua.{name}")]
DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", AVAILABLE)
def test_public_names_can_be_imported(name: str) -> None:
    """Every name can be imported from where it is documented; what a module lists as its own is
    what is public.
    """
    module = importlib.import_module(f"django_ratelimit_lua.{name}".rstrip("."))
    names = PUBLIC[name].split()
    assert [missing for missing in names if not hasattr(module, missing)] == []
    if name != "store" and hasattr(module, "__all__"):
        others = {*module.__all__} - {*names}  # Modules, from which annexes import.
        assert {*names} <= {*module.__all__}
        assert all(find_spec(f"{module.__name__}.{other}") for other in others)


def test_the_documentation_uses_only_public_names() -> None:
    """In the reference, and in every example: nobody is taught to import what may move."""
    public = {f"django_ratelimit_lua.{name}".rstrip(".") for name in PUBLIC}
    taught = set()
    for page in [*DOCS.rglob("*.rst"), DOCS.parent / "README.md"]:
        modules = re.findall(r"from (django_ratelimit_lua[\w.]*) import", page.read_text())
        taught |= {(page.name, module) for module in modules}
    assert {(page, module) for page, module in taught if module not in public} == set()
    reference = (DOCS / "reference" / "python.rst").read_text()
    for path in re.findall(r":: (?:django_ratelimit_lua\.)([\w.]+)$", reference, re.MULTILINE):
        module, _, name = path.rpartition(".")
        assert name in PUBLIC[module].split(), path
