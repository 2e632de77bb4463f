"""Asks as rounds of the modern era: who is asked so, what counts as an answer, what never does."""

import asyncio
from typing import Any, cast

import pytest

from comity.kernel.held import Holding
from comity.wire import jsonrpc, mcp
from comity.wire.asks import State, Verdict
from comity.wire.audit import Result, Type
from comity.wire.jsonrpc import Frame
from tests.kernel.asking import AGENT, ANA, BEA, DONE, FORM, OTHER, PAGE, Bed, asking
from tests.kernel.carriers import Params, Script, params_of
from tests.kernel.refused import kind_of

APPROVE: Params = {"action": "accept", "content": {"decision": "approve"}}
BROUGHT = "inputResponses"


def _responses(response: object) -> Params:
    return {"approval": response}


def _sent(script: Script) -> list[Frame]:
    return [frame for carrier in script.carriers for frame in carrier.asked(mcp.CALL_TOOL)]


async def _round(bed: Bed, capabilities: Params = FORM) -> Params:
    """A call of somebody who may answer for itself, as far as the question."""
    bed.grants.own.add(BEA.party)
    result = await bed.call_modern(BEA, capabilities=capabilities).result()
    assert result["resultType"] == "input_required"
    return result


async def _again(bed: Bed, state: object, response: object, **changed: Any) -> Any:
    members = {"requestState": state, BROUGHT: _responses(response)}
    asked: dict[str, Any] = {"actor": BEA, "capabilities": FORM, **members, **changed}
    return bed.call_modern(**asked)


async def test_who_may_answer_for_itself_is_asked_in_its_own_client_and_the_call_runs_once() -> (
    None
):
    async with asking() as bed:
        asked = await _round(bed)
        question = cast("Any", asked["inputRequests"])["approval"]
        assert question["method"] == mcp.ELICIT
        params = question["params"]
        assert params["mode"] == "form"
        assert "srv__delete" in params["message"]
        assert "/tmp/x" in params["message"]
        assert params["requestedSchema"]["required"] == ["decision"]
        ask = await bed.open_ask()
        assert ask.own
        assert bed.runs == 0
        call = await _again(bed, asked["requestState"], APPROVE)
        assert (await call.result())["content"] == DONE["content"]
        assert bed.runs == 1
        used = await bed.asks.get(ask.id)
        assert used is not None
        assert (used.state, used.answers[0].by) == (State.USED, BEA.party)
        told = await bed.told()
        assert told.count("TOOL_EXECUTED") == 1
        # What only asked is no execution.
        assert told.count("TOOL_BLOCKED") == 1


async def test_nothing_of_our_round_reaches_the_server() -> None:
    for script in (Script(modern=True, handshake=False), Script()):
        async with asking(script) as bed:
            asked = await _round(bed)
            await (await _again(bed, asked["requestState"], APPROVE)).result()
            (sent,) = _sent(script)
            assert {"requestState", BROUGHT}.isdisjoint(params_of(sent))


@pytest.mark.parametrize(
    ("response", "state"),
    [
        ({"action": "decline"}, State.DECLINED),
        ({"action": "cancel"}, State.CANCELLED),
        ({"action": "accept", "content": {"decision": "decline"}}, State.DECLINED),
    ],
    ids=str,
)
async def test_a_no_is_a_no(response: Params, state: State) -> None:
    async with asking() as bed:
        asked = await _round(bed)
        ask = await bed.open_ask()
        error = await (await _again(bed, asked["requestState"], response)).error()
        assert kind_of(error) == "declined"
        assert (await bed.asks.get(ask.id) or ask).state is state
        assert bed.runs == 0


@pytest.mark.parametrize(
    "response",
    [
        {"action": "accept"},
        {"action": "accept", "content": {}},
        {"action": "accept", "content": {"decision": True}},
        {"action": "accept", "content": {"decision": "Approve"}},
        {"action": "accept", "content": {"name": "you"}},
        {"action": "yes"},
        {},
        [],
        "accept",
    ],
    ids=str,
)
async def test_what_is_no_answer_runs_nothing_and_answers_nothing(response: object) -> None:
    async with asking() as bed:
        asked = await _round(bed)
        await (await _again(bed, asked["requestState"], response)).error()
        assert not (await bed.open_ask()).answers
        assert bed.runs == 0


