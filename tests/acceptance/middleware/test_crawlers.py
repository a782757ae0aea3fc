"""Rules against crawlers: gunicorn behind nginx, with the settings of the how-to page."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.acceptance.middleware.crawled_site import Site, blocks, crawled_site, documented_settings
from tests.contrib.gateway.proxies import Answer, ask, binary

pytestmark = pytest.mark.skipif(binary("nginx") is None, reason="NO NGINX TEST: not installed")
BROWSER = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
NAMED = "Mozilla/5.0 (compatible; GPTBot/1.2; +https://openai.com/gptbot)"
GOOGLEBOT = "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)"
VIEW = 2000
"""Milliseconds for which the only worker is busy."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("crawled")
    with crawled_site(folder, documented_settings(folder / "google.json")) as site:
        yield site


def send(port: int, client: str, user_agent: str = BROWSER, **headers: str) -> Answer:
    return ask(
        port, "/0", client=client, User_Agent=user_agent, Accept="application/json", **headers
    )


def refused_by(answer: Answer) -> str:
    """Return the rule that refused, or an empty text."""
    if answer.status == 200:
        return ""
    [rule] = answer.json()["violated-policies"]
    return str(rule)


def test_the_page_has_ten_lines_of_settings() -> None:
    """The settings to copy are ten lines, which all tests here use."""
    assert len(blocks("python")[0].strip().splitlines()) == 10


def test_in_calm_times_only_false_crawlers_are_refused(site: Site) -> None:
    """A client that claims to be Googlebot from another network gets a 429, all others a page."""
    assert refused_by(send(site.proxy, "127.9.0.1")) == ""
    assert refused_by(send(site.proxy, "127.9.0.2", NAMED)) == ""
    assert refused_by(send(site.proxy, "127.66.249.7", GOOGLEBOT)) == ""
    false = send(site.proxy, "127.9.0.3", GOOGLEBOT)
    assert (false.status, refused_by(false)) == (429, "false-googlebot")


def rush(site: Site, *requests: tuple[str, str, str]) -> list[Answer]:
    """Send requests (address, user agent, cookie) at once while the only worker is busy."""
    with ThreadPoolExecutor(len(requests) + 1) as pool:
        pool.submit(ask, site.proxy, f"/{VIEW}", client="127.8.0.1", User_Agent=BROWSER)
        time.sleep(0.2)
        answers = []
        for client, user_agent, session in requests:
            cookies = {"Cookie": f"sessionid={session}"} if session else {}
            answers.append(pool.submit(send, site.proxy, client, user_agent, **cookies))
        return [answer.result() for answer in answers]


def test_in_busy_times_each_rule_refuses_its_clients(site: Site) -> None:
    """Crawlers and anonymous visitors get a 503. Signed-in users are served."""
    named, anonymous, true, false, user = rush(
        site,
        ("127.9.1.1", NAMED, ""),
        ("127.9.2.1", BROWSER, ""),
        ("127.66.249.7", GOOGLEBOT, site.cookies[0]),
        ("127.9.3.1", GOOGLEBOT, ""),
        ("127.9.4.1", BROWSER, site.cookies[0]),
    )
    assert (named.status, refused_by(named)) == (503, "crawlers")
    assert (anonymous.status, refused_by(anonymous)) == (503, "overload")
    assert [true.status, user.status] == [200, 200]
    assert (false.status, refused_by(false)) == (503, "crawlers")
    assert 1 <= int(named.headers["retry-after"]) <= 3  # 3 to 9 times 250 ms.
    assert 5 <= int(anonymous.headers["retry-after"]) <= 14
    assert named.json()["status"] == 503


def test_a_crowded_subnet_is_refused_before_other_visitors(site: Site, tmp_path: Path) -> None:
    """The rule by subnet admits three requests of a /24, and one of each other network."""
    settings = documented_settings(tmp_path / "google.json")
    settings["RATELIMIT_RULES"].pop()  # Visitors wait for longer than it allows.
    with crawled_site(tmp_path, settings) as crowded:
        crowd = [(f"127.7.7.{number}", BROWSER, "") for number in range(1, 7)]
        others = [(f"127.6.{number}.1", BROWSER, "") for number in range(1, 4)]
        rules = list(map(refused_by, rush(crowded, *crowd, *others)))
    assert Counter(rules[:6]) == {"": 3, "crowds": 3}
    assert rules[6:] == [""] * 3


@pytest.mark.parametrize("start", ["old", "new", "twice"])
def test_a_forged_start_changes_nothing(site: Site, start: str) -> None:
    """The proxy overwrites the header, and it is not read from other peers."""
    forged = {"old": f"t={time.time() - 30:.3f}", "new": f"t={time.time() + 30:.3f}"}
    forged["twice"] = f"{forged['old']}, {forged['old']}"
    for port in (site.proxy, site.direct):
        answer = send(port, "127.9.5.1", NAMED, X_Request_Start=forged[start])
        assert (answer.status, refused_by(answer)) == (200, "")


def test_a_forged_start_does_not_hide_that_a_request_waited(site: Site) -> None:
    """The proxy overwrites a start that a client sends in busy times."""
    with ThreadPoolExecutor(2) as pool:
        pool.submit(ask, site.proxy, f"/{VIEW}", client="127.8.0.1", User_Agent=BROWSER)
        time.sleep(0.2)
        later = partial(send, site.proxy, "127.9.6.1", NAMED)
        answer = pool.submit(later, X_Request_Start=f"t={time.time() + 1:.3f}").result()
    assert refused_by(answer) == "crawlers"
