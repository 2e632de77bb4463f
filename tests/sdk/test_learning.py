"""Equal decisions become a rule once a person wants it; it covers that, and nothing wider."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comity.rules.proposals import LIFETIME, Proposal
from comity.sdk.learning import Bounds, Learning, Rule

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ANA, BOT, WORKER = "person:ana@example.org", "agent:bot", "agent:wk"


def proposed(path: str, id: str = "", tool: str = "write", **more: Any) -> Proposal:
    params = {"name": tool, "arguments": {"path": path}, **more.pop("params", {})}
    proposer, method = more.pop("proposer", BOT), more.pop("method", "tools/call")
    return Proposal(id or path, proposer, (), method, params, NOW, NOW + LIFETIME)


def taught(learning: Learning, *paths: str) -> Rule | None:
    rule: Rule | None = None
    for path in paths:
        rule = learning.decided(proposed(path), WORKER, ANA, NOW) or rule
    return rule


def ready(bounds: Bounds | None = None) -> Learning:
    learning = Learning(bounds or Bounds())
    rule = taught(learning, "/srv/reports/a", "/srv/reports/b", "/srv/reports/c")
    assert rule is not None
    assert learning.approve(rule.id, ANA) is not None
    return learning


def test_three_equal_decisions_suggest_a_rule_that_says_what_it_stands_on() -> None:
    learning = Learning(Bounds())
    assert taught(learning, "/srv/reports/a", "/srv/reports/b") is None
    rule = taught(learning, "/srv/reports/c")
    assert rule is not None
    assert rule.precedents == ("/srv/reports/a", "/srv/reports/b", "/srv/reports/c")
    assert rule.words() == (
        "always fulfil tools/call:write under /srv/reports for agent:bot by agent:wk: "
        "approved 3 times by person:ana@example.org"
    )
    assert learning.rule_for(proposed("/srv/reports/d"), WORKER, NOW) is None


def test_a_rule_that_a_person_approved_covers_what_was_approved() -> None:
    found = ready().rule_for(proposed("/srv/reports/d"), WORKER, NOW)
    assert found is not None
    assert found.approved_by == ANA


@pytest.mark.parametrize(
    "other",
    [
        proposed("/srv/secrets/a"),
        proposed("/srv/reports/../secrets/a"),
        proposed("/srv/reports/.hidden"),
        proposed("/srv/reports/d", tool="delete"),
        proposed("/srv/reports/d", proposer="agent:other"),
        proposed("/srv/reports/d", params={"_meta": {"sudo": True}}),
        proposed("/srv/reports/d", params={"arguments": {"path": "/srv/reports/d", "mode": 7}}),
        proposed("/srv/reports/d", params={"arguments": [1]}),
        proposed("/srv/reports/d", method="resources/read"),
    ],
)
def test_a_rule_covers_nothing_wider(other: Proposal) -> None:
    assert ready().rule_for(other, WORKER, NOW) is None


def test_a_rule_is_for_the_worker_it_was_learnt_with() -> None:
    assert ready().rule_for(proposed("/srv/reports/d"), "agent:other", NOW) is None


def test_a_no_to_the_same_holds_a_suggestion_back() -> None:
    learning = Learning(Bounds())
    learning.decided(proposed("/srv/reports/x"), WORKER, ANA, NOW, approved=False)
    assert taught(learning, "/srv/reports/a", "/srv/reports/b", "/srv/reports/c") is None


def test_nobody_teaches_a_rule_about_its_own_proposals() -> None:
    learning = Learning(Bounds())
    for path in ("/srv/r/a", "/srv/r/b", "/srv/r/c"):
        assert learning.decided(proposed(path), WORKER, BOT, NOW) is None
    rule = taught(learning, "/srv/r/a", "/srv/r/b", "/srv/r/c")
    assert rule is not None
    assert learning.approve(rule.id, BOT) is None
    assert learning.approve("unknown", ANA) is None


def test_it_acts_so_often_in_a_minute_and_no_more() -> None:
    learning = ready(Bounds(per_minute=2))
    found = [learning.rule_for(proposed(f"/srv/reports/{n}"), WORKER, NOW) for n in range(3)]
    assert [rule is not None for rule in found] == [True, True, False]
    later = NOW + timedelta(minutes=1)
    assert learning.rule_for(proposed("/srv/reports/x"), WORKER, later) is not None


@pytest.mark.parametrize("bounds", [Bounds(methods=("resources/*",)), Bounds(contexts=("read*",))])
def test_what_is_out_of_bounds_is_done_by_no_rule(bounds: Bounds) -> None:
    assert ready(bounds).rule_for(proposed("/srv/reports/d"), WORKER, NOW) is None


def test_a_forgotten_rule_covers_nothing() -> None:
    learning = ready()
    (id,) = learning.rules
    assert learning.forget(id)
    assert not learning.forget(id)
    assert learning.rule_for(proposed("/srv/reports/d"), WORKER, NOW) is None


def test_another_rule_stands_beside_the_first() -> None:
    learning = ready()
    rule: Rule | None = None
    for name in "abc":
        other = proposed(f"/srv/plans/{name}", tool="read")
        rule = learning.decided(other, WORKER, ANA, NOW)
    assert rule is not None
    assert learning.approve(rule.id, ANA) is not None
    assert len(learning.rules) == 2
    assert learning.rule_for(proposed("/srv/plans/d", tool="read"), WORKER, NOW) is not None
    assert learning.rule_for(proposed("/srv/reports/d"), WORKER, NOW) is not None
