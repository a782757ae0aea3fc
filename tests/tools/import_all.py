"""Imports every module of the package, with warnings as errors: `python -m tests.tools.import_all`.

`.ci/run` runs this in the newest Python that npm has, which has no sockets, threads or extensions.
"""

from __future__ import annotations

import os
import pkgutil
import sys
import warnings
from importlib import import_module

MISSING = ("grpc", "google", "opentelemetry", "prometheus_client")
"""Packages of extras, which need not be installed here."""


def names() -> list[str]:
    """Return the names of all modules of the package."""
    import django_ratelimit_lua

    found = pkgutil.walk_packages(django_ratelimit_lua.__path__, "django_ratelimit_lua.")
    return [module.name for module in found]


def main() -> int:
    """Import the modules, and return 1 if one fails."""
    warnings.simplefilter("error")
    if sys.platform == "emscripten":
        sys.modules["grpc"] = None  # type: ignore[assignment] # It is an extension in C.
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
    import django

    django.setup()
    failed, left_out = [], []
    modules = names()
    for name in modules:
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            if str(error.name).partition(".")[0] in MISSING:
                left_out.append(f"{name}: no {error.name}")
            else:
                failed.append(f"{name}: {error!r}")
        except Exception as error:
            failed.append(f"{name}: {error!r}")
    print("\n".join([*left_out, *failed]))
    print(f"Python {sys.version.split()[0]}: {len(modules)} modules, {len(failed)} failed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
