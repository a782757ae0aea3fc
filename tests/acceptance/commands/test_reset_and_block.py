"""`ratelimit reset`, `ratelimit block` and `ratelimit unblock` apply to the next request."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from django_ratelimit_lua.models import RateLimitChange, RateLimitOverride
from tests.acceptance.admin import test_explained_views as explained
from tests.acceptance.admin.test_explained_views import ADDRESS, VIEWS

pytestmark = pytest.mark.django_db(transaction=True)
OPTIONS = {
    "post": "field",
    "json": "json",
    "header": "header",
    "cookie": "cookie",
    "get": "query",
    "data": "field",
}


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = explained.__name__
    settings.MIDDLEWARE = ["django_ratelimit_lua.middleware.RateLimitMiddleware"]


def said(command: str, *arguments: str) -> str:
    output = io.StringIO()
    call_command("ratelimit", command, *arguments, stdout=output, stderr=output)
    return output.getvalue()


def status(path: str = "/ok/", address: str = ADDRESS, **meta: Any) -> int:
    return int(Client(REMOTE_ADDR=address).get(path, **meta).status_code)


@pytest.mark.parametrize(
    "name", ["both", "throttled", "form", "json", "header", "cookie", "query", "data", "host"]
)
def test_a_reset_lets_the_next_request_pass(name: str) -> None:
    """The request is described by options. `explain` first reports that it would be refused."""
    case = VIEWS.get(name) or explained.Case(
        None, 1, "host/", sends={"headers": {"host": "one.example"}}
    )
    asked = ["--path", f"/{case.path or name + '/'}", "--method", case.method]
    asked += ["--ip", ADDRESS, "--host", "one.example"]
    for field, value in case.fields:
        kind, _colon, part = field.partition(":")
        asked += [
            f"--{OPTIONS[kind]}",
            f"{part}:{value}" if kind == "header" else f"{part}={value}",
        ]
    assert 429 in [explained.visit(case, name) for _ in range(3)]
    assert "would be refused." in said("rules", "explain", *asked)
    text = said("reset", *asked)
    assert text.startswith("reset: ")
    assert text.endswith("The next request like this would be allowed.\n")
    assert explained.visit(case, name) == 200
    assert {change.by for change in RateLimitChange.objects.all()} == {"ratelimit reset"}


def test_a_reset_without_effect_is_reported() -> None:
    """The output names the limits that apply, or reports that there are none."""
    text = said("reset", "--path", "/posted/", "--method", "POST", "--ip", ADDRESS)
    assert "Nothing was reset: this request has no count under tests.acceptance" in text
    text = said("reset", "--path", "/posted/")
    assert "Nothing was reset: no limit applies to this request." in text
    assert not RateLimitChange.objects.exists()


def test_one_of_several_limits_can_be_reset() -> None:
    """A name of another limit is an error with the names of those that apply."""
    assert [status("/both/") for _ in range(3)] == [200, 200, 429]
    names = [f"{explained.__name__}.OnBoth.get:*:ip:{rate}" for rate in ("2/h", "5/h")]
    assert f"reset: {names[0]}\nThe next" in said(
        "reset", "--path", "/both/", "--ip", ADDRESS, "--limit", names[0]
    )
    assert status("/both/") == 200
    with pytest.raises(
        CommandError,
        match=r"the limit 'nothing' does not apply to this request; limits that apply: .*5/h",
    ):
        said("reset", "--path", "/both/", "--limit", "nothing")


def test_block_and_unblock_commands_work_for_every_subject() -> None:
    """A block lasts for an hour, for a given time or for good."""
    User.objects.create(username="ada")
    for asked, meta in (
        (("--ip", ADDRESS), {}),
        (("--ip", "203.0.113.0/24"), {}),
        (("--header", "X-API-Key: hush"), {"headers": {"x-api-key": "hush"}}),
        (("--cookie", "c=1"), {"headers": {"cookie": "c=1"}}),
        (("--query", "q=x"), {"query_params": {"q": "x"}}),
    ):
        text = said("block", *asked, "--reason", "scraper")
        assert " is blocked until 2" in text
        assert f" {timezone.localtime():%Z}: override " in text
        assert (status(**meta), status(address="192.0.2.1")) == (429, 200)
        assert "ended: override" in said("unblock", *asked)
        assert status(**meta) == 200
    override = RateLimitOverride.objects.latest("pk")
    assert (override.reason, override.created_by) == ("scraper", "ratelimit block")
    assert " is blocked for good: override" in said("block", "--user", "ada", "--for-good")
    assert RateLimitOverride.objects.latest("pk").ends is None
    said("block", "--ip", ADDRESS, "--for", "30m")
    override = RateLimitOverride.objects.latest("pk")
    assert 1790 < (override.ends - override.created_at).total_seconds() < 1810
    found = {change.by for change in RateLimitChange.objects.all()}
    assert found == {"ratelimit block", "ratelimit unblock"}


def test_a_block_under_an_earlier_secret_is_unblocked(settings: Any) -> None:
    """This holds for every kind of subject."""
    settings.RATELIMIT_KEY_SECRET = "old"
    User.objects.create(username="ada")
    asked = (
        ("--ip", ADDRESS),
        ("--user", "ada"),
        ("--header", "X-API-Key: hush"),
        ("--digest", "a" * 32),
    )
    for one in asked:
        said("block", *one)
    settings.RATELIMIT_KEY_SECRET = ["new", "old"]
    headers = {"x-api-key": "hush"}
    assert status(headers=headers) == 429
    for one in asked:
        assert "ended: override" in said("unblock", *one)
    assert status(headers=headers) == 200


def test_a_block_of_a_large_network_has_to_be_confirmed(settings: Any) -> None:
    """This includes a block of a proxy, which all clients come through."""
    settings.RATELIMIT_TRUSTED_PROXIES = ["192.0.2.0/24"]
    for network, problem in (
        ("0.0.0.0/0", "large part of the whole internet"),
        ("::/0", "large part"),
        ("192.0.2.7", "a proxy of this site"),
    ):
        with pytest.raises(
            CommandError, match=rf"(?s){problem}.*\nNothing was changed. Use --confirm"
        ):
            said("block", "--ip", network)
    assert not RateLimitOverride.objects.exists()
    assert "0.0.0.0/0 is blocked until" in said("block", "--ip", "0.0.0.0/0", "--confirm")


def test_unblock_lists_the_blocks_that_it_did_not_end() -> None:
    """It names the blocked networks that contain the address."""
    said("block", "--ip", "203.0.112.0/20")
    text = said("unblock", "--ip", ADDRESS)
    assert f"Nothing was ended: there is no block for {ADDRESS}." in text
    assert f"{ADDRESS} is still blocked by the block of 203.0.112.0/20: override " in text
    assert status() == 429
    assert "203.0.112.0/20 is blocked" not in said("unblock", "--ip", "192.0.2.1")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ("block",),
            "name exactly one subject, with one of --user, --ip, --digest, .*; "
            "make one override for each",
        ),
        (("block", "--cookie", "c=1", "--cookie", "d=2"), "name exactly one subject"),
        (("block", "--field", "d= "), "The value is missing"),
        (("block", "--ip", "nowhere"), "--ip 'nowhere' is not an address or network"),
        (("block", "--ip", ADDRESS, "--for", "ever"), "--for 'ever': write a number and a unit"),
        (("block", "--ip", ADDRESS, "--for", "0m"), "--for '0m': write"),
        (("unblock", "--user", "nobody"), "--user 'nobody': no user has this name"),
        (("unblock", "--field", "username"), "--field 'username': use NAME=VALUE"),
        (("reset", "--ip", "203.0.113.0/24"), "is not an address"),
        (("reset", "--field", "a=1", "--json", "b=2"), "both form fields and JSON fields"),
    ],
)
def test_errors_of_block_and_reset_are_explained(arguments: tuple[str, ...], problem: str) -> None:
    """The error names valid values, and nothing is changed."""
    with pytest.raises(CommandError, match=problem):
        said(*arguments)
    assert not RateLimitOverride.objects.exists()