async def test_a_state_is_good_for_one_run() -> None:
    async with asking() as bed:
        asked = await _round(bed)
        calls = [await _again(bed, asked["requestState"], APPROVE) for _ in range(20)]
        answers = [await call.answer() for call in calls]
        assert bed.runs == 1
        well = [frame for frame in answers if b"deleted" in jsonrpc.encode(frame)]
        assert len(well) == 1
        late = await (await _again(bed, asked["requestState"], APPROVE)).error()
        assert "nothing that waits" in late.message
        assert bed.runs == 1


async def test_a_state_of_somebody_else_is_refused() -> None:
    async with asking() as bed:
        asked = await _round(bed)
        for thief in (AGENT, ANA, OTHER):
            call = await _again(bed, asked["requestState"], APPROVE, actor=thief)
            assert "somebody else" in (await call.error()).message
        assert not (await bed.open_ask()).answers
        assert bed.runs == 0


async def test_a_state_is_for_the_arguments_that_were_asked_about() -> None:
    async with asking() as bed:
        asked = await _round(bed)
        call = await _again(bed, asked["requestState"], APPROVE, arguments={"path": "/"})
        assert "nothing that waits" in (await call.error()).message
        assert not (await bed.open_ask()).answers
        assert bed.runs == 0


async def test_a_forged_state_answers_nothing() -> None:
    async with asking(Script(modern=True, handshake=False)) as bed:
        asked = await _round(bed)
        other = Holding(bed.approvals, bed.admission, bed.grants, bed.front.catalog)
        bed.holding.key, real = other.key, bed.holding.key
        forged = (await bed.call_modern(BEA, {"path": "/"}, FORM).result())["requestState"]
        bed.holding.key = real
        state = str(asked["requestState"])
        for bad in (forged, state[:-4] + "AAAA", state.upper(), "", "x" * 9000):
            call = await _again(bed, bad, APPROVE)
            # To us it is a state of the server's own, and the call is asked about like any other.
            async with asyncio.timeout(10):
                await call.asking
            assert bed.runs == 0
        assert all(not ask.answers for ask in await bed.asks.page())


async def test_a_drifted_definition_is_not_what_was_asked_about() -> None:
    async with asking() as bed:
        asked = await _round(bed)
        bed.tools.version = "second"
        call = await _again(bed, asked["requestState"], APPROVE)
        assert "nothing that waits" in (await call.error()).message
        assert bed.runs == 0


async def test_an_agent_is_never_asked_for_itself_whatever_it_was_granted() -> None:
    async with asking() as bed:
        bed.grants.own.add(AGENT.party)
        bed.grants.authorities.add(AGENT.party)
        call = bed.call_modern(AGENT, capabilities=FORM)
        ask = await bed.open_ask()
        assert not ask.own
        assert not call.outbox.final
        # Nor does a state of its own help it, however it came by one.
        bed.grants.own.add(BEA.party)
        asked = await bed.call_modern(BEA, capabilities=FORM).result()
        stolen = await _again(bed, asked["requestState"], APPROVE, actor=AGENT)
        assert "somebody else" in (await stolen.error()).message
        assert bed.runs == 0


async def test_a_grant_to_answer_that_was_revoked_meanwhile_answers_nothing() -> None:
    async with asking() as bed:
        asked = await _round(bed)
        bed.grants.own.clear()
        error = await (await _again(bed, asked["requestState"], APPROVE)).error()
        assert kind_of(error) == "access_denied"
        assert bed.runs == 0
        await bed.told()
        (blocked,) = [event for event in bed.events if event.type == Type.ASK_ANSWERED]
        assert blocked.result == Result.BLOCKED


async def test_after_a_restart_the_round_goes_on() -> None:
    async with asking() as bed:
        asked = await _round(bed)
        fresh = Holding(bed.approvals, bed.admission, bed.grants, bed.front.catalog)
        fresh.key = bed.holding.key
        bed.admission.asking = fresh
        result = await (await _again(bed, asked["requestState"], APPROVE)).result()
        assert result["content"] == DONE["content"]
        assert bed.runs == 1
        fresh.stop()


