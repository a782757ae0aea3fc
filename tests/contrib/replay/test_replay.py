"""`manage.py ratelimit replay` decides each line of a log by the real script, at the time of the
line.
"""

from __future__ import annotations

import fcntl
import gzip
import io
import json
import os
import pty
import random
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import redis
from django.core.management import CommandError, call_command
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import path
from hypothesis import given
from hypothesis import settings as example_settings
from hypothesis import strategies as st

from django_ratelimit_lua import Limit, ratelimit_exempt
from django_ratelimit_lua.contrib.replay import Log, Replayed, ReplayTooSlowError, deciding, replay
from django_ratelimit_lua.contrib.replay import refusal_counter as places_module
from django_ratelimit_lua.contrib.replay.refusal_counter import RefusalCounter
from django_ratelimit_lua.contrib.replay.report import as_json, as_text
from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule
from django_ratelimit_lua.operations.curve import Curve
from django_ratelimit_lua.rules.rule import compile_rule
from django_ratelimit_lua.rules.ruleset import Ruleset
from django_ratelimit_lua.store import store_at
from tests import reference
from tests.access_log import access
from tests.examples import examples
from tests.server import url

pytestmark = pytest.mark.django_db(transaction=True)
ROOT = Path(__file__).parents[3]
EXCERPT = ROOT / "tests" / "logs" / "nasa.tsv"
SECOND = 1_000_000


def replayed(text: str | Path, *rules: dict[str, Any], **options: Any) -> Replayed:
    """Return the result of replaying a log under rules, on the server of the tests."""
    store = store_at(url())
    log = Log(str(text)) if isinstance(text, Path) else Log("log", file=io.BytesIO(text.encode()))
    try:
        ruleset = Ruleset([compile_rule({"path": "/", "key": "ip", **rule}) for rule in rules])
        return replay([log], ruleset, store, **options)
    finally:
        log.close()
        store.close()


def refusals(curve: Curve, limit: int) -> tuple[int, int]:
    """Return the requests and identities that a limit would have refused, by a curve."""
    point = curve.at(limit)
    return point.requests.most, point.people.most


def command(*arguments: str) -> str:
    out = io.StringIO()
    call_command("ratelimit", "replay", *arguments, stdout=out)
    return out.getvalue()


def counts(direct: redis.Redis) -> set[bytes]:
    """Return the keys of replays. Other keys may appear or expire at any time."""
    return set(direct.keys("*replay:*"))


