"""The Prometheus metrics: totals of the site that never fall and have no data of a client."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import redis
from django.contrib.auth.models import AnonymousUser, Permission, User
from django.http import HttpResponse
from django.test import RequestFactory

from django_ratelimit_lua import RateLimiter, ratelimit
from django_ratelimit_lua.contrib.statistics import writing
from django_ratelimit_lua.contrib.statistics.counters import SITE, key_of
from django_ratelimit_lua.contrib.statistics.recorder import recorder
from django_ratelimit_lua.extension import Extension, Metric
from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule
from tests.acceptance.admin import test_admin
from tests.acceptance.admin.test_admin import visits
from tests.contrib.gateway.proxies import ask as get
from tests.support.processes import free_port, running, until
from tests.support.redis_server import CLOSED, caches, url
from tests.support.served_site import serve
from tests.urls import ok

prometheus_client = pytest.importorskip(
    "prometheus_client", reason="NO METRICS TEST: install prometheus-client"
)
from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

from django_ratelimit_lua.contrib.statistics.metrics import register  # noqa: E402
from django_ratelimit_lua.contrib.statistics.urls import metrics  # noqa: E402

pytestmark = pytest.mark.django_db(transaction=True)
site = test_admin.site
ROOT = Path(__file__).parents[3]
METRICS = ROOT / "docs" / "metrics"
TOKEN = "a-token-of-the-tests"
CONFIGURATION = """
global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 1s}
rule_files: [%s]
scrape_configs:
  - job_name: django
    metrics_path: /ratelimit/metrics
    authorization: {credentials: %s}
    static_configs: [{targets: ["127.0.0.1:%d"]}]
"""
PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
needs_prometheus = pytest.mark.skipif(
    not PROMETHEUS or not PROMTOOL,
    reason="NO PROMETHEUS TEST: prometheus is not installed (Debian: prometheus)",
)


class Gauges(Extension):
    """An optional app with a gauge."""

    name = "gauges"

    def metrics(self) -> list[Metric]:
        labels = ("floor", "state")
        return [Metric("rooms", "Rooms by floor and state.", labels, lambda: {("1", "free"): 3.0})]


def test_metrics_include_gauges_of_other_optional_apps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gauges have the labels that the app declares."""
    monkeypatch.setattr("django_ratelimit_lua.contrib.statistics.metrics.extensions", [Gauges()])
    assert scraped()["ratelimit_rooms", "1", "free"] == 3.0


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Return the values by metric and by the values of its labels, in order of their names."""
    found = [sample for each in text_string_to_metric_families(text) for sample in each.samples]
    labels = [tuple(value for _, value in sorted(sample.labels.items())) for sample in found]
    return {(sample.name, *of): sample.value for sample, of in zip(found, labels, strict=True)}


def exposed() -> str:
    """Return the text that Prometheus scrapes."""
    registry = prometheus_client.CollectorRegistry()
    register(registry)
    return str(prometheus_client.generate_latest(registry).decode())


def scraped() -> dict[tuple[str, ...], float]:
    return samples(exposed())


def decisions(found: dict[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
    """Return the decisions by mode, result and rule."""
    return {key[1:]: found[key] for key in found if key[0] == "ratelimit_decisions_total"}


def test_bans_have_the_name_of_the_decisions() -> None:
    """Their label is that of the number of decisions, not the name of the count."""
    options = {"ban_after": 1, "ban_for": "10m"}
    RateLimitRule.objects.create(name="banning", path="/ok", key="ip", rate="1/h", options=options)
    assert visits(4) == [200, 429, 429, 429]
    found = scraped()
    assert found["ratelimit_bans_active", "banning"] == 1
    assert ("ratelimit_decisions_total", "enforce", "banned", "banning") in found


def test_metrics_include_the_number_of_bans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bans in force are counted by limit."""
    monkeypatch.setattr("django_ratelimit_lua.contrib.statistics.metrics.MAX_LABELS", 2)
    for name, people in {"login": 3, "mail": 2, "search": 1}.items():
        limiter = RateLimiter(name, "0/s", ban_after=1, ban_for="10m")
        for number in range(people):
            limiter.hit(number)
        limiter.unban(0)
        limiter.hit(0)
    RateLimiter("mail", "0/s", ban_after=1, ban_for="10m").unban(1)
    found = scraped()
    found = {key[1]: found[key] for key in found if key[0] == "ratelimit_bans_active"}
    assert len(found) == 2
    assert found["login"] == 3


