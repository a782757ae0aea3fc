"""Call functions when settings change, for example through `override_settings`.

This is the only receiver of Django's signal `setting_changed`.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase

from django.core.signals import setting_changed

_receivers: list[tuple[tuple[str, ...], Callable[[], object]]] = []


def on_change(names: tuple[str, ...], receive: Callable[[], object]) -> None:
    """Call a function whenever one of these settings has changed.

    Functions are called in the order of their registration. A name may end in a star: "RATELIMIT_*"
    matches all settings of this package.
    """
    _receivers.append((names, receive))


def _changed(*, setting: str, **kwargs: object) -> None:
    if setting == "CACHES":
        # Django's own receiver may come after this one. Until it has run,
        # `django.core.cache.caches` has the previous aliases, and another thread would open
        # connections to them.
        from django.test.signals import clear_cache_handlers

        clear_cache_handlers(setting=setting)
    for names, receive in _receivers:
        if any(fnmatchcase(setting, name) for name in names):
            receive()


setting_changed.connect(_changed, dispatch_uid="django_ratelimit_lua.conf")
