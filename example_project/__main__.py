"""The demo: a Redis of its own (or the one in `REDIS_URL`), a fresh database with two users, and
the site.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from datetime import timedelta
from io import StringIO
from pathlib import Path

import django
from django.core.management import call_command

from django_ratelimit_lua.testing import Server

ENVIRONMENT = """\
It is set up by environment variables:
  PORT              where it serves, on 127.0.0.1; without it, 8000
  REDIS_URL         the Redis to count in; without it, one is started, and ends with the demo
  EXAMPLE_DATABASE  the SQLite file; without it, a fresh one, which is deleted at the end
"""


def bound() -> socket.socket:
    """A socket on `PORT` (8000) of 127.0.0.1. Raises `SystemExit`, which says in one line why not,
    and what to do.
    """
    given = os.environ.get("PORT", "8000")
    found = socket.socket()
    # A port that the demo just left is free, whatever connections linger there.
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(("127.0.0.1", int(given)))
    except (OSError, ValueError, OverflowError) as error:
        found.close()
        why = error.strerror if isinstance(error, OSError) else "it is no port"
        sys.exit(
            f"PORT={given} cannot be used: {why}. Choose another, such as PORT=8001 in front of "
            "the command."
        )
    return found


def main() -> None:
    """Serve on `PORT` (8000) until Ctrl-C."""
    argparse.ArgumentParser(
        prog="python -m example_project",
        description="Serves the demo until Ctrl-C. It takes no arguments.",
        epilog=ENVIRONMENT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    # Asked to stop in whatever way, leave through the same door as after Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with ExitStack() as stack:
        listener = stack.enter_context(bound())
        port = listener.getsockname()[1]
        if "REDIS_URL" not in os.environ:
            os.environ["REDIS_URL"] = stack.enter_context(Server()).url
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ratelimit-demo-"))
        os.environ.setdefault("EXAMPLE_DATABASE", str(Path(folder, "db.sqlite3")))
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
        django.setup()
        call_command("migrate", verbosity=0)

        from django.contrib.auth.models import Group, User
        from django.utils import timezone

        from django_ratelimit_lua.models import RateLimitChange
        from django_ratelimit_lua.rules import provider

        from . import sample

        if not User.objects.filter(username="ada").exists():
            User.objects.create_user("ada", password="lovelace")
        if not User.objects.filter(username="grace").exists():
            User.objects.create_superuser("grace", password="hopper")
            Group.objects.create(name="pro")
            call_command(
                "ratelimit",
                "rules",
                "import",
                Path(__file__).parent / "rules.yaml",
                stdout=StringIO(),
            )
            weeks_ago = timezone.now() - timedelta(weeks=sample.WEEKS)
            RateLimitChange.objects.update(at=weeks_ago)
            provider.reload_ruleset()
            threading.Thread(target=sample.fill, args=(time.time(),), daemon=True).start()

        import uvicorn

        print(f"\n  The limits are kept in {os.environ['REDIS_URL']}")
        print(f"  Open http://127.0.0.1:{port}/ and stop with Ctrl-C.")
        print(f"  The rules: http://127.0.0.1:{port}/admin/ as grace, password hopper.")
        print("  The statistics of the time before this start are made up.")
        place = (
            f"REDIS_URL={os.environ['REDIS_URL']} EXAMPLE_DATABASE={os.environ['EXAMPLE_DATABASE']}"
        )
        print("  Commands for this database and this Redis, in another terminal, such as:")
        print(
            f"  {place} \\\n    {sys.executable} -m example_project.manage ratelimit rules list\n",
            flush=True,
        )
        # Whose word is taken for an address, the settings say.
        config = uvicorn.Config(
            "example_project.asgi:application", log_level="warning", proxy_headers=False
        )
        server = uvicorn.Server(config)
        with suppress(KeyboardInterrupt):
            server.run(sockets=[listener])


if __name__ == "__main__":
    main()
