"""The clients of the documentation, against the gateway on uvicorn."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from typing import Any

import pytest

from docs.gateway_files import FOLDER
from tests.contrib.gateway.proxies import SECRET, Site

CLIENTS = {
    "ask.sh": ["bash"],
    "ask.js": ["node", "--input-type=module", "-"],
    "ask.go": ["go", "run"],
}
DESCRIPTOR = ["domain=site", "generic_key=mail", "user"]
RULES = [{"name": "mail", "descriptor": DESCRIPTOR, "key": "user", "rate": "100/h"}]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("clients"), RULES) as found:
        yield found


@pytest.fixture(scope="module")
def environment(site: Site, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment with the URL and the secret of the gateway."""
    # Go compiles its library once, which takes it most of a minute.
    cache = str(tmp_path_factory.getbasetemp() / "go")
    # A wheel puts the tool into the first of these folders.
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    gateway = f"http://127.0.0.1:{site.port}/ratelimit"
    return {**os.environ, "GATEWAY": gateway, "SECRET": SECRET, "GOCACHE": cache, "PATH": path}


def tool(name: str, environment: dict[str, str]) -> str:
    """Return the path of a program, or skip the test."""
    found = shutil.which(name, path=environment["PATH"])
    if found is None:
        pytest.skip(f"NO CLIENT TEST: {name} is not installed")
    return found


def output(command: list[str], environment: dict[str, str], **more: Any) -> str:
    """Run a command, and return its output."""
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False, **more
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", CLIENTS)
def test_the_clients_in_the_documentation_work(environment: dict[str, str], name: str) -> None:
    """They are written for a shell, Node and Go."""
    program, *options = CLIENTS[name]
    source = FOLDER / name
    command = [tool(program, environment), *options]
    if name == "ask.sh":
        tool("curl", environment)
    text = None
    if options[-1:] == ["-"]:
        text = source.read_text()
    else:
        command.append(str(source))
    printed = output(command, environment, input=text)
    if name == "ask.sh":
        assert json.loads(printed)["overallCode"] == "OK"
    else:
        assert printed.startswith("OK ")
        assert printed.endswith(" left\n")
