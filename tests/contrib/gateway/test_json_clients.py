"""Clients of the protocol over HTTP, against the gateway on uvicorn: those of the documentation,
and many at once, written in Go.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from docs.gateway_files import FOLDER
from tests.contrib.gateway.proxies import SECRET, Site

CLIENTS = {
    "ask.sh": ["bash"],
    "ask.js": ["node", "--input-type=module", "-"],
    "ask.go": ["go", "run"],
}
RULES = [
    {
        "name": "mail",
        "descriptor": ["domain=site", "generic_key=mail", "user"],
        "key": "user",
        "rate": "100/h",
    },
    {"name": "impatient", "descriptor": ["generic_key=impatient"], "rate": "300/d"},
    {"name": "killed", "descriptor": ["generic_key=killed"], "rate": "300/d"},
]
RUSH = """\
package main

import ("encoding/json"; "fmt"; "net/http"; "os"; "strconv"; "strings"; "sync"; "time")

// Sends requests of 16 clients, and prints how many had which status; 0: no response.
func main() {
	total, _ := strconv.Atoi(os.Args[2])
	timeout, _ := time.ParseDuration(os.Args[3])
	client := &http.Client{Timeout: timeout}
	body := `{"domain": "x", "descriptors": [{"entries": [{"key": "generic_key", "value": "` + os.Args[1] + `"}]}]}`
	statuses := map[int]int{}
	var lock sync.Mutex
	var clients sync.WaitGroup
	for number := 0; number < 16; number++ {
		clients.Add(1)
		go func(count int) {
			defer clients.Done()
			for ; count > 0; count-- {
				request, _ := http.NewRequest("POST", os.Getenv("GATEWAY")+"/json", strings.NewReader(body))
				request.Header.Set("X-RateLimit-Secret", os.Getenv("SECRET"))
				status := 0
				if response, err := client.Do(request); err == nil {
					status = response.StatusCode
					var decided map[string]any
					if json.NewDecoder(response.Body).Decode(&decided) != nil { status = -1 }
					response.Body.Close()
				} else { time.Sleep(20 * time.Millisecond) }
				lock.Lock()
				statuses[status]++
				lock.Unlock()
			}
		}((total + number) / 16)
	}
	clients.Wait()
	printed, _ := json.Marshal(statuses)
	fmt.Println(string(printed))
}
"""  # noqa: E501


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


@pytest.fixture(scope="module")
def rush(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the command of a program that sends many requests at once."""
    folder = tmp_path_factory.mktemp("rush")
    (folder / "rush.go").write_text(RUSH)
    go = tool("go", environment)
    output([go, "build", "-o", "rush", "rush.go"], environment, cwd=folder)
    return [str(Path(folder) / "rush")]


def statuses(printed: str) -> dict[int, int]:
    return {int(status): count for status, count in json.loads(printed).items()}


@pytest.mark.alone
def test_clients_that_hang_up_get_no_further_units(
    environment: dict[str, str], rush: list[str]
) -> None:
    """They may lose units, and never exceed the limit. The gateway goes on."""
    hasty = statuses(output([*rush, "impatient", "1000", "3ms"], environment))
    patient = statuses(output([*rush, "impatient", "1000", "30s"], environment))
    assert hasty[0] > 0
    assert patient.keys() <= {200, 429}
    assert hasty.get(200, 0) + patient.get(200, 0) <= 300
    assert patient[429] >= 700


@pytest.mark.alone
def test_a_killed_gateway_loses_no_count(
    site: Site, environment: dict[str, str], rush: list[str]
) -> None:
    """It is killed and restarted while clients send requests. Only the calls that it was deciding
    may have counted without a response.
    """
    command = [*rush, "killed", "1000", "30s"]
    redis = Redis.from_url(site.redis.url)
    before = redis.dbsize()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as clients:
        while redis.dbsize() == before:
            pass
        os.kill(site.pid, signal.SIGKILL)
        site.stop()
        site.start()
        during = statuses(clients.stdout.read())
    after = statuses(output(command, environment))
    admitted = during.get(200, 0) + after.get(200, 0)
    assert 300 - 16 <= admitted <= 300
    assert after.keys() <= {200, 429}
