"""Rules of suggested grants: when one is made, its condition, and its dry run."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as otherwise

from comity.approvals import suggestion_rules
from comity.approvals.model import (
    ApprovalAnswer,
    ApprovalDecision,
    ApprovalKind,
    ApprovalRequest,
    ApprovalState,
)
from comity.approvals.suggestion_rules import (
    MAX_CHOICES,
    MAX_LISTED_CALLS,
    CallOutcome,
    CurrentTool,
    KnownTools,
    PastCall,
    PastCalls,
    SuggestionResult,
    SuggestionThreshold,
    argument_shape,
    common_tree,
    dry_run_condition,
    has_secrets,
    infer_condition,
    past_call_of_event,
    past_call_of_request,
)
from comity.audit.events import AuditEvent, AuditResult, AuditType
from comity.catalog.definitions import DefinitionAnalysis, never_reusable_reason
from comity.policy.conditions import is_too_wide, parse_condition
from comity.policy.risk import Risk, SecurityLabel, ToolHints
from tests.support.cases import loop_over

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
ANA, BEN = "person:ana@example.org", "person:ben@example.org"
READS = ToolHints(is_read_only=True)


def _past(count: int, *, people: tuple[str, ...] = (ANA, BEN), days: float = 0) -> list[PastCall]:
    """Approved readings of different files below /project."""
    return [
        PastCall(
            *(
                "agent:x",
                "fs",
                "read_file",
                {"path": f"/project/{number}.txt"},
                CallOutcome.APPROVED,
            ),
            NOW - timedelta(days=days) * (number / max(count - 1, 1)),
            "d1",
            (people[number % len(people)],),
        )
        for number in range(count)
    ]


def weigh(
    past: Iterable[PastCall],
    tools: KnownTools | None = None,
    measure: SuggestionThreshold | None = None,
) -> SuggestionResult:
    gathered = PastCalls()
    for each in past:
        gathered.add(each)
    return suggestion_rules.weigh_suggestions(
        gathered, tools or _known, measure or SuggestionThreshold()
    )


def _known(server: str, tool: str) -> CurrentTool | None:
    return CurrentTool("d1") if server == "fs" else None


def test_equal_decisions_become_a_suggestion_in_words() -> None:
    (found,) = weigh(_past(23, days=8.5)).suggestions
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
    past: list[PastCall], is_suggested: bool
) -> None:
    assert bool(weigh(past).suggestions) is is_suggested


def test_how_much_it_takes_can_be_said() -> None:
    measure = SuggestionThreshold(decisions=3, people=1)
    (found,) = weigh(_past(3, people=(ANA,)), _known, measure).suggestions
    assert found.words.endswith("3 of 3 approved by one person within a day")
    assert not weigh(_past(3), _known, replace(measure, people=3)).suggestions


def test_one_no_in_the_window_is_enough_whoever_asked() -> None:
    said_no = replace(_past(1)[0], asker="agent:y", became=CallOutcome.DECLINED, definition="d0")
    weighed = weigh([*_past(20), said_no])
    assert weighed.suggestions == ()
    (held,) = weighed.withheld
    assert (held.subject, held.tool, held.decisions) == ("agent:x", "read_file", 20)
    assert held.why == "a person denied such a call, too"


def test_a_no_to_other_arguments_or_another_tool_is_another_matter() -> None:
    other = replace(_past(1)[0], became=CallOutcome.DECLINED)
    shaped = replace(other, arguments={"path": "/project/1.txt", "head": 3})
    weighed = weigh([*_past(20), shaped, replace(other, tool="stat")])
    assert len(weighed.suggestions) == 1


def test_what_nobody_answered_counts_neither_way() -> None:
    silent = replace(_past(1)[0], became=CallOutcome.UNANSWERED)
    (found,) = weigh([*_past(20), *[silent] * 5]).suggestions
    assert found.decisions == 20


def test_what_nobody_would_be_asked_about_any_more_is_not_suggested_again() -> None:
    gathered = PastCalls(lambda one: one.arguments["path"] != "/project/3.txt")
    for each in _past(20):
        gathered.add(each)
    assert [len(group) for group in gathered.groups.values()] == [1]
    assert len(gathered.calls["agent:x", "fs", "read_file"]) == 20


@loop_over(
    "past",
    [
        [*(replace(each, definition="d0") for each in _past(20)), *_past(9)],
        [replace(each, asker=ANA) for each in _past(20, people=(ANA,), days=9)],
        [replace(each, server="web") for each in _past(20)],
    ],
    ids=["another definition", "own request", "tool that is gone"],
)
def test_decisions_about_another_matter_do_not_count(past: list[PastCall]) -> None:
    assert weigh(past) == ((), ())


def test_a_tool_that_may_not_be_generalised_is_held_back_with_the_reason() -> None:
    def never(server: str, tool: str) -> CurrentTool:
        return CurrentTool("d1", "its effect cannot be undone")

    weighed = weigh(_past(20), never)
    assert weighed.suggestions == ()
    assert [each.why for each in weighed.withheld] == ["its effect cannot be undone"]


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
    assert has_secrets(arguments)
    past = [replace(each, arguments=arguments) for each in _past(20)]
    weighed = weigh(past)
    assert weighed.suggestions == ()
    assert [each.why for each in weighed.withheld] == ["its arguments bear secrets"]


def test_one_call_with_a_secret_is_enough_whoever_made_it() -> None:
    hidden = replace(_past(1)[0], asker="agent:y", arguments={"key": "[secret:0a1b2c3d]"})
    assert weigh([*_past(20), hidden]).suggestions == ()


def test_arguments_that_differ_in_all_ways_are_held_back() -> None:
    past = [replace(each, arguments={"text": str(number)}) for number, each in enumerate(_past(20))]
    (held,) = weigh(past).withheld
    assert "differ" in held.why


def test_each_party_and_each_shape_is_looked_at_alone() -> None:
    others = [replace(each, asker="agent:y") for each in _past(9)]
    shaped = [
        replace(each, arguments={**each.arguments, "head": 1}, asker="agent:x")
        for each in _past(12)
    ]
    found = weigh([*_past(10), *others, *shaped]).suggestions
    assert [(each.subject, each.decisions) for each in found] == [("agent:x", 12), ("agent:x", 10)]


def test_the_same_topic_has_the_same_name_however_much_evidence_there_is() -> None:
    (less,) = weigh(_past(10)).suggestions
    more_past = [*_past(20), replace(_past(1)[0], arguments={"path": "/project/deep/x"})]
    (more,) = weigh(more_past).suggestions
    assert (less.id, less.topic) == (more.id, more.topic)
    narrowed = [replace(each, arguments={"path": "/project/a"}) for each in _past(10)]
    (other,) = weigh(narrowed).suggestions
    assert other.topic == less.topic
    assert other.id != less.id


@loop_over(
    ("risk", "label", "hints", "needs", "always", "told"),
    [
        (Risk.SAFE, None, ToolHints(), (), False, None),
        (Risk.MODERATE, None, ToolHints(), ("filesystem.read", "memory.write"), False, None),
        (Risk.DANGEROUS, None, READS, (), False, None),
        (Risk.DANGEROUS, None, ToolHints(is_destructive=False), (), False, None),
        (Risk.DANGEROUS, SecurityLabel(reversible=True), ToolHints(), (), False, None),
        (Risk.DANGEROUS, None, ToolHints(), (), False, "dangerous"),
        (Risk.DANGEROUS, None, ToolHints(is_destructive=True), (), False, "dangerous"),
        (Risk.MODERATE, SecurityLabel(reversible=False), READS, (), False, "undone"),
        (Risk.SAFE, SecurityLabel(confirmation=True), READS, (), False, "confirmed"),
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
    risk: Risk,
    label: SecurityLabel | None,
    hints: ToolHints,
    needs: tuple[str, ...],
    always: bool,
    told: str,
) -> None:
    seen = DefinitionAnalysis(b"", "t", label=label, hints=hints)
    why = never_reusable_reason(risk, seen, needs, is_always_confirmed=always)
    assert (why is None) if told is None else (told in (why or ""))


def _ask(**other: Any) -> ApprovalRequest:
    about: Mapping[str, object] = {"arguments": {"path": "/project/a"}, "definition": "d1"}
    return replace(
        ApprovalRequest(
            *("a1", ApprovalKind.CONFIRM, "agent:x", "fs", "read_file", "digest", "?", about),
            *(NOW, NOW + timedelta(minutes=5)),
            trace="t1",
        ),
        **other,
    )


def _said(verdict: ApprovalDecision, by: str = ANA) -> ApprovalAnswer:
    return ApprovalAnswer(by, verdict, NOW + timedelta(minutes=1))


ACCEPTED = _said(ApprovalDecision.ACCEPT)
USED = {"state": ApprovalState.CONSUMED, "answers": (ACCEPTED,)}
TWO_PEOPLE = (_said(ApprovalDecision.DEFER, "person:c"), ACCEPTED, replace(ACCEPTED, by=BEN))


@loop_over(
    ("ask", "became", "by"),
    [
        (_ask(), None, ()),
        (_ask(**USED), CallOutcome.APPROVED, (ANA,)),
        (_ask(**USED | {"state": ApprovalState.EXPIRED}), CallOutcome.APPROVED, (ANA,)),
        *(
            (_ask(state=state, answers=(_said(decision),)), CallOutcome.DECLINED, (ANA,))
            for state, decision in (
                (ApprovalState.DENIED, ApprovalDecision.DECLINE),
                (ApprovalState.CANCELLED, ApprovalDecision.CANCEL),
            )
        ),
        (_ask(state=ApprovalState.EXPIRED), CallOutcome.UNANSWERED, ()),
        (_ask(state=ApprovalState.WITHDRAWN), CallOutcome.UNANSWERED, ()),
        (_ask(quorum=2, answers=(ACCEPTED,)), None, ()),
        (
            _ask(quorum=2, state=ApprovalState.EXPIRED, answers=(ACCEPTED,)),
            CallOutcome.UNANSWERED,
            (ANA,),
        ),
        (_ask(**USED | {"quorum": 2, "answers": TWO_PEOPLE}), CallOutcome.APPROVED, (ANA, BEN)),
        (_ask(kind=ApprovalKind.PERMISSION, **USED), None, ()),
        (_ask(about={}, **USED), None, ()),
    ],
)
def test_an_ask_is_a_precedent_by_what_became_of_it(
    ask: ApprovalRequest, became: CallOutcome | None, by: tuple[str, ...]
) -> None:
    found = past_call_of_request(ask)
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
    PastCall,
    st.sampled_from(["agent:x", ANA]),
    st.just("fs"),
    st.sampled_from(["read_file", "stat"]),
    _arguments,
    st.sampled_from(CallOutcome),
    st.integers(0, 14 * 24).map(lambda hours: NOW - timedelta(hours=hours)),
    st.sampled_from(["d1", "d0"]),
    st.sampled_from([(ANA,), (BEN,)]),
)


@given(st.lists(_precedents, max_size=40))
def test_a_suggestion_covers_its_evidence_and_nothing_that_was_declined(
    past: list[PastCall],
) -> None:
    for found in weigh(past, _known, SuggestionThreshold(decisions=2)).suggestions:
        condition = parse_condition(found.where)
        same = [e for e in past if (e.asker, e.tool) == (found.subject, found.tool)]
        covered = [e for e in same if condition.covers(e.arguments)]
        evidence = [e for e in covered if e.became is CallOutcome.APPROVED and e.definition == "d1"]
        assert len([e for e in evidence if e.asker not in e.by]) == found.decisions
        assert not [e for e in covered if e.became is CallOutcome.DECLINED]


# The condition.


def _each(name: str, *values: Any) -> list[dict[str, Any]]:
    return [{name: value} for value in values]


HOME, ROOT = "/home/ana", "/root"
FILES = [f"/project/src/{number}.py" for number in range(9)]


@loop_over(
    ("seen", "test"),
    [
        (_each("path", *["/project/a"] * 3), {"is": "/project/a"}),
        (_each("path", *FILES), {"under": "/project/src"}),
        (_each("path", *FILES, "/project/doc/x/y"), {"under": "/project"}),
        (_each("path", "/project/a", "/project/b", "/project"), {"under": "/project"}),
        (_each("path", *["/project/a", "/project/b"] * 2), {"in": ["/project/a", "/project/b"]}),
        (_each("where", *FILES), {"under": "/project/src"}),
        (_each("mode", "r", "rb", "r"), {"in": ["r", "rb"]}),
        (_each("n", 1, True, 1.0, "1", None), {"in": [1, True, 1.0, "1", None]}),
        (
            _each("url", *(f"https://api.example.org/{n}" for n in range(9))),
            {"host": "api.example.org"},
        ),
        (
            _each("url", *(f"http://api.example.org/{n}" for n in range(9))),
            {"host": "api.example.org", "scheme": "http"},
        ),
        (_each("list", *[["a", 1]] * 4), {"is": ["a", 1]}),
    ],
)
def test_values_become_the_narrowest_test_for_all_of_them(
    seen: list[dict[str, Any]], test: dict[str, Any]
) -> None:
    (name,) = seen[0]
    assert infer_condition(seen) == {"paths": {f"/{name}": test}, "only": [name]}


@loop_over(
    "seen",
    [
        [],
        _each("text", *"abcdef"),
        _each("n", *range(MAX_CHOICES + 1)),
        _each("command", *(f"/bin/x{n}" for n in range(9))),
        _each("sql", *FILES),
        _each("code", *FILES),
        # Trees that are too wide, hidden, or where secrets are kept.
        _each("path", *(f"/{n}" for n in range(9))),
        _each("path", *(f"/{n}/x" for n in range(9))),
        *(
            _each("path", *(f"{tree}/{n}" for n in range(9)))
            for tree in (
                *("/etc", "/etc/ssl", "/root", f"{ROOT}/work", "/home", "/home/ana", "/Users/ana"),
                *("/var", "/usr", "/tmp", "/proc/1", "/sys/class", "/dev/shm", "/project/.git"),
                *(f"{HOME}/.ssh", "/ETC/ssl", "/run/user", "/boot/efi"),
            )
        ),
        _each("path", *FILES, "/project/.env"),
        _each("path", *FILES, "/project/../x"),
        _each("path", *FILES, "project/x"),
        _each("path", *FILES, "https://api.example.org/x"),
        _each("path", *FILES, None),
        _each("path", *FILES, 3),
        _each("url", *(f"https://{n}.example.org/" for n in range(9))),
        _each("url", *(f"http{'s' * (n % 2)}://api.example.org/{n}" for n in range(9))),
        _each("url", *(f"https://api.example.org:8443/{n}" for n in range(9))),
        _each("url", *(f"https://metadata.google.internal/{n}" for n in range(9))),
        _each("url", *(f"https://user@api.example.org/{n}" for n in range(9))),
        _each("files", *([name] for name in FILES)),
        _each("text", *["x" * 2_000] * 5),
        [*_each("path", *FILES), {"path": "/project/src/x", "head": 3}],
        [*_each("path", *FILES), {}],
        [{"path": "/project/src/x", "head": 3}, *_each("path", *FILES)],
    ],
    ids=lambda seen: ascii(seen[-1:])[:60],
)
def test_what_differs_in_another_way_is_not_generalised(seen: list[dict[str, Any]]) -> None:
    assert infer_condition(seen) is None


def test_calls_without_arguments_are_all_the_same() -> None:
    assert infer_condition([{}, {}]) == {"paths": {}, "only": []}


def test_each_argument_gets_a_test_of_its_own() -> None:
    seen = [{"path": path, "options": {"tail": False, "n": len(path) % 2}} for path in FILES]
    assert infer_condition(seen) == {
        "paths": {
            "/path": {"under": "/project/src"},
            "/options/tail": {"is": False},
            "/options/n": {"is": len(FILES[0]) % 2},
        },
        "only": ["options", "path"],
    }


def test_the_shape_of_arguments_is_where_they_have_values() -> None:
    assert argument_shape({"b": {"c": 1}, "a": []}) == ("/a", "/b/c")
    assert argument_shape({str(number): 1 for number in range(100)}) is None


_part = st.text("ab.é", min_size=1, max_size=3)
_path = st.lists(_part, min_size=1, max_size=5).map(lambda parts: "/" + "/".join(parts))
_value = st.one_of(
    _path,
    st.sampled_from(
        ["https://a.example.org/1", "https://a.example.org/2", "http://b.example.org/"]
    ),
    st.text(max_size=3),
    st.integers(0, 3),
    st.booleans(),
    st.none(),
    st.lists(st.integers(0, 1), max_size=2),
)
_calls = st.dictionaries(st.sampled_from(["path", "url", "x"]), _value, max_size=3)


@given(st.lists(_calls, min_size=1, max_size=12))
def test_a_condition_covers_every_call_that_it_was_made_from(calls: list[dict[str, Any]]) -> None:
    where = infer_condition(calls)
    if where is not None:
        condition = parse_condition(where)
        assert all(condition.covers(call) for call in calls)


@given(st.lists(_path, min_size=2, max_size=8), _path)
def test_no_tree_reaches_above_what_its_paths_have_in_common(paths: list[str], other: str) -> None:
    tree = common_tree(paths)
    if tree is None:
        return
    assert not is_too_wide(tree)
    assert all(path == tree or path.startswith(f"{tree}/") for path in paths)
    deeper = {"/".join(path.split("/")[: tree.count("/") + 2]) for path in paths}
    assert len(deeper) > 1 or tree in paths
    condition = parse_condition({"paths": {"/path": {"under": tree}}, "only": ["path"]})
    if condition.covers({"path": other}):
        assert other == tree or other.startswith(f"{tree}/")


@given(st.lists(st.sampled_from(FILES), min_size=1, max_size=12), st.text(max_size=20))
def test_nothing_outside_of_the_common_tree_is_covered(paths: list[str], tail: str) -> None:
    where = infer_condition(_each("path", *paths))
    assert where is not None
    condition = parse_condition(where)
    for path in (f"/project/{tail}", f"/project/src/../{tail}", f"/{tail}", tail):
        if condition.covers({"path": path}):
            assert path.split("/")[:3] == ["", "project", "src"]


# The dry run.


WHERE = {"paths": {"/path": {"under": "/project"}}, "only": ["path"]}
INSIDE = PastCall("agent:x", "fs", "read", {"path": "/project/a"}, CallOutcome.APPROVED, NOW)
OUTSIDE = replace(INSIDE, arguments={"path": "/etc/passwd"}, became=CallOutcome.DECLINED)
EVENT = AuditEvent(
    *(AuditType.TOOL_BLOCKED, "agent:x", NOW),
    server="fs",
    tool="read",
    result=AuditResult.BLOCKED,
    trace="t1",
    details={"arguments": {"path": "/project/a"}},
)


def test_a_dry_run_tells_what_would_have_been_let_go_and_what_not() -> None:
    refused, went = (
        replace(INSIDE, became=CallOutcome.REFUSED),
        replace(INSIDE, became=CallOutcome.WENT),
    )
    found = dry_run_condition(WHERE, [*[INSIDE] * 23, *[refused] * 3, went, OUTSIDE, OUTSIDE])
    assert found.sentence == (
        "would have allowed 23; would also have allowed 4 that were never asked; would not have "
        "covered 2"
    )
    (left,) = found.listed
    assert (left.arguments, left.became, left.times) == (OUTSIDE.arguments, CallOutcome.DECLINED, 2)


@pytest.mark.parametrize(
    ("became", "count", "told"),
    [
        (CallOutcome.REFUSED, 1, "1 that was never asked"),
        (CallOutcome.UNANSWERED, 1, "1 without an answer"),
        (CallOutcome.UNANSWERED, 2, "2 without an answer"),
        (CallOutcome.DECLINED, 1, "1 that was declined"),
        (CallOutcome.DECLINED, 3, "3 that were declined"),
    ],
)
def test_each_kind_of_call_is_told_by_its_own_words(
    became: CallOutcome, count: int, told: str
) -> None:
    found = dry_run_condition(WHERE, [replace(INSIDE, became=became)] * count)
    assert f"would also have allowed {told};" in found.sentence


def test_only_the_latest_that_are_left_are_listed_and_all_are_counted() -> None:
    many = [
        replace(OUTSIDE, arguments={"path": f"/etc/{number}"}, at=NOW + timedelta(seconds=number))
        for number in range(50)
    ]
    found = dry_run_condition(WHERE, many)
    assert (found.left, len(found.listed)) == (50, MAX_LISTED_CALLS)
    assert found.listed[0].arguments == {"path": "/etc/49"}


def test_a_condition_that_cannot_be_read_would_have_let_nothing_go() -> None:
    assert dry_run_condition({"paths": {}}, [INSIDE]).covered == {}


def test_a_call_of_the_journal_is_one_that_nobody_was_asked_about() -> None:
    assert past_call_of_event(EVENT) == replace(INSIDE, became=CallOutcome.REFUSED, trace="t1")
    went = past_call_of_event(otherwise(EVENT, type=AuditType.TOOL_EXECUTED))
    assert went == replace(INSIDE, became=CallOutcome.WENT, trace="t1")


@pytest.mark.parametrize(
    "event",
    [
        otherwise(EVENT, type=AuditType.CALL_INTENDED),
        otherwise(EVENT, type=AuditType.VALIDATION_FAILED),
        otherwise(EVENT, details={}),
        otherwise(EVENT, details={"arguments": "cut"}),
        otherwise(EVENT, details={**EVENT.details, "approval": "a1"}),
        otherwise(EVENT, details={**EVENT.details, "answered_by": "a1"}),
        otherwise(EVENT, details={**EVENT.details, "outcome": "pending_approval"}),
    ],
)
def test_any_other_entry_of_the_journal_is_none(event: AuditEvent) -> None:
    assert past_call_of_event(event) is None