def test_metrics_count_decisions() -> None:
    """Decisions are counted by rule, mode and result, with their units and their times."""
    mail = RateLimiter("mail", "10/h")
    assert [mail.hit("ada", cost=4).allowed for _ in range(3)] == [True, True, False]
    RateLimitRule.objects.create(name="quiet", path="/ok", key="ip", rate="1/h", mode="shadow")
    RateLimitOverride.objects.create(network="203.0.113.3", effect="block")
    visits(3, "203.0.113.1")
    visits(2, "203.0.113.3")
    found = scraped()
    assert decisions(found) == {
        ("enforce", "allowed", "mail"): 2,
        ("enforce", "refused", "mail"): 1,
        ("shadow", "allowed", "quiet"): 1,
        ("shadow", "refused", "quiet"): 2,
        ("", "blocked", "block"): 2,
    }
    assert [found["ratelimit_units_total", of, "mail"] for of in ("allowed", "refused")] == [8, 4]
    assert [found["ratelimit_near_limit_total", name] for name in ("mail", "quiet")] == [1, 1]
    seconds = "ratelimit_decision_seconds_"
    assert sum(count for labels, count in found.items() if labels[0] == f"{seconds}count") == 8
    assert sum(found[f"{seconds}bucket", "+Inf", by] for by in ("redis", "deny-cache")) == 8
    bounds = [float(each[1]) for each in found if each[::2] == (f"{seconds}bucket", "redis")]
    assert (min(bounds), sorted(bounds)[-2:]) == (50e-6, [0.25, float("inf")])
    assert 0 < found[f"{seconds}sum", "redis"] < 60
    assert found[("ratelimit_store_up",)] == 1
    assert found[("ratelimit_rules_revision",)] >= 2
    kinds = ("timeout", "connection", "answered", "paused")
    assert {found["ratelimit_store_errors_total", kind] for kind in kinds} == {0}


def test_totals_do_not_fall_when_minutes_and_hours_expire(direct: redis.Redis, prefix: str) -> None:
    """Totals stay when minutes and hours expire and when new processes start."""
    mail = RateLimiter("mail", "2/h")
    for _ in range(3):
        mail.hit("ada")
    before = scraped()
    for key in direct.scan_iter(f"{prefix}*"):
        if re.search(rb":(minutes|hours|hour|day):\d+$", key):
            direct.delete(key)
    recorder._begin()
    mail.hit("grace")
    after = scraped()
    allowed, refused = ("enforce", "allowed", "mail"), ("enforce", "refused", "mail")
    assert decisions(before) == {allowed: 2, refused: 1}
    assert decisions(after) == {allowed: 3, refused: 1}
    assert {key for key in direct.scan_iter(f"{prefix}{{stats*") if direct.ttl(key) == -1} == {
        key_of(SITE, b"names")
    }


