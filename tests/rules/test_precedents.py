"""When a grant is suggested from equal decisions, in which words, and for which tools never."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules import precedents
from comity.rules.conditions import read
from comity.rules.examined import Examined
from comity.rules.precedents import (
    Became,
    Gathered,
    Known,
    KnownTools,
    Measure,
    Precedent,
    Weighed,
    bears_secrets,
    of_ask,
    why_never,
)
from comity.wire.asks import Answer, Ask, Kind, State, Verdict
from comity.wire.security import Hints, Label, Risk

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
ANA, BEN = "person:ana@example.org", "person:ben@example.org"
READS = Hints(reads_only=True)


def _past(count: int, *, people: tuple[str, ...] = (ANA, BEN), days: float = 0) -> list[Precedent]:
    """Approved readings of different files below /project."""
    return [
        Precedent(
            *("agent:x", "fs", "read_file", {"path": f"/project/{number}.txt"}, Became.APPROVED),
            NOW - timedelta(days=days) * (number / max(count - 1, 1)),
            "d1",
            (people[number % len(people)],),
        )
        for number in range(count)
    ]


def weigh(past: Iterable[Precedent], tools: KnownTools, measure: Measure) -> Weighed:
    gathered = Gathered()
    for each in past:
        gathered.take(each)
    return precedents.weigh(gathered, tools, measure)


def _known(server: str, tool: str) -> Known | None:
    return Known("d1") if server == "fs" else None


def test_equal_decisions_become_a_suggestion_in_words() -> None:
    (found,) = weigh(_past(23, days=8.5), _known, Measure()).suggestions
    assert found.words == (
        "always allow `fs__read_file` under /project for agent:x: 23 of 23 approved by two people "
        "in 9 days"
    )
    assert (found.decisions, found.people) == (23, (ANA, BEN))
    assert found.last - found.first == timedelta(days=8.5)
    assert found.where == {
        "paths": {"/path": {"under": "/project"}},
        "only": ["path"],
        "definition": "d1",
    }


@pytest.mark.parametrize(
    ("past", "is_suggested"),
    [
        (_past(10), True),
        (_past(9), False),
        (_past(9, days=30), False),
        (_past(10, people=(ANA,)), False),
        (_past(10, people=(ANA,), days=2.9), False),
        (_past(10, people=(ANA,), days=3), True),
    ],
)
def test_it_takes_many_decisions_and_two_people_or_three_days(
    past: list[Precedent], is_suggested: bool
) -> None:
    assert bool(weigh(past, _known, Measure()).suggestions) is is_suggested


def test_how_much_it_takes_can_be_said() -> None:
    measure = Measure(decisions=3, people=1)
    (found,) = weigh(_past(3, people=(ANA,)), _known, measure).suggestions
    assert found.words.endswith("3 of 3 approved by one person within a day")
    assert not weigh(_past(3), _known, replace(measure, people=3)).suggestions


def test_one_no_in_the_window_is_enough_whoever_asked() -> None:
    said_no = replace(_past(1)[0], asker="agent:y", became=Became.DECLINED, definition="d0")
    weighed = weigh([*_past(20), said_no], _known, Measure())
    assert weighed.suggestions == ()
    (held,) = weighed.held_back
    assert (held.subject, held.tool, held.decisions) == ("agent:x", "read_file", 20)
    assert held.why == "a person has said no to such a call as well"


def test_a_no_to_other_arguments_or_another_tool_is_another_matter() -> None:
    other = replace(_past(1)[0], became=Became.DECLINED)
    shaped = replace(other, arguments={"path": "/project/1.txt", "head": 3})
    weighed = weigh([*_past(20), shaped, replace(other, tool="stat")], _known, Measure())
    assert len(weighed.suggestions) == 1


def test_what_nobody_answered_counts_neither_way() -> None:
    silent = replace(_past(1)[0], became=Became.UNANSWERED)
    (found,) = weigh([*_past(20), *[silent] * 5], _known, Measure()).suggestions
    assert found.decisions == 20


def test_decisions_on_another_definition_do_not_count() -> None:
    old = [replace(each, definition="d0") for each in _past(20)]
    assert weigh([*old, *_past(9)], _known, Measure()) == ((), ())


def test_what_somebody_approved_for_itself_does_not_count() -> None:
    own = [replace(each, asker=ANA) for each in _past(20, people=(ANA,), days=9)]
    assert weigh(own, _known, Measure()) == ((), ())


def test_what_nobody_would_be_asked_about_any_more_is_not_suggested_again() -> None:
    gathered = Gathered(lambda one: one.arguments["path"] != "/project/3.txt")
    for each in _past(20):
        gathered.take(each)
    assert [len(group) for group in gathered.groups.values()] == [1]
    assert len(gathered.calls["agent:x", "fs", "read_file"]) == 20


def test_of_a_tool_that_is_gone_nothing_is_suggested() -> None:
    gone = [replace(each, server="web") for each in _past(20)]
    assert weigh(gone, _known, Measure()) == ((), ())


def test_a_tool_that_may_not_be_generalised_is_held_back_with_the_reason() -> None:
    def never(server: str, tool: str) -> Known:
        return Known("d1", "what it does cannot be undone")

    weighed = weigh(_past(20), never, Measure())
    assert weighed.suggestions == ()
    assert [each.why for each in weighed.held_back] == ["what it does cannot be undone"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"path": "/project/x", "token": "[secret:0a1b2c3d]"},
        {"path": "/project/[secret:0a1b2c3d]"},
        {"a": {"b": ["x [secret:0a1b2c3d]"]}},
        {"a": {"[secret:0a1b2c3d]": 1}},
        {"[secret:0a1b2c3d]": 1},
    ],
)
def test_arguments_that_bear_secrets_are_never_generalised(arguments: dict[str, Any]) -> None:
    assert bears_secrets(arguments)
    past = [replace(each, arguments=arguments) for each in _past(20)]
    weighed = weigh(past, _known, Measure())
    assert weighed.suggestions == ()
    assert [each.why for each in weighed.held_back] == ["its arguments bear secrets"]


def test_one_call_with_a_secret_is_enough_whoever_made_it() -> None:
    hidden = replace(_past(1)[0], asker="agent:y", arguments={"key": "[secret:0a1b2c3d]"})
    assert weigh([*_past(20), hidden], _known, Measure()).suggestions == ()


def test_arguments_that_differ_in_all_ways_are_held_back() -> None:
    past = [replace(each, arguments={"text": str(number)}) for number, each in enumerate(_past(20))]
    (held,) = weigh(past, _known, Measure()).held_back
    assert "differ" in held.why


def test_each_party_and_each_shape_is_looked_at_alone() -> None:
    others = [replace(each, asker="agent:y") for each in _past(9)]
    shaped = [
        replace(each, arguments={**each.arguments, "head": 1}, asker="agent:x")
        for each in _past(12)
    ]
    found = weigh([*_past(10), *others, *shaped], _known, Measure()).suggestions
    assert [(each.subject, each.decisions) for each in found] == [("agent:x", 12), ("agent:x", 10)]


def test_the_same_topic_has_the_same_name_however_much_evidence_there_is() -> None:
    (less,) = weigh(_past(10), _known, Measure()).suggestions
    more_past = [*_past(20), replace(_past(1)[0], arguments={"path": "/project/deep/x"})]
    (more,) = weigh(more_past, _known, Measure()).suggestions
    assert (less.id, less.topic) == (more.id, more.topic)
    narrowed = [replace(each, arguments={"path": "/project/a"}) for each in _past(10)]
    (other,) = weigh(narrowed, _known, Measure()).suggestions
    assert other.topic == less.topic
    assert other.id != less.id


@pytest.mark.parametrize(
    ("risk", "label", "hints", "needs", "always", "told"),
    [
        (Risk.SAFE, None, Hints(), (), False, None),
        (Risk.MODERATE, None, Hints(), ("filesystem.read", "memory.write"), False, None),
        (Risk.DANGEROUS, None, READS, (), False, None),
        (Risk.DANGEROUS, None, Hints(destroys=False), (), False, None),
        (Risk.DANGEROUS, Label(reversible=True), Hints(), (), False, None),
        (Risk.DANGEROUS, None, Hints(), (), False, "dangerous"),
        (Risk.DANGEROUS, None, Hints(destroys=True), (), False, "dangerous"),
        (Risk.MODERATE, Label(reversible=False), READS, (), False, "undone"),
        (Risk.SAFE, Label(confirmation=True), READS, (), False, "confirmed"),
        (Risk.SAFE, None, READS, (), True, "confirmed"),
        *(
            (Risk.SAFE, None, READS, (need,), False, need)
            for need in (
                "shell.execute",
                "code_execution",
                "filesystem.write",
                "camera",
                "who.knows",
            )
        ),
    ],
)
def test_what_cannot_be_undone_or_must_be_confirmed_is_never_generalised(
    risk: Risk, label: Label | None, hints: Hints, needs: tuple[str, ...], always: bool, told: str
) -> None:
    seen = Examined(b"", "t", label=label, hints=hints)
    why = why_never(risk, seen, needs, always_asked=always)
    assert (why is None) if told is None else (told in (why or ""))


def _ask(**other: Any) -> Ask:
    about: Mapping[str, object] = {"arguments": {"path": "/project/a"}, "definition": "d1"}
    return replace(
        Ask(
            *("a1", Kind.CONFIRM, "agent:x", "fs", "read_file", "digest", "?", about),
            *(NOW, NOW + timedelta(minutes=5)),
            trace="t1",
        ),
        **other,
    )


def _said(verdict: Verdict, by: str = ANA) -> Answer:
    return Answer(by, verdict, NOW + timedelta(minutes=1))


@pytest.mark.parametrize(
    ("ask", "became", "by"),
    [
        (_ask(), None, ()),
        (_ask(state=State.USED, answers=(_said(Verdict.ACCEPT),)), Became.APPROVED, (ANA,)),
        (_ask(state=State.EXPIRED, answers=(_said(Verdict.ACCEPT),)), Became.APPROVED, (ANA,)),
        (_ask(state=State.DECLINED, answers=(_said(Verdict.DECLINE),)), Became.DECLINED, (ANA,)),
        (_ask(state=State.CANCELLED, answers=(_said(Verdict.CANCEL),)), Became.DECLINED, (ANA,)),
        (_ask(state=State.EXPIRED), Became.UNANSWERED, ()),
        (_ask(state=State.WITHDRAWN), Became.UNANSWERED, ()),
        (_ask(quorum=2, answers=(_said(Verdict.ACCEPT),)), None, ()),
        (
            _ask(quorum=2, state=State.EXPIRED, answers=(_said(Verdict.ACCEPT),)),
            Became.UNANSWERED,
            (ANA,),
        ),
        (
            _ask(
                quorum=2,
                state=State.USED,
                answers=(
                    _said(Verdict.DEFER, "person:c"),
                    _said(Verdict.ACCEPT),
                    _said(Verdict.ACCEPT, BEN),
                ),
            ),
            Became.APPROVED,
            (ANA, BEN),
        ),
        (_ask(kind=Kind.PERMISSION, state=State.USED, answers=(_said(Verdict.ACCEPT),)), None, ()),
        (_ask(about={}, state=State.USED, answers=(_said(Verdict.ACCEPT),)), None, ()),
    ],
)
def test_an_ask_is_a_precedent_by_what_became_of_it(
    ask: Ask, became: Became | None, by: tuple[str, ...]
) -> None:
    found = of_ask(ask)
    assert (None if found is None else found.became) is became
    if found is not None:
        assert (found.asker, found.server, found.tool) == ("agent:x", "fs", "read_file")
        assert (found.by, found.definition, found.trace) == (by, "d1", "t1")


_arguments = st.fixed_dictionaries(
    {},
    optional={
        "path": st.sampled_from(["/project/a", "/project/b/c", "/etc/passwd", "/project/../x", 3]),
        "mode": st.sampled_from(["r", "w", None]),
    },
)
_precedents = st.builds(
    Precedent,
    st.sampled_from(["agent:x", ANA]),
    st.just("fs"),
    st.sampled_from(["read_file", "stat"]),
    _arguments,
    st.sampled_from(Became),
    st.integers(0, 14 * 24).map(lambda hours: NOW - timedelta(hours=hours)),
    st.sampled_from(["d1", "d0"]),
    st.sampled_from([(ANA,), (BEN,)]),
)


@given(st.lists(_precedents, max_size=40))
def test_a_suggestion_covers_its_evidence_and_nothing_that_was_declined(
    past: list[Precedent],
) -> None:
    for found in weigh(past, _known, Measure(decisions=2)).suggestions:
        condition = read(found.where)
        same = [e for e in past if (e.asker, e.tool) == (found.subject, found.tool)]
        covered = [e for e in same if condition.covers(e.arguments)]
        evidence = [e for e in covered if e.became is Became.APPROVED and e.definition == "d1"]
        assert len([e for e in evidence if e.asker not in e.by]) == found.decisions
        assert not [e for e in covered if e.became is Became.DECLINED]
