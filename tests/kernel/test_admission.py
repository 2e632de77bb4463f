"""The last steps of the gate, in their order: the first that refuses ends it."""

from collections.abc import Awaitable
from typing import Any, cast

import pytest

from comity.kernel.admission import Admission, Outcome, arguments_in, enforce
from comity.kernel.call import Call
from comity.kernel.catalog import Offer
from comity.kernel.outbox import Outbox
from comity.rules.access import Judgement
from comity.rules.ask_forms import Brought, Mode
from comity.rules.patterns import Level
from comity.rules.refusals import Refusal
from comity.wire import jsonrpc, mcp
from comity.wire.errors import (
    APPROVAL_REQUIRED,
    RATE_LIMITED,
    TOOL_DISABLED,
    VALIDATION_BLOCKED,
    MalformedMessage,
)
from comity.wire.grants import Effect, Grant
from comity.wire.jsonrpc import Frame
from tests.kernel.asking import Standing, Tools

OFFER = Offer("files__delete", "files", "delete", b'{"name":"delete"}')
FRAME = jsonrpc.request(1, mcp.CALL_TOOL, {"name": "delete", "arguments": {"path": "x"}})
HELD = cast("Any", object())


class Parts:
    """Each step of the gate, with what it says, and in which order they were asked."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.limit: Refusal | None = None
        self.fault: Refusal | Awaitable[Refusal | None] | None = None
        self.answer: Grant | None = None
        self.continues = False

    def take(self, *_: object) -> Refusal | None:
        self.seen.append("limits")
        return self.limit

    def inspect(self, *_: object) -> Any:
        self.seen.append("inspection")
        return self.fault

    def standing_answer(self, *_: object, **__: object) -> Grant | None:
        self.seen.append("answers")
        return self.answer

    def hold(self, *_: object) -> Any:
        self.seen.append("person")
        return HELD

    def goes_on(self, *_: object) -> bool:
        return self.continues

    def taken_out(self, call: Call, frame: Frame) -> Frame:
        self.seen.append("taken out")
        return frame

    def intend(self, *_: object) -> None:
        self.seen.append("record")


class Confirmed(Tools):
    """Tools that need a person unless they were granted by name, or always."""

    always = False

    def standing(self, offer: Offer) -> Standing:
        return Standing("digest", 1, self.refusal, is_confirmed_always=self.always)


def _made(parts: Parts) -> Admission:
    tools = cast("Any", Confirmed())
    admission = Admission(tools, cast("Any", parts), cast("Any", parts), cast("Any", parts))
    admission.asking = admission.recording = cast("Any", parts)
    return admission


def _call(effect: Effect = Effect.ALLOW, level: Level = Level.SERVER) -> Call:
    call = Call(FRAME, Outbox(), None, 0)
    call.judged = Judgement(effect, "", level=level)
    return call


async def _outcome(admission: Admission, call: Call | None = None) -> Outcome:
    found = admission.examine(call or _call(), OFFER, FRAME)
    return await found if isinstance(found, Awaitable) else found


async def test_a_person_is_asked_only_about_what_could_go_on_at_once() -> None:
    parts = Parts()
    assert await _outcome(_made(parts)) is HELD
    assert parts.seen == ["limits", "inspection", "answers", "person"]


async def test_a_tool_that_was_granted_itself_is_recorded_and_goes_on() -> None:
    parts = Parts()
    assert await _outcome(_made(parts), _call(level=Level.OFFER)) is None
    assert parts.seen == ["limits", "inspection", "record"]


async def test_a_grant_that_says_ask_asks_though_it_names_the_tool() -> None:
    parts = Parts()
    assert await _outcome(_made(parts), _call(Effect.ASK, Level.OFFER)) is HELD


async def test_whoever_is_refused_costs_nobodys_time() -> None:
    for spoil, fault, seen in (
        ("standing", TOOL_DISABLED, []),
        ("limit", RATE_LIMITED, ["limits"]),
        ("fault", VALIDATION_BLOCKED, ["limits", "inspection"]),
    ):
        parts = Parts()
        admission = _made(parts)
        refusal = Refusal(fault, "no")
        if spoil == "standing":
            assert isinstance(admission.tools, Confirmed)
            admission.tools.refusal = refusal
        else:
            setattr(parts, spoil, refusal)
        assert await _outcome(admission) is refusal
        assert parts.seen == seen


async def test_what_was_looked_at_for_a_while_is_looked_at_as_it_is_then() -> None:
    parts = Parts()
    admission = _made(parts)
    refusal = Refusal(TOOL_DISABLED, "set aside meanwhile")

    async def slowly() -> Refusal | None:
        assert isinstance(admission.tools, Confirmed)
        admission.tools.refusal = refusal
        return None

    parts.fault = slowly()
    assert await _outcome(admission) is refusal
    assert "person" not in parts.seen


async def test_a_standing_answer_lets_a_call_go_by_its_name() -> None:
    parts = Parts()
    parts.answer = Grant("agent:ci", "tools/call", "files/*", Effect.ALLOW, id="g1")
    call = _call()
    assert await _outcome(_made(parts), call) is None
    assert call.answered_by == "g1"


async def test_a_tool_that_is_always_confirmed_has_no_standing_answer() -> None:
    parts = Parts()
    parts.answer = Grant("agent:ci", "tools/call", "files/*", Effect.ALLOW, id="g1")
    admission = _made(parts)
    assert isinstance(admission.tools, Confirmed)
    admission.tools.always = True
    assert await _outcome(admission) is HELD


async def test_the_next_round_of_what_was_approved_is_recorded_and_goes_on() -> None:
    parts = Parts()
    parts.continues = True
    assert await _outcome(_made(parts)) is None
    assert parts.seen[-1] == "record"


async def test_whoever_was_asked_is_heard_though_it_need_not_be_asked_any_more() -> None:
    parts = Parts()
    call = _call(level=Level.OFFER)
    call.brought = Brought("ask", Mode.FORM)
    assert await _outcome(_made(parts), call) is HELD


async def test_where_nobody_can_be_asked_nothing_goes_on() -> None:
    admission = _made(Parts())
    admission.asking = None
    refusal = await _outcome(admission)
    assert isinstance(refusal, Refusal)
    assert refusal.fault is APPROVAL_REQUIRED


async def test_only_what_a_call_of_a_tool_brings_is_taken_out() -> None:
    parts = Parts()
    admission = _made(parts)
    assert admission.heard(_call(), FRAME) is FRAME
    other = jsonrpc.request(1, mcp.LIST_TOOLS)
    assert admission.heard(Call(other, Outbox(), None, 0), other) is other
    assert parts.seen == ["taken out"]


async def test_what_is_refused_is_answered_and_what_is_held_begins() -> None:
    begun: list[object] = []

    class Hold:
        def begin(self, go_on: object, patience: object = None) -> None:
            begun.append(go_on)

    async def go_on() -> None:
        raise AssertionError("nothing goes on here")

    refused = _call()
    assert not await enforce(refused, Refusal(TOOL_DISABLED, "no"), go_on)
    assert refused.outbox.final
    assert not await enforce(_call(), Hold(), go_on)
    assert begun == [go_on]


def test_arguments_are_an_object_or_nothing() -> None:
    assert arguments_in(jsonrpc.request(1, mcp.CALL_TOOL, {"name": "x"})) == {}
    with pytest.raises(MalformedMessage):
        arguments_in(jsonrpc.request(1, mcp.CALL_TOOL, {"name": "x", "arguments": []}))


class Reach:
    """Says how far a call may reach, and holds what is beyond."""

    def __init__(self, found: object) -> None:
        self.found = found
        self.held = 0

    def judge(self, *_: object) -> Any:
        return self.found

    def hold(self, *_: object) -> Any:
        self.held += 1
        return HELD


@pytest.mark.parametrize(
    ("level", "answer", "seen", "held"),
    [
        # Granted by name: only its reach is asked about.
        (Level.OFFER, None, ["limits", "inspection"], 1),
        # A person looks at the very call in any case; the one question is enough.
        (Level.SERVER, None, ["limits", "inspection", "answers", "person"], 0),
        # What stands for all calls like this says nothing of how far it reaches.
        (Level.SERVER, Grant("a", "tools/call", "*", Effect.ALLOW), None, 1),
    ],
)
def test_what_reaches_beyond_its_bounds_is_asked_about_once(
    level: Level, answer: Grant | None, seen: list[str] | None, held: int
) -> None:
    parts, reach = Parts(), Reach("beyond")
    parts.answer = answer
    admission = _made(parts)
    admission.reaching = cast("Any", reach)
    assert admission.examine(_call(level=level), OFFER, FRAME) is HELD
    assert reach.held == held
    assert seen is None or parts.seen == seen


def test_what_may_not_be_reached_is_refused_before_anybody_is_asked() -> None:
    parts = Parts()
    admission = _made(parts)
    refusal = Refusal(TOOL_DISABLED, "not enabled")
    admission.reaching = cast("Any", Reach(refusal))
    assert admission.examine(_call(), OFFER, FRAME) is refusal
    assert parts.seen == ["limits", "inspection"]


def test_where_nobody_looks_after_tools_nobody_can_be_asked_how_far_one_reaches() -> None:
    admission = Admission()
    admission.reaching = cast("Any", Reach("beyond"))
    found = admission.examine(_call(level=Level.OFFER), OFFER, FRAME)
    assert isinstance(found, Refusal)
    assert found.fault is APPROVAL_REQUIRED
    admission.reaching = cast("Any", Reach(None))
    assert admission.examine(_call(level=Level.OFFER), OFFER, FRAME) is None
