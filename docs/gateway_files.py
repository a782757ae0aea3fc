"""Writes what `manage.py ratelimit proxy` prints into docs/gateway: `python -m docs.gateway_files`.
A test compares.
"""

from __future__ import annotations

import os
from io import StringIO
from pathlib import Path

FOLDER = Path(__file__).parent / "gateway"
SECRET = "write-a-secret-of-your-own-here"


def printed(proxy: str) -> str:
    """What the command prints for a proxy, as the page shows it."""
    from django.core.management import call_command
    from django.test import override_settings

    told = StringIO()
    with override_settings(
        ROOT_URLCONF="tests.contrib.gateway.gateway_site",
        RATELIMIT_GATEWAY_DIALECT=proxy.removesuffix("-grpc"),
        RATELIMIT_GATEWAY_SECRET=SECRET,
        RATELIMIT_TIMEOUT=0.1,
    ):
        call_command(
            "ratelimit",
            "proxy",
            proxy,
            listen="0.0.0.0:80",
            upstream="127.0.0.1:3000",
            gateway="127.0.0.1:8081" if proxy == "envoy-grpc" else "127.0.0.1:8001",
            stdout=told,
        )
    return told.getvalue()


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    os.environ.setdefault("RATELIMIT_TEST_ANNEXES", "gateway")
    import django

    django.setup()
    from django_ratelimit_lua.contrib.gateway.verbs import FILES

    FOLDER.mkdir(exist_ok=True)
    for proxy, name in FILES.items():
        (FOLDER / name).write_text(printed(proxy))
