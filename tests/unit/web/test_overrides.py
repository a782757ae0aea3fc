"""The effects of overrides on charges, without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.test import RequestFactory

from django_ratelimit_lua.engine.decide import now_us
from django_ratelimit_lua.engine.decided_charge import DecidedCharge
from django_ratelimit_lua.identity import digest
from django_ratelimit_lua.identity.names import own
from django_ratelimit_lua.limits.call import Charge
from django_ratelimit_lua.limits.limit import Limit
from django_ratelimit_lua.limits.rate import Rate
from django_ratelimit_lua.rules.overrides import KnownOverrides, Override, SubjectRef
from django_ratelimit_lua.rules.ruleset import Ruleset
from django_ratelimit_lua.web.overrides import (
    BLOCK,
    NOTHING,
    RequestSubjects,
    apply_overrides,
    client_digests,
    override_kinds,
    override_subjects,
)

NO_RULES = Ruleset(())


SUBJECT = SubjectRef("user", digest(("user", "7")))


def known(*overrides: Override) -> KnownOverrides:
    return KnownOverrides(((SUBJECT, (b"tag", overrides)),))


def planned(mode: Any = "enforce") -> list[DecidedCharge]:
    return [DecidedCharge(Charge(Limit("x", "5/h", mode=mode), digest("ada")), "x")]


def test_an_override_exempts_changes_or_blocks_a_charge() -> None:
    """The charge is removed, gets another limit, or is replaced by the block."""
    assert apply_overrides(planned(), known(Override(1, None, "exempt")), NO_RULES, True)[0] == []
    (changed,), *_ = apply_overrides(
        planned(), known(Override(1, None, "limit", Rate.parse("9/h"))), NO_RULES, True
    )
    assert (changed.charge.limit.rate.limit, changed.state) == (9, None)
    (blocked,), _ = apply_overrides(planned(), known(Override(1, None, "block")), NO_RULES, True)
    assert (blocked.state.allowed, blocked.state.retry_after, blocked.state.name) == (
        False,
        None,
        "x",
    )
    assert blocked.blocked_by == SUBJECT.digest


def test_a_block_for_all_rules_needs_no_rule() -> None:
    """It refuses a request without enforced charges, but only at entry points that apply
    all rules.
    """
    overrides = known(Override(1, None, "block"))
    (blocked,), _ = apply_overrides([], overrides, NO_RULES, True, "owner")
    state = blocked.state
    assert (state.name, state.enforced, blocked.blocked_by, blocked.owner) == (
        BLOCK,
        True,
        SUBJECT.digest,
        "owner",
    )
    (blocked,), _ = apply_overrides(planned("shadow"), overrides, NO_RULES, True)
    assert blocked.charge.limit is NOTHING
    assert apply_overrides([], overrides, NO_RULES, False) == ([], [])


def test_an_override_applies_from_its_start_to_its_end() -> None:
    """Before its start and after its end, the charges are unchanged."""
    now = now_us()
    for override in (
        Override(1, None, "block", starts=now + 10**9),
        Override(1, None, "block", ends=now - 1),
    ):
        charges = planned()
        assert apply_overrides(charges, known(override), NO_RULES, True) == (charges, [])


def test_an_override_for_one_rule_does_not_affect_another() -> None:
    """Overrides refer to rules by primary key, so they do not apply to limits of call sites, which
    have none.
    """
    rules = Ruleset(
        (), {"revision": 0, "rules": [{"id": 7, "name": "x", "key": "ip", "rate": "5/h"}]}
    )
    exempt = known(Override(1, 7, "exempt"))
    charges = planned()
    assert apply_overrides(charges, exempt, rules, True) == ([], charges)
    assert len(apply_overrides(planned(), exempt, NO_RULES, True)[0]) == 1


KINDS = Ruleset(
    (),
    {
        "revision": 0,
        "kinds": {"": ["ip4/24", "user"], "x": ["ip4/32"], "y": ["post:name"]},
        "blocks": ["ip4/24"],
    },
)


def test_only_kinds_that_may_matter_are_looked_up() -> None:
    """The kinds are those for the names of the charges. At entry points that apply all rules, the
    kinds of overrides without a rule are looked up even if nothing is charged.
    """
    assert list(override_kinds(KINDS, planned(), False)) == ["ip4/24", "user", "ip4/32"]
    assert list(override_kinds(KINDS, planned(), True)) == ["ip4/24", "user", "ip4/32"]
    assert list(override_kinds(KINDS, [], True)) == ["ip4/24", "user"]
    assert list(override_kinds(KINDS, [], False)) == []


def test_the_subjects_of_a_request_are_found(rf: RequestFactory) -> None:
    """They are the signed-in user, the address and its networks. A missing user or address yields
    no subject.
    """
    request = rf.get("/", REMOTE_ADDR="192.0.2.9")
    ada = SimpleNamespace(pk=7, is_authenticated=True)

    def subjects(*kinds: str, who: Any = ada) -> list[tuple[str, bytes]]:
        return [
            (ref.kind, ref.digest)
            for ref in override_subjects(RequestSubjects(request, lambda: who), KINDS, kinds)
        ]

    assert subjects("user", "ip4/32", "ip4/24") == [
        ("user", digest(("user", "7"))),
        ("ip4/32", digest(("network", "192.0.2.9/32"))),
        ("ip4/24", digest(("network", "192.0.2.0/24"))),
    ]
    assert subjects("ip6/64") == []
    assert (
        subjects("user", who=None)
        == subjects("user", who=SimpleNamespace(is_authenticated=False))
        == []
    )


def test_the_subjects_are_the_digests_that_charges_count(settings: Any) -> None:
    """There is one subject for each known key. An identity that callers share, such as a missing
    value, is no subject.
    """
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "now", ["before"]
    limit, ip, pair = Limit("x", "5/h"), ("ip", "192.0.2.9"), (("ip", "192.0.2.9"), ("user", None))

    def subjects(identity: Any) -> list[bytes]:
        charge = Charge(limit, digest(identity))
        return client_digests([DecidedCharge(charge, "x", identity=own(identity))], ["now"])

    def expected(*clients: bytes) -> list[bytes]:
        return [digest(("digest", client.decode())) for client in clients]

    assert subjects(ip) == expected(digest(ip), digest(ip, "before"))
    assert subjects(pair) == expected(digest(pair), digest(pair, "before"))
    for nobody in (None, ("user", None), ("path", "/"), (("path", "/"), ("post", "name", None))):
        assert subjects(nobody) == []


def test_undetermined_subjects_are_skipped_and_logged_once(rf: RequestFactory, caplog: Any) -> None:
    """If the database is unavailable, overrides by user are skipped and other overrides apply.
    Django's own exceptions refuse the request.
    """

    def fail() -> Any:
        raise ZeroDivisionError

    def refuse() -> Any:
        raise PermissionDenied

    for _ in range(2):
        (subject,) = override_subjects(
            RequestSubjects(rf.get("/"), fail), KINDS, ["user", "ip4/32"]
        )
        assert subject.kind == "ip4/32"
    assert (
        len([text for text in caplog.messages if "Overrides by user are not applied" in text]) == 1
    )
    override_subjects(
        RequestSubjects(rf.get("/"), lambda: SimpleNamespace(pk=7, is_authenticated=True)),
        KINDS,
        ["user"],
    )
    with pytest.raises(PermissionDenied):
        override_subjects(RequestSubjects(rf.get("/"), refuse), KINDS, ["user"])
