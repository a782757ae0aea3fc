"""The address of a client behind proxies, with a corpus of hostile headers and with random ones."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from django.http import HttpRequest
from django.test import override_settings
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from django_ratelimit_lua.identity.address import (
    UNKNOWN,
    ClientAddress,
    client_address,
    iter_entries,
    parse_address,
)
from tests.examples import examples

CLIENT, SPOOFED, INNER = "198.51.100.7", "203.0.113.66", "10.1.2.3"
PROXIES = ["10.0.0.0/8", "fd00::/8", "unix"]


def found(
    header: str | None, peer: str = "10.0.0.1", name: str = "X-Forwarded-For"
) -> ClientAddress:
    request = HttpRequest()
    request.META["REMOTE_ADDR"] = peer
    if header is not None:
        request.META["HTTP_" + name.upper().replace("-", "_")] = header
    return client_address(request)


def address(
    header: str | None, peer: str = "10.0.0.1", name: str = "X-Forwarded-For"
) -> str | None:
    client = found(header, peer, name)
    assert client.why
    return client.network


GARBAGE = [
    *("", " ", ",", ",,", ", ,", "\x00", "\t", "\r\n", "-", "_", "unknown", "_hidden", "null"),
    *("localhost", "client.example", "1.2.3", "1.2.3.4.5", "256.1.1.1", "1.2.3.4/8", "01.02.03.04"),
    *("0x7f000001", "2130706433", "1.2.3.-4", "１.２.３.４", "[", "]", "[]", "[::1", "::1]"),
    *("[1.2.3.4", ":", "::", ":::", "1::2::3", "g::1", "%", "fe80::1%", "%eth0"),
    *("[fe80::1%25eth0]", "1.2.3.4:", ":80", "1.2.3.4:http", "[::1]:", "[::1]x", '"', '""'),
    *('"1.2.3.4', "'1.2.3.4'", "<script>", "' OR 1=1 --", "{identity}", "}", "%00", "%s%s%n"),
    *("../../etc/passwd", "\u202e4.3.2.1", "\ud800", "😀", "A" * 9000, "1" * 9000, ":" * 9000),
    *("9" * 5000 + ".1.1.1", ",".join(["10.0.0.9"] * 3000), ",".join([SPOOFED] * 3000), "," * 9000),
    *("\\", '\\"', "for=", "for", "for=1.2.3.4", "for;for;for", ";;;;", "=====", 'for="'),
    *("\n1.2.3.4", "127.0.0.1", "0.0.0.0", "::1", "255.255.255.255"),
]


@pytest.fixture(autouse=True)
def behind_proxies(settings: Any) -> None:
    settings.RATELIMIT_TRUSTED_PROXIES = PROXIES


def test_the_corpus_of_hostile_headers_is_large() -> None:
    """Each kind of header has at least 200 hostile values for the tests below."""
    assert len(corpus("x-forwarded-for")) >= 200
    assert len(corpus("forwarded")) >= 200


def corpus(kind: str) -> list[str]:
    """Return the values that a client may send before the entries that proxies append."""
    addresses = (SPOOFED, f"{SPOOFED}:80", f"[{SPOOFED}]", f'"{SPOOFED}"', "::ffff:" + SPOOFED)
    singles = [*GARBAGE, *addresses, INNER, "fd00::9"]
    starts = [SPOOFED, INNER, '"', "", "for="]
    pairs = [f"{a},{b}" for a, b in itertools.product(starts, singles[::3])]
    if kind == "forwarded":
        singles += [f"for={value}" for value in singles]
        singles += [f'for="{SPOOFED}', 'x="', f'for={SPOOFED};x="', f'for="{SPOOFED}";host="']
        singles += [f'for=\\"{SPOOFED}', 'a="\\', 'b="\\"', f"for={SPOOFED},for={INNER}"]
        singles += [f"For={SPOOFED}", f"for = {SPOOFED}", f"for={SPOOFED};;;", f'for="{SPOOFED}, ']
    return singles + pairs


@pytest.mark.parametrize("kind", ["X-Forwarded-For", "Forwarded"])
@pytest.mark.parametrize(
    "written", ["{client}", "{client}:4711", '"{client}"', "{client},{inner}", "::ffff:{client}"]
)
def test_forged_headers_do_not_change_the_address_behind_trusted_networks(
    kind: str, written: str, settings: Any
) -> None:
    """Behind trusted networks, the address is the nearest entry that is not a trusted proxy,
    whatever the client sends.
    """
    settings.RATELIMIT_PROXY_HEADER = kind
    appended = written.format(client=CLIENT, inner=INNER)
    if kind == "Forwarded":
        # Quoted where RFC 7239 wants it: with a port or a colon.
        hops = [hop.strip('"') for hop in appended.split(",")]
        appended = ",".join(
            f'for="{hop if hop.count(":") < 2 else f"[{hop}]"}";proto=https;host=""' for hop in hops
        )
    for sent in corpus(kind.lower()):
        assert address(f"{sent}, {appended}", name=kind) == CLIENT, sent


def test_forged_entries_do_not_change_the_address_behind_two_proxies(
    settings: Any,
) -> None:
    """Behind two proxies, the client is the second entry from the right, whatever stands to the
    left of it.
    """
    settings.RATELIMIT_TRUSTED_PROXIES = 2
    for sent in corpus("x-forwarded-for"):
        assert address(f"{sent},{CLIENT}, {INNER}") == CLIENT, sent


@pytest.mark.parametrize("trusted", [None, 0, ["192.168.0.0/16"]])
def test_headers_are_ignored_without_trusted_proxies(trusted: Any, settings: Any) -> None:
    """So they are if the peer is not a trusted proxy."""
    settings.RATELIMIT_TRUSTED_PROXIES = trusted
    for sent in corpus("x-forwarded-for"):
        assert address(sent, peer=CLIENT) == CLIENT


@pytest.mark.parametrize(
    ("header", "peer", "expected"),
    [
        (None, "10.0.0.1", "10.0.0.1"),  # The proxy itself, asking after our health.
        ("", "10.0.0.1", "10.0.0.1"),
        (CLIENT, "", CLIENT),  # By a Unix socket.
        (None, "", None),
        (CLIENT, "no address", UNKNOWN),
        ("2001:db8:1:2::9", "fd00::1", "2001:db8:1:2::"),
        ("[2001:db8:1:2::9]:4711", "10.0.0.1", "2001:db8:1:2::"),
        ("2001:db8:1:2:0:0:0:9:4711", "10.0.0.1", "2001:db8:1:2::"),
        ("2001:db8:1:2::9:47110", "10.0.0.1", "2001:db8:1:2::"),
        ("::ffff:198.51.100.7:80", "10.0.0.1", CLIENT),
        (":::", "10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "10.0.0.1", "fe80::"),
        ("10.9.9.9, 10.8.8.8", "10.0.0.1", "10.9.9.9"),  # All trusted: the request began inside.
        (
            "unknown, 10.8.8.8",
            "10.0.0.1",
            "10.8.8.8",
        ),  # The entry before a trusted proxy is unknown.
        (f"{CLIENT}, 10.0.0.2", "::ffff:10.0.0.1", CLIENT),
    ],
)
def test_headers_of_honest_proxies_are_parsed(
    header: str | None, peer: str, expected: str | None
) -> None:
    """They may have ports, brackets and zones, or come by a Unix socket."""
    assert address(header, peer) == expected


FIRST = "it is entry 1 from the right of X-Forwarded-For"
NO_ADDRESS = "X-Forwarded-For is not an address"


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (None, "it is REMOTE_ADDR, a trusted proxy that sent no X-Forwarded-For"),
        ("unknown", f"it is REMOTE_ADDR, a trusted proxy; the last entry of {NO_ADDRESS}"),
        (f"{CLIENT},", f"it is REMOTE_ADDR, a trusted proxy; the last entry of {NO_ADDRESS}"),
        (f"unknown, {INNER}", f"{FIRST}; the entry before it in {NO_ADDRESS}"),
        (INNER, f"{FIRST}, and all of them are trusted proxies"),
        (CLIENT, f"{FIRST}, the first that is not a trusted proxy"),
    ],
)
def test_the_reason_for_an_address_is_explained(header: str | None, why: str) -> None:
    """The reason distinguishes a missing header from a header with an invalid entry."""
    assert found(header).why == why


def test_a_socket_is_trusted_only_if_it_is_configured(settings: Any) -> None:
    """It is if the setting has "unix", or is a number of proxies."""
    settings.RATELIMIT_TRUSTED_PROXIES = ["10.0.0.0/8"]
    assert address(CLIENT, "") is None
    settings.RATELIMIT_TRUSTED_PROXIES = 1
    assert address(CLIENT, "") == CLIENT


def test_a_header_with_fewer_entries_than_proxies_has_bypassed_them(settings: Any) -> None:
    """The client may have sent it, so the peer's address is counted."""
    settings.RATELIMIT_TRUSTED_PROXIES = 3
    assert address(f"{SPOOFED}, {SPOOFED}", CLIENT) == CLIENT
    assert address(None, CLIENT) == CLIENT


