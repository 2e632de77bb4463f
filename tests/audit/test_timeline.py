"""`audit/timeline.py`: what became of a call, told from the journal's entries alone."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comity.audit.events import AuditEvent, AuditResult, AuditType, body_of
from comity.audit.timeline import CallTimeline, asks_in, build_timeline, format_span
from comity.mcp.actors import PrincipalKind
from tests.support.cases import loop_over

NOW = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
ASK = "06abcdefghijklmnopqrstuv01"
TRACE = "0af7651916cd43dd8448eb211c80319c"


def at(
    seconds: float, type: AuditType, result: AuditResult = AuditResult.SUCCESS, **said: Any
) -> AuditEvent:
    by = said.pop("by", "agent:ci")
    call = said.pop("call", "run-1")
    kind = PrincipalKind.PERSON if by.startswith("person") else PrincipalKind.AGENT
    moment = NOW + timedelta(seconds=seconds)
    return AuditEvent(type, by, moment, kind, "files", "write", result, TRACE, call, said)


ASKED = at(
    0,
    AuditType.APPROVAL_REQUESTED,
    AuditResult.PENDING,
    call="",
    approval=ASK,
    message="Write a file?",
    quorum=1,
)
ANSWERED = at(
    34,
    AuditType.APPROVAL_ANSWERED,
    by="person:ana@example.org",
    approval=ASK,
    verdict="accept",
    reason="fine",
)
INTENDED = at(
    34.1,
    AuditType.CALL_INTENDED,
    AuditResult.PENDING,
    risk_level="moderate",
    arguments={"path": "/project/a", "password": "[secret:0a1b2c3d]"},
    arguments_digest="ab" * 32,
    answered_by=ASK,
)
USED = at(34.1, AuditType.APPROVAL_CONSUMED, approval=ASK, call="run-1")
ENDED = at(34.5, AuditType.TOOL_EXECUTED, outcome="ok", duration_ms=402.5, arguments={"path": "x"})


def words(story: CallTimeline) -> str:
    return "\n".join("\n".join((each.words, *each.more)) for each in story.happened)


def test_an_approved_call_is_told_from_the_question_to_the_result() -> None:
    story = build_timeline([ASKED, ANSWERED, INTENDED, USED, ENDED])
    assert story.headline == (
        "agent:ci called files/write: it succeeded after 402 ms, after person:ana@example.org "
        "approved it (34.0 s)"
    )
    told = words(story)
    for said in (
        f"a person must approve; request {ASK}",
        "Write a file?",
        "person:ana@example.org approved",
        "reason: fine",
        "agent:ci calls files/write (moderate); recorded before it is sent",
        '"password": "[secret:0a1b2c3d]"',
        f"with approval {ASK}",
        "agent:ci has the result of files/write after 402 ms",
    ):
        assert said in told
    assert told.count("with {") == 1, "arguments are told once"
    assert [each.after.total_seconds() for each in story.happened] == [0, 34, 34.1, 34.1, 34.5]
    assert story.unknown == ()


def test_what_is_safe_is_told_by_its_end_alone() -> None:
    story = build_timeline(
        [at(0, AuditType.TOOL_EXECUTED, duration_ms=3, arguments_digest="ab" * 32)]
    )
    assert story.headline == "agent:ci called files/write: it succeeded after 3.0 ms"
    assert "not stored, digest abab" in words(story)


@pytest.mark.parametrize(
    ("type", "said"),
    [
        (AuditType.TOOL_BLOCKED, "refused; it was not sent"),
        (AuditType.VALIDATION_FAILED, "its arguments were refused; it was not sent"),
        (AuditType.CODE_REJECTED, "the code in it was refused; it was not sent"),
    ],
)
def test_a_refusal_is_told_with_its_reason(type: AuditType, said: str) -> None:
    story = build_timeline([at(0, type, AuditResult.BLOCKED, reason="nobody granted it")])
    assert story.headline.endswith(": refused")
    assert said in words(story)
    assert "reason: nobody granted it" in words(story)
    assert story.happened[0].is_bad


def test_the_reason_that_a_caller_reads_is_not_told_as_that_of_the_rules() -> None:
    decision = {"kind": "grant", "entry": "deny agent:ci", "why": "agents only read", "by": "ana"}
    told = {"reason": "there is nothing with this name", "decided_by": decision}
    story = build_timeline([at(0, AuditType.TOOL_BLOCKED, AuditResult.BLOCKED, **told)])
    assert "decided by a grant `deny agent:ci`, by ana: agents only read" in words(story)
    assert "the caller read: there is nothing with this name" in words(story)


def test_a_call_that_waits_for_approval_is_not_told_as_refused() -> None:
    waits = {"outcome": "pending_approval", "reason": "this call waits for a person's approval"}
    story = build_timeline([at(0, AuditType.TOOL_BLOCKED, AuditResult.BLOCKED, **waits)])
    assert story.headline.endswith(": it waits for approval")
    assert "it waits for approval" in words(story)
    assert "refused" not in words(story)
    assert not story.happened[0].is_bad


def test_what_nobody_knows_is_part_of_the_story() -> None:
    for end in (
        at(9, AuditType.OUTCOME_UNKNOWN, AuditResult.UNKNOWN, intended_at="2026-11-15T08:30:34Z"),
        at(
            9,
            AuditType.TOOL_EXECUTED,
            AuditResult.FAILURE,
            outcome_known=False,
            reason="it took too long",
        ),
    ):
        story = build_timeline([INTENDED, end])
        assert story.headline.endswith("it is unknown whether the tool ran")
        assert story.unknown == ("whether files/write ran in the call run-1",)
    open_end = build_timeline([INTENDED])
    assert open_end.unknown == ("how the call run-1 of files/write ended",)
    assert open_end.headline.endswith("the result is not recorded")


@loop_over(
    ("event", "said"),
    [
        (
            at(1, AuditType.APPROVAL_ENDED, AuditResult.BLOCKED, approval=ASK, state="expired"),
            "it was not answered in time",
        ),
        (
            at(1, AuditType.APPROVAL_ENDED, AuditResult.BLOCKED, approval=ASK, state="withdrawn"),
            "it is withdrawn",
        ),
        (at(1, AuditType.APPROVAL_ANSWERED, approval=ASK, verdict="decline"), "agent:ci denied"),
        (
            at(
                1,
                AuditType.APPROVAL_ANSWERED,
                AuditResult.BLOCKED,
                approval=ASK,
                reason="only a person can answer this",
            ),
            "tried to answer without permission\nreason: only a person can answer this",
        ),
        (
            at(1, AuditType.CALL_RETRIED, AuditResult.PENDING, attempt=2, reason="busy"),
            "tried again",
        ),
        (
            at(1, AuditType.TOOL_EXECUTED, AuditResult.FAILURE, duration_ms=5),
            "ended in an error after 5.0 ms",
        ),
        (at(1, AuditType.CATALOG_ENTRY_USED), "agent:ci reads files/write and has it"),
        (
            at(1, AuditType.CATALOG_ENTRY_USED, AuditResult.FAILURE),
            "agent:ci reads files/write in vain",
        ),
        (
            at(1, AuditType.SERVER_REPORT, by="server:files", said="x"),
            "server:files reports",
        ),
        (
            at(1, AuditType.KEY_ISSUED, key="k"),
            'key issued, by agent:ci: files/write\n{"key": "k"}',
        ),
    ],
)
def test_each_thing_that_happens_has_its_words(event: AuditEvent, said: str) -> None:
    assert said in words(build_timeline([event]))


def test_a_question_that_waits_is_told_as_one() -> None:
    assert build_timeline([ASKED]).headline == "agent:ci called files/write: waits for an answer"
    assert build_timeline([]).headline == "0 entries"


def test_several_people_must_agree() -> None:
    two = at(
        0,
        AuditType.APPROVAL_REQUESTED,
        AuditResult.PENDING,
        approval=ASK,
        quorum=2,
        about={"path": "x"},
    )
    assert "2 people must approve" in words(build_timeline([two]))


def test_what_a_stranger_wrote_is_bounded() -> None:
    story = build_timeline(
        [at(0, AuditType.TOOL_BLOCKED, AuditResult.BLOCKED, reason="x" * 10_000)]
    )
    assert len(words(story)) < 1000
    odd = at(0, AuditType.TOOL_EXECUTED, duration_ms=1e300)
    assert "succeeded" in build_timeline([odd]).headline


def test_the_asks_of_entries_are_found_each_once() -> None:
    bodies = [body_of(each) for each in (ASKED, ANSWERED, INTENDED)]
    assert asks_in([*bodies, b"no JSON", b"{}", b'{"details":{"approval":3}}']) == [ASK]


def test_lengths_are_said_as_people_say_them() -> None:
    said = [
        format_span(timedelta(seconds=each)) for each in (0.0012, 0.5, 3, 119, 600, 9000, 400_000)
    ]
    assert said == ["1.2 ms", "500 ms", "3.0 s", "119.0 s", "10.0 min", "2.5 h", "4.6 d"]
