"""Approved calls whose tool asks its client something: one approval, all of its rounds, no more."""

from datetime import timedelta
from typing import Any, cast

import pytest

from comity.kernel.call import Call
from comity.kernel.continuing import Continuing
from comity.kernel.outbox import Outbox
from comity.wire import jsonrpc, mcp
from comity.wire.asks import Verdict
from tests.kernel.asking import DONE, OTHER, Bed, Time, asking
from tests.kernel.carriers import SILENCE, Params, Script, until
from tests.kernel.refused import kind_of

CAN_BE_ASKED: Params = {"elicitation": {"form": {}}, "roots": {}}
GIVEN: Params = {"action": "accept", "content": {"name": "you"}}


def _asks_for_a_name(state: str | None = "the server's own") -> Script:
    """A modern server whose tool wants a name before it does anything."""

    def answer(params: Params) -> Params:
        if "inputResponses" in params:
            return {"resultType": "complete", **DONE}
        wants = {"method": mcp.ELICIT, "params": {"mode": "form", "message": "Name?"}}
        said: Params = {"resultType": "input_required", "inputRequests": {"name": wants}}
        return said if state is None else {**said, "requestState": state}

    return Script(handshake=False, modern=True, replies={mcp.CALL_TOOL: answer})


async def _first_round(bed: Bed) -> Params:
    call = bed.call_modern(capabilities=CAN_BE_ASKED)
    await bed.answer()
    result = await call.result()
    assert result["resultType"] == "input_required"
    return result


@pytest.mark.parametrize("at_all", [False, True])
@pytest.mark.parametrize("state", ["the server's own", None])
async def test_the_next_round_of_an_approved_call_is_not_asked_about(
    state: str | None, at_all: bool
) -> None:
    async with asking(_asks_for_a_name(state), at_all=at_all) as bed:
        asked = await _first_round(bed)
        members: dict[str, Any] = {"inputResponses": {"name": GIVEN}}
        if state is not None:
            members["requestState"] = asked["requestState"]
        call = bed.call_modern(capabilities=CAN_BE_ASKED, **members)
        assert (await call.result())["content"] == DONE["content"]
        assert bed.runs == 2
        told = await bed.told()
        assert (told.count("ASK_OPENED"), told.count("CALL_INTENDED")) == (1, 2)
        # The same once more is another execution.
        bed.call_modern(capabilities=CAN_BE_ASKED, **members)
        await bed.open_ask()
        assert bed.runs == 2


async def test_a_round_of_somebody_else_or_of_another_call_is_asked_about() -> None:
    async with asking(_asks_for_a_name()) as bed:
        asked = await _first_round(bed)
        state, given = asked["requestState"], {"name": GIVEN}
        for changed in (
            {"actor": OTHER},
            {"arguments": {"path": "/"}},
            {"requestState": "another"},
        ):
            members: dict[str, Any] = {
                "capabilities": CAN_BE_ASKED,
                "requestState": state,
                "inputResponses": given,
                **changed,
            }
            call = bed.call_modern(**members)
            ask = await bed.open_ask()
            assert not call.outbox.final
            (await call.asking).withdraw(None)
            await bed.approvals.withdraw(ask, "seen")
            assert bed.runs == 1


async def test_a_bridged_servers_own_question_goes_on_without_another_ask() -> None:
    script = Script(replies={mcp.CALL_TOOL: SILENCE})
    async with asking(script) as bed:
        call = bed.call_modern(capabilities=CAN_BE_ASKED)
        await bed.answer()
        await until(lambda: bed.runs == 1)
        carrier = next(each for each in script.carriers if each.asked(mcp.CALL_TOOL))
        (sent,) = carrier.asked(mcp.CALL_TOOL)
        carrier.says(jsonrpc.request(7, mcp.ELICIT, {"message": "Name?"}), sent)
        asked = await call.result()
        assert asked["resultType"] == "input_required"
        (key,) = cast("dict[str, object]", asked["inputRequests"])
        members: dict[str, Any] = {
            "requestState": asked["requestState"],
            "inputResponses": {key: GIVEN},
        }
        again = bed.call_modern(capabilities=CAN_BE_ASKED, **members)
        await until(lambda: bool([f for f in carrier.told() if f.id == 7]))
        carrier.answers(sent, DONE)
        assert (await again.result())["content"] == DONE["content"]
        # To its server it was one call all the time.
        assert bed.runs == 1
        assert (await bed.told()).count("ASK_OPENED") == 1


async def test_a_call_that_is_declined_has_no_next_round() -> None:
    async with asking(_asks_for_a_name()) as bed:
        call = bed.call_modern(capabilities=CAN_BE_ASKED)
        await bed.open_ask()
        members: dict[str, Any] = {"requestState": "the server's own", "inputResponses": {}}
        forged = bed.call_modern(capabilities=CAN_BE_ASKED, **members)
        await bed.answer(Verdict.DECLINE)
        assert kind_of(await call.error()) == "declined"
        assert kind_of(await forged.error()) == "declined"
        assert bed.runs == 0


def test_what_has_waited_too_long_or_is_too_much_is_forgotten() -> None:
    time = Time()
    continuing = Continuing(time, most=2, within=timedelta(minutes=1))
    for number in range(3):
        call = _call(f"ask-{number}")
        continuing.watch(call, f"digest-{number}")
        assert call.on_round is not None
        call.on_round(jsonrpc.result(1, {"resultType": "input_required", "requestState": "s"}))
    assert len(continuing) == 2
    again = jsonrpc.request(2, mcp.CALL_TOOL, {"requestState": "s"})
    assert not continuing.goes_on(_call(), "digest-0", again)
    assert continuing.goes_on(_call(), "digest-1", again)
    assert not continuing.goes_on(_call(), "digest-1", again)
    time.passes(timedelta(minutes=1))
    assert not continuing.goes_on(_call(), "digest-2", again)


def test_a_result_that_asks_for_nothing_readable_goes_on_with_nothing() -> None:
    continuing = Continuing(Time())
    call = _call("ask")
    continuing.watch(call, "digest")
    assert call.on_round is not None
    for result in ({"resultType": "complete"}, {"resultType": "input_required"}):
        call.on_round(jsonrpc.result(1, result))
    assert len(continuing) == 0


def _call(answered_by: str = "") -> Call:
    call = Call(jsonrpc.request(1, mcp.CALL_TOOL, {}), Outbox(), None, 0)
    call.answered_by = answered_by
    return call
