"""The replay of a rule on an uploaded log in the admin. The site stores no data of the log."""

from __future__ import annotations

import glob
import gzip
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from django_ratelimit_lua.contrib.replay import admin as log_replay
from django_ratelimit_lua.models import RateLimitRule
from tests.acceptance import test_admin
from tests.acceptance.test_admin import RULES, staff, visits
from tests.access_log import access

pytestmark = pytest.mark.django_db(transaction=True)
site = test_admin.site
REPLAY = "/admin/ratelimit_replay/replay/"
LOG = (
    access(*[(second, f"192.0.2.{second % 3}", "/ok") for second in range(30)])
    + "\nbroken <b>line</b>\n"
)

ANSWERS = (
    ("7", "9 of 30 requests, and 3 of 3 clients"),
    ("30", "0 of 30 requests, and 0 of 3 clients"),
    ("9999999999999", "0 of 30 requests, and 0 of 3 clients"),
)


@pytest.fixture
def rule(site: None) -> RateLimitRule:
    return RateLimitRule.objects.create(name="ok", path="/ok", key="ip", limit=4, unit="m")


def tried(client: Client, rule: RateLimitRule, log: str | bytes = LOG, **headers: Any) -> Any:
    file = SimpleUploadedFile("access.log", log if isinstance(log, bytes) else log.encode())
    return client.post(f"{REPLAY}{rule.pk}/", {"log": file}, headers=headers)


def shown(page: Any) -> str:
    """Return the text of a page in one line."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page.content.decode()))


def test_a_rule_is_replayed_on_an_uploaded_log(
    operator: Client, rule: RateLimitRule, direct: redis.Redis
) -> None:
    """The rule's page links to it. It shows refused requests and clients, the curve and a
    sufficient limit, and changes no count of the site.
    """
    place = f"{REPLAY}{rule.pk}/"
    assert f'href="{place}"' in operator.get(f"{RULES}{rule.pk}/change/").content.decode()
    assert "Access log" in shown(operator.get(place))
    page = tried(operator, rule)
    text = shown(page)
    assert "requests to which the rule applies 30" in text
    assert "refused 18 (60 %)" in text
    assert "clients 3 clients refused at least once 3" in text
    assert "10 per minute" in text
    assert "192.0.2.0" in text
    assert "curl (6)" in text
    assert "1 line could not be read" in text
    assert "broken &lt;b&gt;line" in page.content.decode()
    assert "4 per minute refuses 60% of the requests" in text
    assert "<style" not in page.content.decode().partition("<svg")[2].partition("</svg>")[0]
    assert direct.keys("*replay:*") == []
    assert visits() == [200]


def test_the_effect_of_any_limit_is_shown(operator: Client, rule: RateLimitRule) -> None:
    """Limits above the rule's, and limits that the log does not reach, are included. The page has a
    sentence and a mark in the curve. The number is exact if the algorithm is exact.
    """
    RateLimitRule.objects.filter(pk=rule.pk).update(algorithm="sliding_log", mode="shadow")
    place = f"{REPLAY}{rule.pk}/"
    assert 'name="limit0"' in operator.get(place).content.decode()
    for limit, answer in (("4", "18 of 30 requests, and 3 of 3 clients"), *ANSWERS):
        file = SimpleUploadedFile("access.log", LOG.encode())
        page = operator.post(place, {"log": file, "limit0": limit})
        words = f"{int(limit):,} per minute would have refused {answer}."
        assert words in shown(page), limit
        assert f'value="{limit}" min="0" form="ratelimit-replay"' in page.content.decode()
        assert 'line class="chosen"' in page.content.decode()
    for odd in ("-1", "x", "1.5", "²"):
        page = operator.post(place, {"log": SimpleUploadedFile("a", LOG.encode()), "limit0": odd})
        assert "4 per minute would have refused 18 of 30 requests" in shown(page), odd


def test_a_compressed_log_is_replayed_and_its_temporary_file_is_deleted(
    operator: Client,
    rule: RateLimitRule,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    settings: Any,
) -> None:
    """The log is written to a temporary file, which is deleted after the response, even if the log
    has no known format.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    settings.FILE_UPLOAD_MAX_MEMORY_SIZE = 10
    assert "refused 18 (60 %)" in shown(tried(operator, rule, gzip.compress(LOG.encode())))
    assert "no line has a known format" in shown(tried(operator, rule, b"nonsense\n" * 10))
    assert glob.glob(f"{tmp_path}/*") == []


