"""The request that a proxy describes: its address, its headers, its paths and its user."""

from __future__ import annotations

import json
import posixpath
import shutil
import subprocess
import sys
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from django_ratelimit_lua.contrib.gateway.described_request import (
    MAX_PATH_LENGTH,
    MAX_SEGMENTS,
    find_possible_paths,
    read_described_request,
)
from django_ratelimit_lua.contrib.gateway.http import meta_of

ODD = "/ // /.. /. .. \\ %2f %5C ; # a b %2e %61 ..; ;a=1"
ATTACKS = (
    r"/x/../login//../ /static\..\login/ /x/../login/..%2f..%2fy /a/%2e%2e/login /static/#/../b"
)
sent = st.lists(st.sampled_from(ODD.split()), max_size=12).map(lambda parts: "/" + "".join(parts))
NODE = """
for (const sent of JSON.parse(process.argv[1])) console.log(JSON.stringify(new URL("http://h" + sent).pathname))
"""  # noqa: E501
WITHOUT_USERS = """
import django
from django.conf import settings
settings.configure(SECRET_KEY="tests", INSTALLED_APPS=["django_ratelimit_lua", "django_ratelimit_lua.contrib.gateway"])
django.setup()
import django_ratelimit_lua.contrib.gateway.urls
from django_ratelimit_lua.contrib.gateway.described_request import ReportedUser
print(ReportedUser("ada"))
"""  # noqa: E501


@pytest.mark.parametrize(
    ("dialect", "trusted", "chain", "address"),
    [
        ("caddy", ["10.0.0.0/8"], "203.0.113.9", "203.0.113.9"),
        ("caddy", ["10.0.0.0/8"], "198.51.100.1, 203.0.113.9, 10.0.0.2", "203.0.113.9"),
        ("traefik", 2, "198.51.100.1, 203.0.113.9, 10.0.0.2", "203.0.113.9"),
        ("traefik", ["10.0.0.0/8"], "nonsense", "10.0.0.1"),
        ("nginx", ["10.0.0.0/8"], "10.9.9.9", "10.9.9.9"),
        ("envoy", 2, "::ffff:203.0.113.9", "::ffff:203.0.113.9"),
    ],
)
def test_the_address_is_the_one_that_trusted_proxies_report(
    settings: Any, dialect: str, trusted: Any, chain: str, address: str
) -> None:
    """It is the last address of the list that is not a trusted proxy's."""
    settings.RATELIMIT_GATEWAY_DIALECT, settings.RATELIMIT_TRUSTED_PROXIES = dialect, trusted
    said = {"METHOD": "GET", "URI": "/", "HOST": "shop.example", "ADDRESS": chain}
    asked = {f"HTTP_X_ORIGINAL_{name}": value for name, value in said.items()}
    asked |= {
        f"HTTP_X_FORWARDED_{name}": value for name, value in said.items() if name != "ADDRESS"
    }
    asked |= {"HTTP_X_FORWARDED_FOR": chain, "REMOTE_ADDR": "10.0.0.1"}
    asked |= {"HTTP_X_RATELIMIT_SECRET": "secret"}
    found = read_described_request(asked)
    assert found.META["REMOTE_ADDR"] == address
    assert found.META["HTTP_HOST"] == "shop.example"
    hidden = ("ORIGINAL", "FORWARDED", "SECRET")
    assert not [name for name in found.META if any(word in name for word in hidden)]


def test_header_names_are_matched_in_every_spelling() -> None:
    """Repeated headers are joined."""
    names = b"X-Original-URI x-original-uri X_Original-URI Cookie cookie content-type".split()
    names.append(b"y" * 500)
    meta = meta_of({"headers": [(name, b"%d" % number) for number, name in enumerate(names)]})
    assert meta == {
        "HTTP_X_ORIGINAL_URI": "0,1",
        "HTTP_COOKIE": "3; 4",
        "CONTENT_TYPE": "5",
        f"HTTP_{'Y' * 500}": "6",
    }


def test_a_site_without_users_accepts_any_text() -> None:
    """The user is counted by the text that the proxy reports."""
    command = [sys.executable, "-c", WITHOUT_USERS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "ada\n"


def _as_posix(path: str) -> str:
    """Return the path as Go's `path.Clean` does, without a final slash."""
    return "/" + posixpath.normpath(path).lstrip("/")


def _as_servlets(path: str) -> str:
    """Return the path without the parameters of its segments (Servlet 6, 3.5.2)."""
    parts = path.partition("#")[0].split("/")
    return _as_posix(unquote("/".join(part.partition(";")[0] for part in parts)))


@given(sent)
def test_the_readings_of_a_path_include_those_of_common_servers(path: str) -> None:
    """Servers keep or drop the text after `#` and parameters, or split at backslashes."""
    found = set(find_possible_paths(path))
    ends = found | {each.rstrip("/") or "/" for each in found}
    assert unquote(path.partition("#")[0]) in found
    for read in (path, urlsplit("http://h" + path).path):
        assert (_as_posix(unquote(read)) or "/") in ends
    assert _as_servlets(path) in ends
    assert _as_posix(unquote(path.partition("#")[0]).replace("\\", "/")) in ends


@pytest.mark.skipif(
    shutil.which("node") is None, reason="NO NODE TEST: node is not installed (Debian: nodejs)"
)
@hypothesis_settings(max_examples=5, deadline=None)
@given(st.lists(sent, min_size=20, max_size=200))
@example(ATTACKS.split())
def test_the_readings_of_a_path_include_that_of_the_url_standard(paths: list[str]) -> None:
    """Random paths and those of attackers are compared with the parser of Node."""
    run = ["node", "--eval", NODE, json.dumps(paths)]
    told = subprocess.run(run, capture_output=True, text=True, check=True).stdout.splitlines()
    for path, line in zip(paths, told, strict=True):
        assert unquote(json.loads(line)) in find_possible_paths(path), path


def test_an_ambiguous_path_that_is_too_long_is_refused() -> None:
    """Its readings would take long. A long path of plain segments is accepted."""
    assert find_possible_paths("/a" * 2000) == ("/a" * 2000,)
    with pytest.raises(ValueError, match=f"more than {MAX_SEGMENTS} segments"):
        find_possible_paths("/a/.." * 2000)
    with pytest.raises(ValueError, match=f"{MAX_PATH_LENGTH} characters"):
        find_possible_paths("/;" + "a" * MAX_PATH_LENGTH)
    assert len(find_possible_paths("/" + "a" * MAX_PATH_LENGTH)) == 1
