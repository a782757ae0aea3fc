"""The key `all`: one count for all callers."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command

from django_ratelimit_lua import RateLimiter, ratelimit
from django_ratelimit_lua.exceptions import LimitError
from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule
from django_ratelimit_lua.rules import RuleError, compile
from django_ratelimit_lua.rules.describe import describe_spec


def test_a_limiter_without_an_identity_counts_all_callers_together(settings: Any) -> None:
    """It is the same count as that of a call site with the key `all`. It never bans."""
    limiter = RateLimiter("everyone", "3/h", ban_after=1, ban_for="1h")
    assert (limiter.hit().allowed, limiter.hit(None).allowed) == (True, True)
    assert limiter.peek().remaining == 1
    assert limiter.refund().remaining == 2
    assert [limiter.hit().allowed for _ in range(4)] == [True, True, False, False]
    assert limiter.hit().banned_until is None
    limiter.reset()
    assert limiter.acquire().allowed
    for change in (limiter.ban, limiter.unban):
        with pytest.raises(LimitError, match="a ban needs an identity"):
            change(None)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"key": ["all", "ip"]}, "use it alone"),
        ({"key": "all", "ban_after": 3, "ban_for": "1h"}, "would refuse every client"),
    ],
)
def test_the_key_all_cannot_be_combined_or_banned(given: dict[str, Any], problem: str) -> None:
    """The code and the settings raise the same error."""
    with pytest.raises(RuleError, match=problem):
        compile({"name": "x", "path": "/", "rate": "1/m", **given})
    key = given["key"]
    with pytest.raises(LimitError, match=problem):
        ratelimit(rate="1/m", **{**given, "key": key if isinstance(key, str) else tuple(key)})


@pytest.mark.django_db(transaction=True)
def test_the_admin_and_the_checks_support_the_key_all(settings: Any) -> None:
    """The admin describes it, the checks refuse combinations, and a block needs a client."""
    rule = RateLimitRule(name="database", path="/ok", key="all", rate="500/s")
    rule.save()
    assert describe_spec(rule.spec) == "500 per second for all clients together, on /ok"
    bans = {"ban_after": 3, "ban_for": "1h"}
    for wrong in ({"key": "all+ip"}, {"options": bans}):
        with pytest.raises(RuleError):
            RateLimitRule(
                **{"name": "x", "path": "/ok", "key": "all", "rate": "5/s", **wrong}
            ).save()
    with pytest.raises(ValidationError):
        RateLimitOverride(field="all", effect="block").full_clean()
    with pytest.raises(CommandError):
        call_command("ratelimit", "block", "--header", "all")