def test_a_log_that_is_too_large_is_refused(
    operator: Client, rule: RateLimitRule, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The page states the maximum size, and shows no result."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(log_replay, "MAX_BYTES", 100_000)
    text = shown(tried(operator, rule, LOG.encode() * 100))
    assert "larger than 64 MiB" in text
    assert "What the rule would have done" not in text
    assert glob.glob(f"{tmp_path}/*") == []


def test_a_log_that_takes_too_long_is_replayed_partly(
    operator: Client, rule: RateLimitRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page states the number of replayed lines."""
    assert "too large for a page" not in shown(tried(operator, rule))
    monkeypatch.setattr(log_replay, "MAX_SECONDS", 0.0)
    log = access(*[(second, f"192.0.2.{second % 3}", "/ok") for second in range(3000)])
    text = shown(tried(operator, rule, log))
    assert "too large for a page: only its first 256 lines were replayed" in text
    assert "requests to which the rule applies 256" in text
    bomb = gzip.compress(b"\n" * 2**24)

    assert "too large for a page: only its first 0 lines" in shown(tried(operator, rule, bomb))


def test_only_the_beginning_of_an_endless_line_is_shown(
    operator: Client, rule: RateLimitRule
) -> None:
    """This holds for a file without a known format and for a broken line of a log. An ellipsis
    replaces the rest.
    """
    endless = "aä" * 2_500_000
    text = shown(tried(operator, rule, endless))
    assert re.search(r"the first line is &#x27;(aä){39}a…&#x27;", text)
    text = shown(tried(operator, rule, f"{LOG}{endless}\n"))
    assert re.search(r"line 32: (aä){39}a…", text)
    assert text.count("aä") == 39


def test_replay_needs_the_permission_to_change_rules(rule: RateLimitRule) -> None:
    """Another user gets a 403, and so does an upload without a CSRF token."""
    viewer = staff("view_ratelimitrule", name="viewer")
    assert viewer.get(f"{REPLAY}{rule.pk}/").status_code == 403
    assert tried(viewer, rule).status_code == 403
    assert "/replay/" not in viewer.get(f"{RULES}{rule.pk}/change/").content.decode()
    changer = staff("view_ratelimitrule", "change_ratelimitrule", name="changer")
    assert tried(changer, rule).status_code == 200
    assert changer.get(f"{REPLAY}4711/").status_code == 404
    changer.handler.enforce_csrf_checks = True
    assert tried(changer, rule).status_code == 403
    page = changer.get(f"{REPLAY}{rule.pk}/").content.decode()
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
    assert token is not None
    assert tried(changer, rule, **{"X-CSRFToken": token[1]}).status_code == 200


def test_rules_that_cannot_be_replayed_are_listed_with_the_reason(
    operator: Client, site: None
) -> None:
    """These are a rule by a form field, and a rule that matches no request. A disabled rule is
    replayed, and a leaky bucket has no curve.
    """
    by_form = RateLimitRule.objects.create(
        name="form", path="/", key="post:name", limit=4, unit="m"
    )
    assert "it counts by post:name, which no log contains" in shown(tried(operator, by_form))
    off = RateLimitRule.objects.create(
        name="off", path="/ok", key="ip", limit=4, unit="m", mode="off"
    )
    assert "refused 18 (60 %)" in shown(tried(operator, off))
    elsewhere = RateLimitRule.objects.create(name="x", path="/x", key="ip", limit=4, unit="m")
    assert "applies to no request of this log. Lines read: 31." in shown(tried(operator, elsewhere))
    leaky = RateLimitRule.objects.create(
        name="y", path="/", key="ip", limit=4, unit="m", algorithm="leaky_bucket"
    )
    assert "There is no refusal curve: a leaky bucket makes" in shown(tried(operator, leaky))