def test_names_beyond_the_bound_are_counted_as_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is counted separately stays separate, so no total falls."""
    monkeypatch.setattr(writing, "MAX_NAMES", 3)
    for name in ("one", "other"):
        RateLimiter(name, "9/h").hit("ada")
    assert {rule for _, _, rule in decisions(scraped())} == {"one", "other"}
    seen = []
    for number in range(20):
        for name in (f"made-{number}", "one"):
            RateLimiter(name, "99/h").hit("ada")
        seen.append(decisions(scraped()))
        recorder._begin()  # Another process, which asks anew whether there is room.
    for before, after in itertools.pairwise(seen):
        assert all(before[key] <= after[key] for key in before)
    counts = {rule: count for (_, _, rule), count in seen[-1].items()}
    assert counts == {"one": 21, "made-0": 1, "other": 20}


def test_an_unused_name_makes_room(
    monkeypatch: pytest.MonkeyPatch, direct: Any, prefix: str
) -> None:
    """A name is kept as long as its total. Then another name is counted separately."""
    monkeypatch.setattr(writing, "MAX_NAMES", 1)
    RateLimiter("old", "9/h").hit("ada")
    scraped()
    direct.zadd(key_of(SITE, b"names"), {"old": 1})
    RateLimiter("new", "9/h").hit("ada")
    assert decisions(scraped()) == {("enforce", "allowed", "new"): 1}


def test_metrics_contain_no_data_of_a_request() -> None:
    """They contain no address, user, path or field value, whatever is refused."""
    view = ratelimit(group="login", key=("ip", "get:name"), rate="1/h", block=False)(ok)

    for _ in range(3):
        request = RequestFactory().get("/secret-path/?name=secret-name", REMOTE_ADDR="203.0.113.7")
        request.user = User(username="secret-user", pk=4711)
        assert view(request).status_code == 200
    text = exposed()
    assert 'rule="login' in text
    assert not re.search(r"secret|203\.0\.113|4711", text)


def ask(user: Any = None, method: str = "get", **headers: str) -> HttpResponse:
    request = getattr(RequestFactory(), method)("/metrics", headers=headers)
    request.user = user or AnonymousUser()
    return metrics(request)


def test_metrics_need_a_permission(settings: Any) -> None:
    """A user needs the permission to view rules."""
    assert ask().status_code == 401
    assert ask()["WWW-Authenticate"] == "Bearer"
    assert ask(Authorization="Bearer None").status_code == 401
    ada = User.objects.create_user("ada")
    assert ask(ada).status_code == 401
    ada.user_permissions.add(Permission.objects.get(codename="view_ratelimitrule"))
    assert ask(User.objects.get(pk=ada.pk)).status_code == 200
    settings.RATELIMIT_METRICS_TOKEN = TOKEN
    right = f"Bearer {TOKEN}"
    for wrong in ("", TOKEN, f"Basic {TOKEN}", right + "x", right[:-1], "Bearer", "Bearer é"):
        assert ask(Authorization=wrong).status_code == 401, wrong
    response = ask(Authorization=right)
    assert (response.status_code, response["Cache-Control"].split(",")[0]) == (200, "max-age=0")
    assert samples(response.content.decode())[("ratelimit_store_up",)] == 1
    assert ask(method="post", Authorization=right).status_code == 405
    opened = ask(Authorization=right, Accept="application/openmetrics-text; version=1.0.0")
    assert opened["Content-Type"].startswith("application/openmetrics-text")
    assert opened.content.endswith(b"# EOF\n")


def test_the_default_registry_contains_the_metrics_after_registration() -> None:
    """django-prometheus exports this registry."""
    collector = register()
    try:
        RateLimiter("mail", "2/h").hit("ada")
        text = prometheus_client.generate_latest().decode()
    finally:
        prometheus_client.REGISTRY.unregister(collector)
    assert decisions(samples(text)) == {("enforce", "allowed", "mail"): 1}
    assert "python_info" in text


def test_without_redis_only_the_outage_is_reported(settings: Any) -> None:
    """Counters are left out, because a counter of zero would be a fall."""
    mail = RateLimiter("mail", "1000/h", on_store_error="open")
    mail.hit("ada")
    settings.CACHES = caches(CLOSED)
    for _ in range(10):
        mail.hit("ada")
    assert scraped() == {("ratelimit_store_up",): 0}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings.RATELIMIT_TIMEOUT = 0.05
        settings.CACHES = caches(f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        mail.hit("ada")
    settings.RATELIMIT_TIMEOUT, settings.CACHES = 10, caches(url())
    found = scraped()
    assert found[("ratelimit_store_up",)] == 1
    errors = {key[1]: found[key] for key in found if key[0] == "ratelimit_store_errors_total"}
    # Three failures in a row begin a pause. A hit may ask more than once, for the rules.
    assert (errors["connection"], errors["answered"]) == (3, 0)
    assert errors["paused"] >= 7
    assert errors["timeout"] >= 1
    assert decisions(found) == {("enforce", "allowed", "mail"): 1, ("", "policy", "mail"): 11}


def test_an_error_reply_of_redis_is_a_kind_of_failure(settings: Any, direct: redis.Redis) -> None:
    """For example, the Redis user may not run scripts."""
    rights: Any = {"enabled": True, "nopass": True, "keys": ["*"], "categories": ["+@all"]}
    direct.acl_setuser("metrics", **rights, commands=["-evalsha"])
    try:
        settings.RATELIMIT_TIMEOUT = 10
        settings.CACHES = caches(url().replace("redis://", "redis://metrics:x@"))
        RateLimiter("mail", "5/h", on_store_error="open").hit("ada")
        direct.acl_setuser("metrics", **rights)  # Statistics are written by scripts.
        # The rules are read by a script, too, and the store may pause after an error.
        answered = ("ratelimit_store_errors_total", "answered")
        until(lambda: scraped().get(answered, 0) >= 1, "the error is counted", 30)
        assert scraped()["ratelimit_store_errors_total", "connection"] == 0
    finally:
        direct.acl_deluser("metrics")


@pytest.fixture
def workers(prefix: str) -> Iterator[int]:
    """Return the port of a site with two processes."""
    apps = ["django_ratelimit_lua", "django_ratelimit_lua.contrib.statistics"]
    settings = {"INSTALLED_APPS": apps, "MIDDLEWARE": [], "RATELIMIT_METRICS_TOKEN": TOKEN}
    settings["RATELIMIT_CACHE_PREFIX"] = prefix
    urls = "tests.contrib.statistics.metrics_site"
    with serve("gunicorn", urls, "--workers=2", **settings) as served:
        yield served.port


@pytest.fixture
def prometheus(workers: int, tmp_path: Path) -> Iterator[int]:
    """Return the port of a Prometheus that scrapes the site, with the documented alerts."""
    port, file = free_port(), tmp_path / "prometheus.yml"
    file.write_text(CONFIGURATION % (METRICS / "alerts.yml", TOKEN, workers))
    subprocess.run([str(PROMTOOL), "check", "config", str(file)], check=True, capture_output=True)
    options = f"--config.file={file} --storage.tsdb.path={tmp_path / 'data'} --log.level=warn"
    command = [str(PROMETHEUS), *options.split(), f"--web.listen-address=127.0.0.1:{port}"]
    with running(command, port, cwd=tmp_path):
        yield port


def query(port: int, expression: str) -> list[float]:
    """Return the values of an expression. Raises for what Prometheus refuses."""
    answer = get(port, f"/api/v1/query?{urlencode({'query': expression})}")
    assert answer.status == 200, (expression, answer.body)
    return [float(row["value"][1]) for row in answer.json()["data"]["result"]]


def _is(port: int, expression: str, expected: float) -> bool:
    return query(port, expression) == [expected]


@needs_prometheus
def test_prometheus_can_scrape_any_process(workers: int, prometheus: int) -> None:
    """Each process reports the exact totals of both processes, and no series falls."""
    answers = []

    def process(who: object) -> bytes:
        answer = get(workers, f"/search/?who={who}")
        answers.append(answer.status)
        return answer.body

    numbers, seen = itertools.count(1000), set()
    until(lambda: seen.add(process(next(numbers))) or len(seen) == 2, "both processes answer", 60)
    for number in range(100):
        process(number % 20)
    allowed, refused = answers.count(200), answers.count(429)
    assert (allowed, refused) == (len(answers) - 40, 40)
    rule = '{rule=~"search.*"}'

    decided = 'sum(ratelimit_decisions_total{rule=~"search.*",mode="enforce",result="%s"})'
    # A busy process writes its numbers in several parts.
    for expression, expected in {
        decided % "allowed": allowed,
        decided % "refused": refused,
        'sum(ratelimit_units_total{result="allowed"})': allowed,
        "sum(ratelimit_decision_seconds_count)": len(answers),
    }.items():
        until(partial(_is, prometheus, expression, float(expected)), expression)
    assert query(prometheus, "min(ratelimit_store_up)") == [1.0]
    assert set(query(prometheus, f"resets(ratelimit_decisions_total{rule}[5m])")) == {0.0}
    assert query(prometheus, 'count(ALERTS{alertname=~"RateLimit.*",alertstate="firing"})') == []


@needs_prometheus
def test_promtool_accepts_the_metrics(workers: int) -> None:
    """promtool finds no fault in names, types and help texts."""
    get(workers, "/search/?who=ada")
    answer = get(workers, "/ratelimit/metrics", Authorization=f"Bearer {TOKEN}")
    command = [str(PROMTOOL), "check", "metrics"]
    checked = subprocess.run(command, input=answer.body, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
    assert (answer.status, get(workers, "/ratelimit/metrics").status) == (200, 401)


@needs_prometheus
def test_the_alerts_fire_under_their_conditions() -> None:
    """promtool tests each alert with a series of values."""
    for words in ("check rules alerts.yml", "test rules alerts_test.yml"):
        command = [str(PROMTOOL), *words.split()]
        checked = subprocess.run(command, cwd=METRICS, capture_output=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr
    alerts = set(re.findall(r"- alert: (\w+)", (METRICS / "alerts.yml").read_text()))
    assert alerts == set(re.findall(r"alertname: (\w+)", (METRICS / "alerts_test.yml").read_text()))


def expressions() -> list[str]:
    """Return the Prometheus queries of the dashboard."""
    dashboard = json.loads((METRICS / "dashboard.json").read_text())
    variables = [row for row in dashboard["templating"]["list"] if row["type"] == "query"]
    annotations = [row["expr"] for row in dashboard["annotations"]["list"]]
    targets = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return [*targets, *annotations, *(row["query"]["query"] for row in variables)]


def test_dashboard_and_alerts_use_existing_metrics() -> None:
    """They use only existing metrics and labels, and each metric is used at least once."""
    RateLimiter("mail", "5/h").hit("ada")
    there = {
        sample.name: set(sample.labels) | {"job"}
        for family in text_string_to_metric_families(exposed())
        for sample in family.samples
    }
    asked = set()
    for expression in [*expressions(), (METRICS / "alerts.yml").read_text()]:
        for name, chosen in re.findall(r"\b(ratelimit_\w+)(?:\{([^}]*)\})?", expression):
            assert set(re.findall(r"(\w+) ?[=!]~?\"", chosen)) <= there[name], (name, chosen)
            asked.add(name)
    assert asked == set(there)


@needs_prometheus
def test_prometheus_evaluates_every_query_of_the_dashboard(prometheus: int, workers: int) -> None:
    """With Grafana's variables filled in, each query is valid."""
    for number in range(30):
        get(workers, f"/search/?who={number % 2}")
    refused = 'ratelimit_decisions_total{result="refused"}'
    until(lambda: bool(query(prometheus, refused)), "the refusals are scraped")
    kept = [each for each in expressions() if not each.startswith("label_values")]
    filled = [
        re.sub(r"\$(job|rule)", ".*", each.replace("$__rate_interval", "5m")) for each in kept
    ]
    for expression in filled:
        query(prometheus, expression)
    until(lambda: query(prometheus, filled[1]) != [], "there are rates", 30)