async def test_somebody_else_may_approve_meanwhile_and_a_no_still_counts() -> None:
    async with asking() as bed:
        asked = await _round(bed)
        ask = await bed.answer(by=ANA)
        error = await (await _again(bed, asked["requestState"], {"action": "decline"})).error()
        assert kind_of(error) == "declined"
        assert (await bed.asks.get(ask.id) or ask).state is State.WITHDRAWN
        assert bed.runs == 0


async def test_a_no_counts_also_where_the_call_was_granted_meanwhile() -> None:
    async with asking() as bed:
        asked = await _round(bed)
        bed.admission.answers = cast("Any", _AllGranted())
        error = await (await _again(bed, asked["requestState"], {"action": "decline"})).error()
        assert kind_of(error) == "declined"
        assert bed.runs == 0


class _AllGranted:
    def standing_answer(self, *_: object, **__: object) -> Any:
        raise AssertionError("nobody asks")


async def test_one_of_a_quorum_waits_for_the_other() -> None:
    async with asking() as bed:
        bed.tools.quorum = 2
        asked = await _round(bed)
        call = await _again(bed, asked["requestState"], APPROVE)
        await call.asking
        while not (await bed.open_ask()).answers:
            await asyncio.sleep(0)
        assert bed.runs == 0
        await bed.answer(by=ANA)
        assert (await call.result())["content"] == DONE["content"]
        assert bed.runs == 1


async def test_who_may_not_answer_is_shown_a_page_and_to_visit_it_answers_nothing() -> None:
    async with asking() as bed:
        result = await bed.call_modern(AGENT, capabilities=PAGE).result()
        params = cast("Any", result["inputRequests"])["approval"]["params"]
        ask = await bed.open_ask()
        assert (params["mode"], params["url"]) == ("url", f"/asks/{ask.id}")
        # Not even in the words of a form.
        call = await _again(bed, result["requestState"], APPROVE, actor=AGENT, capabilities=PAGE)
        await call.asking
        assert not (await bed.open_ask()).answers
        assert bed.runs == 0
        await bed.answer(by=ANA)
        assert (await call.result())["content"] == DONE["content"]
        assert bed.runs == 1


async def test_who_does_not_want_to_visit_the_page_does_not_wait_and_the_ask_stays() -> None:
    async with asking() as bed:
        result = await bed.call_modern(AGENT, capabilities=PAGE).result()
        no = {"action": "decline"}
        call = await _again(bed, result["requestState"], no, actor=AGENT, capabilities=PAGE)
        assert kind_of(await call.error()) == "pending_approval"
        assert (await bed.open_ask()).state is State.PENDING
        await bed.answer(Verdict.ACCEPT)
        await bed.call_modern(AGENT).result()
        assert bed.runs == 1


async def test_only_who_may_answer_gets_a_page_that_knows_it() -> None:
    async with asking() as bed:
        bed.holding.token_for = lambda ask, actor: f"token-of-{actor.party}"
        bed.grants.own.add(BEA.party)
        only_page: Params = {"elicitation": {"url": {}}}
        mine = await bed.call_modern(BEA, capabilities=only_page).result()
        theirs = await bed.call_modern(AGENT, capabilities=only_page).result()
        url, other = (
            str(cast("Any", each["inputRequests"])["approval"]["params"]["url"])
            for each in (mine, theirs)
        )
        assert url.endswith(f"?t=token-of-{BEA.party}")
        assert "?" not in other


async def test_what_a_client_brings_for_its_server_is_not_lost_in_a_round_of_ours() -> None:
    async with asking(Script(modern=True, handshake=False)) as bed:
        bed.grants.own.add(BEA.party)
        theirs: dict[str, Any] = {
            "requestState": "the server's own",
            BROUGHT: {"name": {"action": "accept"}},
        }
        call = bed.call_modern(BEA, capabilities=FORM, **theirs)
        await bed.open_ask()
        assert not call.outbox.final
        await bed.answer(by=ANA)
        await call.result()
        (sent,) = _sent(bed.script)
        assert params_of(sent)["requestState"] == "the server's own"
