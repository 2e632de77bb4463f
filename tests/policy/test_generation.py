"""The generation of the policy: which changes void a decision, and how much it remembers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.mcp.actors import CALL, Actor
from comity.policy import snapshot
from comity.policy.generation import MAX_SUBJECTS, PolicyGeneration
from comity.policy.grants import Effect, Grant, GrantIndex, GrantSet
from comity.policy.snapshot import GrantSnapshot

SUBJECTS = st.sampled_from(["agent:a", "agent:b", "group:g", "server:s"])
CHANGES = st.lists(st.none() | st.sets(SUBJECTS, max_size=3), max_size=12)


@given(before=CHANGES, after=CHANGES, subjects=st.sets(SUBJECTS, min_size=1))
def test_a_change_voids_exactly_what_depends_on_it(
    before: list[set[str] | None], after: list[set[str] | None], subjects: set[str]
) -> None:
    generation = PolicyGeneration()

    def apply(changes: list[set[str] | None]) -> None:
        for change in changes:
            number = generation.number
            generation.advance() if change is None else generation.advance_for(change)
            assert generation.number == number + 1

    apply(before)
    number = generation.number
    assert generation.is_unchanged_since(number, subjects)
    apply(after)
    is_void = any(change is None or not subjects.isdisjoint(change) for change in after)
    assert generation.is_unchanged_since(number, subjects) is not is_void


def test_more_changes_than_are_remembered_void_everything() -> None:
    generation = PolicyGeneration()
    for number in range(MAX_SUBJECTS):
        generation.advance_for((f"agent:{number}",))
    made_at = generation.number
    generation.advance_for(("agent:0",))
    assert generation.is_unchanged_since(made_at, ("agent:x",))
    generation.advance_for(("agent:one-more",))
    assert not generation.is_unchanged_since(made_at, ("agent:x",))


def grant(subject: str, effect: Effect, target: str = "s/t") -> Grant:
    return Grant(subject, CALL, target, effect)


EFFECTS = st.sampled_from([Effect.ALLOW, Effect.DENY, Effect.ASK])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["agent:a", "agent:b", "group:g", "*"]),
        st.lists(st.tuples(EFFECTS, st.sampled_from(["*", "s/*", "s/t"])), max_size=3),
    ),
    max_size=15,
)


@given(steps=STEPS)
def test_a_known_decision_is_always_the_one_that_the_grants_give(steps: Any) -> None:
    grants = GrantSnapshot(GrantSet())
    actors = [Actor("agent:a"), Actor("agent:a", groups=("g",)), Actor("agent:b")]
    for subject, rules in steps:
        index = GrantIndex.from_grants(grant(subject, *rule) for rule in rules)
        grants.replace_indexes({subject: index})
        for actor in actors:
            fresh = GrantSnapshot(grants.latest).authorize(actor, CALL, "s", "t")
            assert grants.authorize(actor, CALL, "s", "t") == fresh


def test_the_oldest_decision_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_CACHED_DECISIONS", 10)
    grants = GrantSnapshot(GrantSet.from_grants([grant("agent:a", Effect.ALLOW, "s/*")]))
    decisions = [grants.authorize(Actor("agent:a"), CALL, "s", f"t{n}") for n in range(15)]
    for number in range(5, 15):
        again = grants.authorize(Actor("agent:a"), CALL, "s", f"t{number}")
        assert again is decisions[number]
    assert grants.authorize(Actor("agent:a"), CALL, "s", "t0") is not decisions[0]