def test_the_number_of_proxies_in_a_chain_is_bounded() -> None:
    """Thousands of trusted entries cost a bounded time."""
    assert address(",".join([SPOOFED] + ["10.0.0.9"] * 3000)) == "10.0.0.9"
    assert len(list(iter_entries(",".join(["10.0.0.9"] * 3000), "x-forwarded-for"))) == 32
    assert len(list(iter_entries(",".join(["for=10.0.0.9"] * 3000), "forwarded"))) == 32


@hypothesis_settings(max_examples=examples(500), suppress_health_check=list(HealthCheck))
@given(
    sent=st.text(max_size=200) | st.lists(st.sampled_from(GARBAGE), max_size=8).map(",".join),
    hops=st.lists(st.sampled_from(["10.0.0.9", "10.255.0.1", "fd00::2"]), max_size=4),
    kind=st.sampled_from(["X-Forwarded-For", "Forwarded"]),
    counted=st.booleans(),
)
def test_a_forged_header_raises_no_exception_and_spoofs_no_address(
    sent: str, hops: list[str], kind: str, counted: bool
) -> None:
    """The entries of trusted proxies follow any text."""
    trusted = len(hops) + 1 if counted else PROXIES
    appended = [CLIENT, *hops]
    if kind == "Forwarded":
        appended = [f'for="[{hop}]"' if ":" in hop else f"for={hop}" for hop in appended]
    with override_settings(RATELIMIT_TRUSTED_PROXIES=trusted, RATELIMIT_PROXY_HEADER=kind):
        assert address(", ".join([sent, *appended]), name=kind) == CLIENT
        address(sent, name=kind)
        address(sent, peer=sent, name=kind)


def test_an_overlong_address_is_invalid() -> None:
    """An overlong address is invalid, unless only white space makes it long."""
    assert str(parse_address(" " * 9000 + "[fe80::1%eth0]:65535")) == "fe80::1"
    assert parse_address("1" * 800_000) is None
    assert parse_address("192.0.2.1" + ":" + "0" * 200) is None
