"""The demo: a Redis of its own (or the one in `REDIS_URL`), a fresh database with one user, and the site."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from contextlib import ExitStack
from io import StringIO
from pathlib import Path

import django
from django.core.management import call_command

from django_ratelimit_lua.testing import Server


def main() -> None:
    """Serve on `PORT` (8000) until Ctrl-C."""
    # Asked to stop in whatever way, leave through the same door as after Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    port = int(os.environ.get("PORT", "8000"))
    with ExitStack() as stack:
        if "REDIS_URL" not in os.environ:
            os.environ["REDIS_URL"] = stack.enter_context(Server()).url
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ratelimit-demo-"))
        os.environ.setdefault("EXAMPLE_DATABASE", str(Path(folder, "db.sqlite3")))
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
        django.setup()
        call_command("migrate", verbosity=0)

        from django.contrib.auth.models import Group, User

        if not User.objects.filter(username="ada").exists():
            User.objects.create_user("ada", password="lovelace")
        if not User.objects.filter(username="grace").exists():
            User.objects.create_superuser("grace", password="hopper")
            Group.objects.create(name="pro")
            call_command("ratelimit_rules", "import", Path(__file__).parent / "rules.yaml", stdout=StringIO())

        import uvicorn

        print(f"\n  The limits are kept in {os.environ['REDIS_URL']}")
        print(f"  Open http://127.0.0.1:{port}/ and stop with Ctrl-C.")
        print(f"  The rules: http://127.0.0.1:{port}/admin/ as grace, password hopper.")
        place = f"REDIS_URL={os.environ['REDIS_URL']} EXAMPLE_DATABASE={os.environ['EXAMPLE_DATABASE']}"
        print("  Commands for this database and this Redis, in another terminal, such as:")
        print(f"  {place} \\\n    {sys.executable} -m example_project.manage ratelimit_rules list\n", flush=True)
        uvicorn.run("example_project.asgi:application", port=port, log_level="warning")


if __name__ == "__main__":
    main()
