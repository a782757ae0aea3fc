"""The effects of overrides on charges, without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.test import RequestFactory

from django_ratelimit_lua.engine import DecidedCharge
from django_ratelimit_lua.identity import digest, key_id
from django_ratelimit_lua.identity.names import supplied_identity
from django_ratelimit_lua.limits.call import Charge
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.limits.rate import Rate
from django_ratelimit_lua.rules.overrides import Override, Overrides
from django_ratelimit_lua.web.overrides import (
    BLOCK,
    NOTHING,
    RequestSubjects,
    apply_overrides,
    client_digests,
    find_overrides,
)

SUBJECT = digest(("user", "7"))


def known(*overrides: Override) -> list[Override]:
    return [override._replace(subject=SUBJECT) for override in overrides]


def planned(mode: Any = "enforce") -> list[DecidedCharge]:
    return [DecidedCharge(Charge(Limit("x", "5/h", mode=mode), digest("ada")), "x")]


def test_an_override_exempts_changes_or_blocks_a_charge() -> None:
    """The charge is removed, gets another limit, or is replaced by the block."""
    assert apply_overrides(planned(), known(Override(1, effect="exempt")), True)[0] == []
    (changed,), *_ = apply_overrides(
        planned(), known(Override(1, "x", "limit", Rate.parse("9/h"))), True
    )
    assert (changed.charge.limit.rate.limit, changed.state) == (9, None)
    (blocked,), _ = apply_overrides(planned(), known(Override(1)), True)
    state = blocked.state
    assert (state.allowed, state.retry_after, state.name) == (False, None, "x")
    assert blocked.blocked_by == SUBJECT


def test_a_block_for_all_rules_needs_no_rule() -> None:
    """It refuses only at entry points that apply all rules."""
    overrides = known(Override(1))
    (blocked,), _ = apply_overrides([], overrides, True, "owner")
    state = blocked.state
    assert (state.name, state.enforced) == (BLOCK, True)
    assert (blocked.blocked_by, blocked.owner) == (SUBJECT, "owner")
    (blocked,), _ = apply_overrides(planned("shadow"), overrides, True)
    assert blocked.charge.limit is NOTHING
    assert apply_overrides([], overrides, False) == ([], [])


def test_an_override_for_one_rule_does_not_affect_another() -> None:
    """It names a rule or a call site."""
    charges = planned()
    assert apply_overrides(charges, known(Override(1, "x", "exempt")), True) == ([], charges)
    assert len(apply_overrides(planned(), known(Override(1, "y", "exempt")), True)[0]) == 1


FOUND = Overrides(
    [
        {
            "keys": [key_id()],
            "networks": ["ip4/32"],
            "entries": {
                SUBJECT.decode(): [[1, "", "block"]],
                "ip4/32:c0000209": [[2, "", "block"]],
            },
        }
    ]
)


def test_the_overrides_of_a_request_are_found(rf: RequestFactory) -> None:
    """No override applies to a missing user or address."""
    request = rf.get("/", REMOTE_ADDR="192.0.2.9")
    ada = SimpleNamespace(pk=7, is_authenticated=True)

    def found(*fields: str, who: Any = ada) -> list[int]:
        source = RequestSubjects(request, lambda: who)
        return [override.pk for override in find_overrides(source, FOUND, fields)]

    assert found("user", "network") == [1, 2]
    assert found("get:q") == []
    assert (
        found("user", who=None) == found("user", who=SimpleNamespace(is_authenticated=False)) == []
    )


def test_the_digests_of_a_client_are_those_that_charges_count(settings: Any) -> None:
    """An identity that callers share identifies no client."""
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "now", ["before"]
    limit, ip, pair = Limit("x", "5/h"), ("ip", "192.0.2.9"), (("ip", "192.0.2.9"), ("user", None))

    def clients(identity: Any) -> list[bytes]:
        charge = Charge(limit, digest(identity))
        decided = DecidedCharge(charge, "x", identity=supplied_identity(identity))
        return list(client_digests([decided]))

    assert clients(ip) == [digest(ip), digest(ip, "before")]
    assert clients(pair) == [digest(pair), digest(pair, "before")]
    for nobody in (None, ("user", None), ("path", "/"), (("path", "/"), ("post", "name", None))):
        assert clients(nobody) == []


def test_an_undetermined_value_does_not_prevent_other_overrides(rf: RequestFactory) -> None:
    """Django's own exceptions refuse the request."""

    def fail(error: type[Exception]) -> Any:
        raise error

    request = rf.get("/", REMOTE_ADDR="192.0.2.9")
    source = RequestSubjects(request, lambda: fail(ZeroDivisionError))
    assert [found.pk for found in find_overrides(source, FOUND, ["user", "network"])] == [2]
    with pytest.raises(PermissionDenied):
        find_overrides(RequestSubjects(request, lambda: fail(PermissionDenied)), FOUND, ["user"])
