"""The clients in the documentation, against the gateway on uvicorn."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from docs.gateway_files import FOLDER
from tests.contrib.gateway.proxies import Site

CLIENTS = {
    "decide.sh": ["bash"],
    "decide.js": ["node", "--input-type=module", "-"],
    "decide.go": ["go", "run"],
}
MAKE_CLIENT = """
from django_ratelimit_lua.contrib.gateway.models import RateLimitClient
client = RateLimitClient(name="shop", limits="mail")
print(client.new_token())
client.save()
"""


GENERATED_CLIENT = """
import os
from limits_client import AuthenticatedClient
from limits_client.api.default import decide
from limits_client.models import Answer, Charge, NamedIdentity, Problem, Question, QuestionOperation

client = AuthenticatedClient(base_url=os.environ["GATEWAY"], token=os.environ["TOKEN"])
ada = Charge(limit="mail", identity="ada")
grace = Charge(rule="mail", identity=NamedIdentity.from_dict({"ip": "203.0.113.9"}), cost=2)
taken = decide.sync(client=client, body=Question(charges=[ada, grace]))
assert isinstance(taken, Answer) and taken.allowed, taken
assert [decision.granted for decision in taken.decisions] == [1, 2], taken
for operation, more in ((QuestionOperation.PEEK, {}), (QuestionOperation.RESERVE, {"timeout": 1.0})):
    assert decide.sync(client=client, body=Question(charges=[ada], operation=operation, **more)).allowed
nowhere = Charge(limit="nowhere", identity=[1, "two", [None]])
refused = decide.sync(client=client, body=Question(charges=[nowhere]))
assert isinstance(refused, Problem) and refused.status == 403, refused
"""  # noqa: E501


@pytest.fixture(scope="module", params=["alone", "asgi"])
def environment(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Return an environment with the URL of the gateway and a token."""
    rules = [{"name": "mail", "group": "mail", "key": "ip", "rate": "100/h"}]
    with Site(tmp_path_factory.mktemp("clients"), rules, request.param) as site:
        token = site.command("shell", command=MAKE_CLIENT, verbosity=0).strip()
        # Go compiles its library once, which takes it most of a minute.
        cache = str(tmp_path_factory.getbasetemp() / "go")
        path = os.pathsep.join(
            [sysconfig.get_path("scripts"), os.environ["PATH"]]
        )  # Where a wheel has put it.
        gateway = f"http://127.0.0.1:{site.port}/ratelimit"
        yield {**os.environ, "GATEWAY": gateway, "TOKEN": token, "GOCACHE": cache, "PATH": path}


@pytest.mark.parametrize("name", CLIENTS)
def test_the_clients_in_the_documentation_work(environment: dict[str, str], name: str) -> None:
    """They are written for a shell, Node and Go."""
    command = list(CLIENTS[name])
    needed = [command[0], "curl"] if name == "decide.sh" else command[:1]
    if not all(shutil.which(tool, path=environment["PATH"]) for tool in needed):
        pytest.skip(f"NO CLIENT TEST: {command[0]} is not installed")
    source, sent = FOLDER / name, None
    if command[-1] == "-":
        sent = source.read_text()
    else:
        command = [*command, str(source)]
    command[0] = str(shutil.which(command[0], path=environment["PATH"]))
    done = subprocess.run(
        command,
        input=sent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if name == "decide.sh":
        assert json.loads(done.stdout)["allowed"]
    else:
        assert "left" in done.stdout


def test_a_client_can_be_generated_from_the_document(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """It has a model for each schema, and its defaults are accepted."""
    if find_spec("openapi_python_client") is None:
        pytest.skip("NO CLIENT TEST: openapi-python-client is not installed")
    config = tmp_path / "config.yaml"
    config.write_text("post_hooks: []")
    generate = [
        sys.executable,
        "-m",
        "openapi_python_client",
        "generate",
        "--meta=none",
        f"--config={config}",
    ]
    options = [
        f"--url={environment['GATEWAY']}/openapi.json",
        f"--output-path={tmp_path / 'limits_client'}",
    ]
    for command in (
        [*generate, *options, "--fail-on-warning"],
        [sys.executable, "-c", GENERATED_CLIENT],
    ):
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