def environment() -> dict[str, str]:
    """Return the environment of a process in a project without Redis."""
    return {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.bench.replay_settings"} | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    }


def rows() -> list[tuple[int, str]]:
    """Return the second and the host of each row of the excerpt."""
    columns = [row.split("\t") for row in EXCERPT.read_text().splitlines()[1:]]
    return [(int(column[2]), column[0]) for column in columns]


@pytest.mark.parametrize(
    "algorithm", ["sliding_log", "sliding_window", "fixed_window", "token_bucket", "leaky_bucket"]
)
@pytest.mark.parametrize("rate", ["2/m", "5/m", "1/10s"])
def test_a_real_log_is_decided_like_the_exact_model(algorithm: str, rate: str) -> None:
    """Refused requests and hosts are equal for an excerpt of NASA's log of 1 July 1995."""
    given_rule = {"name": "r", "rate": rate, "algorithm": algorithm}
    tally = replayed(EXCERPT, given_rule, spread=False).tallies["r"]
    limit = Limit(
        "r", rate, algorithm=algorithm, max_wait=5 if algorithm == "leaky_bucket" else None
    )
    models: dict[str, Any] = {}
    refused: Counter[str] = Counter()
    for second, host in rows():
        model = models.setdefault(host, reference.MODELS[algorithm](limit))
        allowed = reference.decide([model], "hit", second * SECOND, 1).allowed
        refused[host] += not allowed
    assert (tally.lines, len(tally.identities)) == (len(rows()), len(models))
    assert tally.refused == sum(refused.values())
    assert tally.refused_identities == len(+refused)
    assert [(one.client, one.refused) for one in tally.most_refused(5)] == sorted(
        (+refused).items(), key=lambda pair: (-pair[1], pair[0])
    )[:5]
    assert tally.refused or rate != "2/m"


@pytest.mark.skipif(
    "RATELIMIT_TEST_NASA" not in os.environ, reason="RATELIMIT_TEST_NASA names no nasa_19950701.tsv"
)
@pytest.mark.parametrize(
    ("rate", "refused", "hosts"), [("5/m", 1307, 384), ("10/m", 70, 42), ("20/m", 0, 0)]
)
def test_the_log_of_1_july_1995_gives_the_known_numbers(
    rate: str, refused: int, hosts: int
) -> None:
    """The file in `RATELIMIT_TEST_NASA` has 9,999 rows with whole seconds. The rule is a sliding
    log per host and minute.
    """
    log = Path(os.environ["RATELIMIT_TEST_NASA"])
    found = replayed(
        log, {"name": "r", "rate": rate, "algorithm": "sliding_log"}, spread=False, draws=True
    )
    tally = found.tallies["r"]
    assert (tally.lines, tally.refused, tally.refused_identities) == (9999, refused, hosts)
    curve = tally.curve()
    assert curve is not None
    assert refusals(curve, Limit("x", rate).rate.limit) == (refused, hosts)


@pytest.mark.parametrize(
    "options",
    [
        {"algorithm": "sliding_log"},
        {"algorithm": "fixed_window"},
        {"algorithm": "fixed_window", "align": "clock"},
    ],
    ids=str,
)
@example_settings(max_examples=examples(15))
@given(
    hits=st.lists(
        st.tuples(st.integers(0, 400), st.sampled_from(["192.0.2.1", "192.0.2.2"])),
        min_size=1,
        max_size=80,
    ),
    limit=st.integers(1, 12),
    cost=st.integers(1, 2),
)
def test_the_curve_matches_the_script(
    options: dict[str, Any], hits: list[tuple[int, str]], limit: int, cost: int
) -> None:
    """This holds for every limit, and not only for that of the replayed rule."""
    log = access(*[(second, address, "/") for second, address in hits])
    rule = {"name": "r", "cost": cost, **options}
    drawn = replayed(log, {**rule, "rate": "3/m"}, draws=True).tallies["r"].curve()
    tally = replayed(log, {**rule, "rate": f"{limit}/m"}).tallies["r"]
    assert drawn is not None
    assert refusals(drawn, limit) == (tally.refused, tally.refused_identities)


def test_a_calendar_limit_has_a_curve() -> None:
    """Its windows are those of the script."""
    log = access(*[(hour * 3600, "192.0.2.1", "/") for hour in range(0, 24)])
    rule = {"name": "r", "algorithm": "fixed_window", "align": "day", "time_zone": "Asia/Tokyo"}
    drawn = replayed(log, {**rule, "rate": "5/d"}, draws=True).tallies["r"].curve()
    assert drawn is not None
    for limit in (1, 5, 10, 14):
        tally = replayed(log, {**rule, "rate": f"{limit}/d"}).tallies["r"]
        assert refusals(drawn, limit) == (tally.refused, tally.refused_identities)


@pytest.mark.parametrize(
    "options", [{"algorithm": "token_bucket"}, {"algorithm": "sliding_window", "segments": 3}]
)
def test_the_curve_is_an_upper_bound_for_other_algorithms(options: dict[str, Any]) -> None:
    """A token bucket or a sliding window refuses at most the clients on the curve, and none if the
    curve has none.
    """
    dice = random.Random(7)
    hits = sorted((dice.randrange(600), f"192.0.2.{dice.randrange(9)}", "/") for _ in range(500))
    drawn = replayed(access(*hits), {"name": "r", "rate": "3/m", **options}, draws=True)
    curve = drawn.tallies["r"].curve()
    assert curve is not None
    enough = curve.enough_for(100).limit
    for limit in (1, enough // 2, enough - 1, enough):
        found = replayed(access(*hits), {"name": "r", "rate": f"{limit}/m", **options}).tallies["r"]
        assert found.refused_identities <= curve.at(limit).people.most
        assert found.refused == 0 or limit < enough
    assert drawn.tallies["r"].refused > 0


def test_a_replay_leaves_no_keys_and_no_counts_of_the_site(
    direct: redis.Redis,
) -> None:
    """Keys of a replay have a separate prefix and a time to live, and are deleted."""
    before = set(direct.keys())
    seen: dict[bytes, int] = {}

    def look(progress: Any) -> None:
        for key in set(direct.keys()) - before:
            seen[key] = direct.pttl(key)

    rule = {"name": "r", "rate": "5/m", "algorithm": "sliding_log"}
    log = access(*[(number / 50, f"192.0.2.{number % 40}", "/") for number in range(600)])
    replayed(log, rule, on_progress=look)
    assert len(seen) == 40
    assert all(b"replay:" in key for key in seen)
    assert all(
        deciding.SLACK * 1000 < left <= (60 + 60 + deciding.SLACK) * 1000 for left in seen.values()
    )
    assert set(direct.keys()) <= before  # Those of others may have ended by their time to live.


def test_a_replay_that_lags_too_far_behind_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its numbers would be too small. A log that was written more slowly than it is
    replayed causes no error.
    """
    monkeypatch.setattr(deciding, "BATCH", 1)
    rule = {"name": "r", "rate": "1/s"}
    same = access(*[(0, "192.0.2.1", "/")] * 3)
    monkeypatch.setattr(deciding, "SLACK", 1)
    with pytest.raises(ReplayTooSlowError, match="behind the log"):
        replayed(same, rule, spread=False, on_progress=lambda _: time.sleep(1.1))
    slowly = access(*[(second, "192.0.2.1", "/") for second in (0, 9, 99, 9999)])
    assert replayed(slowly, rule, on_progress=lambda _: time.sleep(0.3)).met == 4


@pytest.mark.parametrize("spread", [True, False])
@pytest.mark.parametrize("rule_path", ["/", "/nowhere"])
def test_an_interrupted_replay_reports_the_decided_lines(spread: bool, rule_path: str) -> None:
    """No number includes lines that were read ahead."""
    lines = access(*[(number / 50, f"192.0.2.{number % 40}", "/") for number in range(30_000)])
    heard: list[int] = []

    def enough(progress: Any) -> bool:
        heard.append(progress.lines)
        return progress.lines >= 500

    found = replayed(
        lines, {"name": "r", "path": rule_path, "rate": "5/m"}, on_progress=enough, spread=spread
    )
    told = as_json(found)
    assert (told["lines"], told["is_cut"], told["without_request"]) == (512, True, 0)
    assert (told["met"], found.tallies["r"].lines) == ((512, 512) if rule_path == "/" else (0, 0))
    assert told["spread"] == (512 if spread else 0)
    assert heard[-2:] == [256, 512]
    assert "512 lines of log (combined), which go on: the replay was ended" in as_text(found)
    found = replayed(lines, {"name": "r", "rate": "5/m"}, on_progress=lambda _: False)
    assert (as_json(found)["lines"], as_json(found)["is_cut"]) == (30_000, False)


@pytest.mark.parametrize(
    "line",
    ["", "broken", '192.0.2.1 - - [22/Nov/2026:00:00:00 +0000] "-" 400 0 "-" "-"'],
    ids=["empty", "broken", "none"],
)
def test_a_call_is_decided_after_a_maximum_wait(line: str) -> None:
    """The callback is called after a maximum number of lines, even if no line is decided. No line
    is counted twice.
    """
    log = access((1, "192.0.2.1", "/")) + f"\n{line}" * 60_000
    heard: list[Any] = []
    replayed(log, {"name": "r", "rate": "5/m"}, on_progress=heard.append)
    assert len(heard) >= 5
    found = replayed(log, {"name": "r", "rate": "5/m"}, on_progress=lambda _: True)
    assert found.is_cut
    assert as_json(found)["lines"] == found.taken + found.reading.broken <= 10_000


@pytest.mark.parametrize(
    ("align", "rate"), [("day", "1/d"), ("week", "1/w"), ("month", "1/30d"), ("clock", "1/d")]
)
def test_lines_at_the_end_of_the_calendar_are_broken(align: str, rate: str) -> None:
    """No calendar window exists for them. Earlier lines are decided."""
    line = access((1, "192.0.2.1", "/"))
    log = "\n".join(
        line.replace("22/Nov/2026", day)
        for day in ("31/Dec/2199", "31/Dec/2199", "01/Jan/2200", "31/Dec/9999")
    )
    rule = {"name": "r", "rate": rate, "align": align, "algorithm": "fixed_window"}
    found = replayed(log, rule, draws=True)
    assert (found.refused, found.met, found.reading.broken) == (1, 2, 2)


def test_rules_match_lines_as_they_match_requests() -> None:
    """Rules match by path, pattern, method, route and audience, and are decided together. An exempt
    path is not limited.
    """
    log = "\n".join(
        [
            access(
                (1, "192.0.2.1", "/api/a?x=1"),
                (2, "192.0.2.1", "/api/b"),
                (3, "192.0.2.2", "/api/health"),
            ),
            access((4, "192.0.2.1", "/%61pi/c")),
            access((5, "192.0.2.1", "/api/a")).replace("GET", "POST"),
            access((6, "192.0.2.1", "/api/a")).replace("- -", "- ada"),
        ]
    )
    found = replayed(
        log,
        {"name": "all", "path": "/api/", "rate": "2/m"},
        {"name": "health", "path": "/api/health", "exempt": True},
        {"name": "post", "path": "/api/*", "method": "POST", "rate": "1/m", "mode": "shadow"},
        {"name": "users", "path": "/", "audience": "authenticated", "key": "user", "rate": "1/m"},
        {"name": "off", "path": "/", "rate": "0/m", "mode": "off"},
        {"name": "form", "path": "/", "key": "post:name", "rate": "1/m"},
        {"name": "view", "group": "login", "rate": "1/m"},
    )
    counted = {name: (tally.lines, tally.refused) for name, tally in found.tallies.items()}
    assert counted == {"all": (5, 3), "post": (1, 0), "users": (1, 0)}
    assert (found.met, found.refused) == (5, 3)
    assert set(found.planner.unseen) == {"form", "view"}


@ratelimit_exempt
def left_alone(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


def page(request: HttpRequest, number: int = 0) -> HttpResponse:
    return HttpResponse()


urlpatterns = [
    path("page/<int:number>/", page, name="page"),
    path("other/", page),
    path("alone/", left_alone),
]


@pytest.mark.urls(__name__)
def test_routes_of_the_site_are_used() -> None:
    """A rule for a route matches its paths, and a view with `ratelimit_exempt` is exempt."""
    log = access(
        *[
            (second, "192.0.2.1", target)
            for second, target in enumerate(["/page/1/", "/page/2/", "/other/", "/alone/"])
        ]
    )
    found = replayed(
        log,
        {"name": "route", "route": "page", "rate": "1/m"},
        {"name": "kwarg", "path": "/", "key": "kwarg:number", "rate": "9/m"},
        {"name": "by route", "path": "/", "key": "route", "rate": "1/m", "mode": "shadow"},
    )
    assert {name: (tally.lines, tally.refused) for name, tally in found.tallies.items()} == {
        "route": (2, 1),
        "kwarg": (3, 0),
        "by route": (3, 1),
    }
    assert len(found.tallies["kwarg"].identities) == 3


def test_the_429s_in_the_log_are_compared() -> None:
    """The result has the lines that were refused in the log, in the replay and in both."""
    log = (
        access((1, "192.0.2.1", "/"), (2, "192.0.2.1", "/"))
        + "\n"
        + access((3, "192.0.2.1", "/"), status=429)
    )
    log += "\n" + access((4, "192.0.2.2", "/"), status=429)
    found = replayed(log, {"name": "r", "rate": "1/m"})
    assert (found.refused, found.refused_then, found.refused_both) == (2, 2, 1)
    tally = found.tallies["r"]
    assert (tally.refused, tally.refused_then, tally.refused_both) == (2, 2, 1)


def test_logs_are_merged_by_time(tmp_path: Path, prefix: str) -> None:
    """Plain and gzipped logs of different formats are merged. The report is text or JSON."""
    early = access(*[(second, "192.0.2.1", "/") for second in (1, 3, 5)], agent="early")
    late = json.dumps(
        {"ts": 1795305602.5, "remote_addr": "192.0.2.1", "method": "GET", "uri": "/", "status": 200}
    )
    (tmp_path / "a.log").write_text(f"{early}\nbroken\n")
    (tmp_path / "b.json").write_bytes(gzip.compress(late.encode()))
    files = [str(tmp_path / "a.log"), str(tmp_path / "b.json")]
    found = json.loads(command(*files, "--rate", "2/m", "--redis", url(), "--json", "--suggest"))
    assert (found["lines"], found["met"], found["refused"], found["broken"]) == (5, 4, 2, 1)
    assert [log["format"] for log in found["logs"]] == ["combined", "json"]
    (rule,) = found["rules"]
    assert rule["most_refused"] == [{"client": "192.0.2.1", "refused": 2, "agents": {"early": 2}}]
    assert rule["busiest_minute"] == {"from": "2026-11-22T00:00:00Z", "lines": 4}
    assert rule["curve"]["suggestions"][0] == {
        "percent": 99,
        "limit": 4,
        "requests": 0,
        "identities": 0,
    }
    text = command(*files, "--rate", "2/m", "--redis", url(), "--suggest")
    assert "4 lines met rules: 2 allowed, 2 refused" in text
    assert "line 4: 'broken'" in text
    assert "2  192.0.2.1\n" in text
    assert "2 × early" in text


def test_a_truncated_log_does_not_stop_the_others(tmp_path: Path) -> None:
    """The logs are a gzipped one that is still written, a damaged one and one without data."""
    packed = gzip.compress(
        access(*[(second, f"192.0.2.{second % 200}", "/") for second in range(900)]).encode()
    )
    (tmp_path / "cut.gz").write_bytes(packed[:-9])
    (tmp_path / "damaged.gz").write_bytes(packed[:-8] + b"00000000")
    (tmp_path / "begun.gz").write_bytes(packed[:10])
    (tmp_path / "whole.gz").write_bytes(packed)
    files = [str(tmp_path / f"{name}.gz") for name in ("cut", "damaged", "begun", "whole")]
    found = json.loads(command(*files, "--rate", "999/m", "--redis", url(), "--json"))
    assert 900 + 900 + 800 < found["lines"] <= 2700
    assert sorted(
        note.removeprefix(str(tmp_path)).partition(" after")[0].partition(" in the")[0]
        for note in found["notes"]
    ) == [
        "/begun.gz: the file ends",
        "/cut.gz: the file ends",
        "/damaged.gz: the file is damaged",
    ]
    text = command(files[2], "--rate", "9/m", "--redis", url())
    assert text.startswith("no lines\nnote: ")
    assert "begun.gz: the file ends in the middle of line 0; it may be incomplete" in text


def test_rules_in_force_or_those_of_a_file_are_replayed(tmp_path: Path) -> None:
    """The rules come from the settings and the admin, or from the file. A note says that overrides
    are left out.
    """
    log = tmp_path / "log"
    log.write_text(access(*[(second, "192.0.2.1", "/") for second in range(5)]))
    RateLimitRule.objects.create(name="live", path="/", key="ip", limit=2, unit="m")
    RateLimitOverride.objects.create(network="192.0.2.0/24", effect="exempt")
    found = json.loads(command(str(log), "--redis", url(), "--json"))
    assert [(rule["name"], rule["refused"]) for rule in found["rules"]] == [("live", 3)]
    assert any("overrides" in note for note in found["notes"])
    rules = tmp_path / "rules.yaml"
    rules.write_text("- name: new\n  path: /\n  key: ip\n  rate: 4/m\n  mode: shadow\n")
    found = json.loads(command(str(log), "--redis", url(), "--json", "--rules", str(rules)))
    assert [(rule["name"], rule["mode"], rule["refused"]) for rule in found["rules"]] == [
        ("new", "shadow", 1)
    ]
    assert (found["refused"], found["notes"]) == (0, [])


def test_uncertain_numbers_are_marked(tmp_path: Path) -> None:
    """A note reports host names instead of addresses, missing users, and `X-Forwarded-For` without
    trusted proxies.
    """
    log = tmp_path / "log"
    log.write_text(
        "\n".join(f'{access((second, "a.example", "/"))} "192.0.2.1"' for second in range(3))
    )
    arguments = (str(log), "--rate", "1/m", "--redis", url(), "--json")
    found = json.loads(command(*arguments, "--key", "user"))
    assert [note.partition(":")[0] for note in found["notes"]] == [
        "addresses",
        "X-Forwarded-For",
        "users",
    ]
    log.write_text(
        access(*[(second, "192.0.2.1", "/") for second in range(3)]).replace("- -", "- ada")
    )
    found = json.loads(command(*arguments, "--key", "user"))
    assert (found["notes"], found["refused"]) == ([], 2)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["missing.log", "--rate", "5/m"], "missing.log"),
        (["LOG", "--rate", "5/q"], "5/q"),
        (["LOG", "--rate", "5/m", "--key", "id"], "Unknown key"),
        (["LOG", "--rate", "5/m", "--burst", "3"], "no option burst"),
        (["LOG", "--key", "ip"], "--rate"),
        (["LOG", "--rate", "5/m", "--rules", "x.yaml"], "use --rate or --rules, not both"),
        (["LOG", "--rules", "x.yaml"], "x.yaml"),
        (["LOG", "--rate", "5/m", "--format", "json"], "format json"),
        (["LOG", "--rate", "5/m", "--trusted-proxies", "x"], "--trusted-proxies"),
        (["LOG", "--rate", "5/m", "--plot", "x.png"], ".svg"),
        (["LOG", "--rate", "5/m", "--redis", "nowhere"], "--redis"),
        (["LOG", "--rate", "5/m", "--redis", "redis://127.0.0.1:1/0"], "refused"),
    ],
)
def test_errors_are_reported(arguments: list[str], problem: str, tmp_path: Path) -> None:
    """The message names the option, the file or the value."""
    log = tmp_path / "log"
    log.write_text(access((1, "192.0.2.1", "/")))
    arguments = [str(log) if word == "LOG" else word for word in arguments]
    redis_url = [] if "--redis" in arguments else ["--redis", url()]
    with pytest.raises(CommandError) as raised:
        command(*arguments, *redis_url)
    assert problem in str(raised.value)


def test_a_replay_without_a_urlconf_is_an_error(settings: Any) -> None:
    """A project of workers has no `ROOT_URLCONF`, and rules match URLs."""
    del settings.ROOT_URLCONF
    with pytest.raises(CommandError, match="set ROOT_URLCONF"):
        command("access.log", "--rate", "5/m")


def test_an_error_in_a_rules_file_contains_the_name_of_the_file(tmp_path: Path) -> None:
    """The error also contains the line."""
    log, rules = tmp_path / "log", tmp_path / "new-rules.yaml"
    log.write_text(access((1, "192.0.2.1", "/")))
    rules.write_text(
        "- {name: a, path: /, key: ip, rate: 5/m}\n- {name: b, path: /, key: ip, rate: 5/q}\n"
    )
    with pytest.raises(CommandError, match=re.escape(f"{rules}, line 2: rule 'b': Rate '5/q'")):
        command(str(log), "--rules", str(rules), "--redis", url())


def test_the_trusted_proxies_determine_the_address(tmp_path: Path) -> None:
    """They come from the option or from the setting. Identities are those that the site would
    count.
    """
    log = tmp_path / "log"
    log.write_text(
        "\n".join(
            f'{access((second, "10.0.0.1", "/"))} "spoofed, 203.0.113.{second}"'
            for second in range(4)
        )
    )
    arguments = (str(log), "--rate", "1/m", "--redis", url(), "--json")

    def refused(*more: str) -> int:
        return int(json.loads(command(*arguments, *more))["refused"])

    assert refused() == 3
    assert refused("--trusted-proxies", "1") == 0
    assert refused("--trusted-proxies", "10.0.0.0/8, 192.0.2.0/24") == 0
    with override_settings(RATELIMIT_TRUSTED_PROXIES=1):
        assert refused() == 0
        assert refused("--trusted-proxies", "0") == 3


def test_a_replay_starts_its_own_server() -> None:
    """The log is read from a pipe, without a progress bar. The Redis of the site is not used."""
    arguments = [
        sys.executable,
        "-m",
        "django",
        "ratelimit",
        "replay",
        "-",
        "--rate",
        "2/m",
        "--json",
    ]
    log = access(*[(second, "192.0.2.1", "/") for second in range(5)])
    told = subprocess.run(
        arguments,
        input=log,
        capture_output=True,
        text=True,
        env=environment(),
        cwd=ROOT,
        timeout=60,
    )
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["refused"] == 3
    assert told.stderr == ""


def test_a_terminal_shows_the_progress(tmp_path: Path) -> None:
    """It shows the lines, the lines per second and the remaining time. Standard output has only the
    report.
    """
    pytest.importorskip("tqdm", reason="tqdm is not installed, which draws the bar")
    log = tmp_path / "log"
    log.write_text(
        access(*[(number / 50, f"192.0.2.{number % 40}", "/") for number in range(5000)])
    )
    arguments = [
        sys.executable,
        "-m",
        "django",
        "ratelimit",
        "replay",
        str(log),
        "--rate",
        "60/m",
        "--json",
    ]
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=end, env=environment(), cwd=ROOT
    )
    os.close(end)
    shown = b""
    with suppress(OSError):  # At the end of the other side.
        while data := os.read(terminal, 4096):
            shown += data
    os.close(terminal)
    out, _ = process.communicate(timeout=60)
    assert json.loads(out)["lines"] == 5000
    assert re.search(r"\d+%\|.*\[\d\d:\d\d<.*lines, [\d,]+ lines/s", shown.decode())


def test_ctrl_c_ends_a_replay_and_deletes_its_keys(direct: redis.Redis, tmp_path: Path) -> None:
    """The process waits for more lines of a pipe when it is interrupted."""
    assert counts(direct) == set()
    arguments = [
        sys.executable,
        "-m",
        "django",
        "ratelimit",
        "replay",
        "-",
        "--rate",
        "2/m",
        "--redis",
        url(),
    ]
    process = subprocess.Popen(
        arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        cwd=ROOT,
    )
    try:
        assert process.stdin is not None
        lines = access(
            *[(number / 100, f"192.0.{number % 250}.1", "/") for number in range(25_000)]
        )
        process.stdin.write(lines.encode() + b"\n")
        process.stdin.flush()
        deadline = time.monotonic() + 60
        while not counts(direct) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert counts(direct)
        process.send_signal(signal.SIGINT)
        _out, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, error
    assert b"interrupted" in error
    assert counts(direct) == set()


def test_the_report_matches_its_documentation(tmp_path: Path) -> None:
    """Each member of the JSON is documented."""
    log = tmp_path / "log"
    log.write_text("broken\n" + access(*[(second, "192.0.2.1", "/") for second in range(3)]))
    found = json.loads(command(str(log), "--rate", "1/m", "--redis", url(), "--json", "--suggest"))
    page = (ROOT / "docs" / "reference" / "replay.rst").read_text().partition("JSON report")[2]
    documented = set(re.findall(r"``(\w+)``", page))

    def words(value: Any) -> set[str]:
        if isinstance(value, list):
            return set().union(*map(words, value))
        if isinstance(value, dict):
            return set(value).union(*map(words, value.values()))
        return set()

    assert words(found) - {"curl"} <= documented


def test_a_curve_is_written_to_a_file(tmp_path: Path) -> None:
    """It has a text description. An HTML file has a table of the numbers, and an SVG has exactly
    one curve.
    """
    log, plot = tmp_path / "log", tmp_path / "curve.svg"
    log.write_text(access(*[(second, "192.0.2.1", "/") for second in range(8)]))
    command(str(log), "--rate", "2/m", "--redis", url(), "--plot", str(plot))
    drawn = ElementTree.parse(plot).getroot()
    svg = "{http://www.w3.org/2000/svg}"
    assert drawn.get("role") == "img"
    assert (
        "2 per minute refuses 75% of the requests and affects 100% of the clients."
        in drawn.find(f"{svg}desc").text
    )
    assert len(drawn.findall(f"{svg}path[@class='line requests']")) == 1
    assert "color-scheme: light dark" in drawn.find(f"{svg}style").text
    command(str(log), "--rate", "2/m", "--redis", url(), "--plot", str(tmp_path / "curve.html"))
    page = (tmp_path / "curve.html").read_text()
    assert '<th scope="row">2</th><td>6</td><td>1</td>' in page
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "".join(f"- {{name: r{number}, path: /, key: ip, rate: 2/m}}\n" for number in range(2))
    )
    with pytest.raises(CommandError, match="an SVG has one curve, and there are 2"):
        command(str(log), "--rules", str(rules), "--redis", url(), "--plot", str(plot))


def test_a_missing_curve_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leaky bucket delays requests, so it has no curve. If the curve needs too much memory, the
    other numbers are still counted.
    """
    found = replayed(
        access((1, "192.0.2.1", "/")),
        {"name": "r", "rate": "5/m", "algorithm": "leaky_bucket"},
        draws=True,
    )
    tally = found.tallies["r"]
    assert (tally.curve(), "leaky" in tally.why_no_curve) == (None, True)
    monkeypatch.setattr(places_module, "MAX_RUNS", 20)
    log = access(*[(second, f"192.0.2.{second % 2}", "/") for second in range(30)])
    tally = replayed(
        log, {"name": "r", "rate": "5/m", "algorithm": "sliding_log"}, draws=True
    ).tallies["r"]
    assert (tally.curve(), "too much memory" in tally.why_no_curve, tally.refused) == (
        None,
        True,
        20,
    )
    assert RefusalCounter(Limit("x", "5/m")).curve().requests == 0


def test_a_replay_bans_and_deletes_the_bans(direct: redis.Redis) -> None:
    """A banned client is refused until the end of its ban in the time of the log. No key of the ban
    is left.
    """
    lines = [(second, "203.0.113.9", "/") for second in (0.0, 1.0, 2.0, 3.0, 100.0, 599.0, 700.0)]
    rule = {
        "name": "api",
        "path": "/",
        "key": ["ip", "path"],
        "rate": "1/10s",
        "algorithm": "fixed_window",
    }
    found = replayed(access(*lines), {**rule, "ban_after": 3, "ban_for": "10m"})
    assert found.tallies["api"].refused == 5
    assert counts(direct) == set()
