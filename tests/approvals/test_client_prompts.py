"""How a client is asked about its own call: `input_required`, tasks, and elicitation."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from comity.approvals.client_prompts import (
    MAX_TASKS_PER_PRINCIPAL,
    TaskPrompt,
)
from comity.approvals.model import (
    ApprovalAnswer,
    ApprovalDecision,
    ApprovalKind,
    ApprovalRequest,
    ApprovalState,
)
from comity.approvals.pending_calls import ApprovedCallSteps, PendingCalls
from comity.approvals.presentation import ApprovalLinks
from comity.approvals.service import ApprovalService
from comity.approvals.settings import ApprovalSettings
from comity.approvals.wiring import build_pending_calls
from comity.audit.events import AuditResult, AuditType
from comity.errors import ACCESS_DENIED
from comity.mcp import eras, jsonrpc, protocol
from comity.mcp.actors import Actor
from comity.mcp.eras import LASTS
from comity.mcp.jsonrpc import Frame
from comity.policy.grants import Effect
from comity.sessions.sessions import Session
from tests.support.asking import (
    AGENT,
    ANA,
    BEA,
    DONE,
    FORM,
    OTHER,
    PAGE,
    TASKS,
    Bed,
    Grants,
    asking,
)
from tests.support.carriers import SILENCE, Params, Script, params_of, settled, until
from tests.support.changing_policy import ChangingPolicy
from tests.support.desks import Asked
from tests.support.inline_store import inline_records
from tests.support.refused import kind_of

APPROVE: Params = {"action": "accept", "content": {"decision": "approve"}}
BROUGHT = "inputResponses"
PAGE_ONLY: Params = {"url": {}}


def _responses(response: object) -> Params:
    return {"approval": response}


def _sent(script: Script) -> list[Frame]:
    return [frame for carrier in script.carriers for frame in carrier.asked(protocol.CALL_TOOL)]


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
        assert question["method"] == protocol.ELICIT
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
        assert (used.state, used.answers[0].by) == (ApprovalState.CONSUMED, BEA.party)
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
        ({"action": "decline"}, ApprovalState.DENIED),
        ({"action": "cancel"}, ApprovalState.CANCELLED),
        ({"action": "accept", "content": {"decision": "decline"}}, ApprovalState.DENIED),
    ],
    ids=str,
)
async def test_a_no_is_a_no(response: Params, state: ApprovalState) -> None:
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
        {"action": "accept", "content": {"decision": "Approve"}},
        {"action": "yes"},
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
        well = [frame for frame in answers if b"deleted" in jsonrpc.encode_frame(frame)]
        assert len(well) == 1
        late = await (await _again(bed, asked["requestState"], APPROVE)).error()
        assert "nothing that waits" in late.message
        assert bed.runs == 1


async def test_request_state_is_bound_to_its_party_arguments_and_definition() -> None:
    async with asking() as bed:
        state = (await _round(bed))["requestState"]
        for thief in (AGENT, ANA, OTHER):
            call = await _again(bed, state, APPROVE, actor=thief)
            assert "another client" in (await call.error()).message
        call = await _again(bed, state, APPROVE, arguments={"path": "/"})
        assert "nothing that waits" in (await call.error()).message
        bed.tools.version = "second"
        call = await _again(bed, state, APPROVE)
        assert "nothing that waits" in (await call.error()).message
        assert not (await bed.open_ask()).answers
        assert bed.runs == 0


async def test_a_forged_state_answers_nothing() -> None:
    async with asking(Script(modern=True, handshake=False)) as bed:
        asked = await _round(bed)
        other = PendingCalls(bed.approvals, bed.last_steps, bed.grants, bed.front.catalog)
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


async def test_an_agent_is_never_asked_for_itself_whatever_it_was_granted() -> None:
    async with asking() as bed:
        bed.grants.own.add(AGENT.party)
        bed.grants.authorities.add(AGENT.party)
        call = bed.call_modern(AGENT, capabilities=FORM)
        ask = await bed.open_ask()
        assert not ask.own
        assert not call.outbox.is_final
        # Nor does a state of its own help it, however it came by one.
        bed.grants.own.add(BEA.party)
        asked = await bed.call_modern(BEA, capabilities=FORM).result()
        stolen = await _again(bed, asked["requestState"], APPROVE, actor=AGENT)
        assert "another client" in (await stolen.error()).message
        assert bed.runs == 0


async def test_a_grant_to_answer_that_was_revoked_meanwhile_answers_nothing() -> None:
    async with asking() as bed:
        asked = await _round(bed)
        bed.grants.own.clear()
        error = await (await _again(bed, asked["requestState"], APPROVE)).error()
        assert kind_of(error) == "access_denied"
        assert bed.runs == 0
        await bed.told()
        (blocked,) = [event for event in bed.events if event.type == AuditType.APPROVAL_ANSWERED]
        assert blocked.result == AuditResult.BLOCKED


async def test_after_a_restart_the_round_goes_on() -> None:
    async with asking() as bed:
        asked = await _round(bed)
        fresh = PendingCalls(bed.approvals, bed.last_steps, bed.grants, bed.front.catalog)
        fresh.key = bed.holding.key
        bed.admission.approvals = fresh
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
        assert (await bed.asks.get(ask.id) or ask).state is ApprovalState.WITHDRAWN
        assert bed.runs == 0


async def test_a_no_counts_also_where_the_call_was_granted_meanwhile() -> None:
    async with asking() as bed:
        asked = await _round(bed)
        bed.admission.standing_answers = cast("Any", _AllGranted())
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
        assert (params["mode"], params["url"]) == ("url", f"/approvals/{ask.id}")
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
        assert (await bed.open_ask()).state is ApprovalState.PENDING
        await bed.answer(ApprovalDecision.ACCEPT)
        await bed.call_modern(AGENT).result()
        assert bed.runs == 1


async def test_what_a_client_brings_for_its_server_is_not_lost_in_a_round_of_ours() -> None:
    async with asking(Script(modern=True, handshake=False)) as bed:
        bed.grants.own.add(BEA.party)
        theirs: dict[str, Any] = {
            "requestState": "the server's own",
            BROUGHT: {"name": {"action": "accept"}},
        }
        call = bed.call_modern(BEA, capabilities=FORM, **theirs)
        await bed.open_ask()
        assert not call.outbox.is_final
        await bed.answer(by=ANA)
        await call.result()
        (sent,) = _sent(bed.script)
        assert params_of(sent)["requestState"] == "the server's own"


# Tasks.


BOTH = pytest.mark.parametrize("at_all", [False, True], ids=["one server", "all servers"])


async def _begun(bed: Bed, session: Session | None) -> str:
    """A call that became a task; gives its id."""
    if session is not None:
        made = (await bed.call(session, task={"ttl": 1000}).result())["task"]
    else:
        made = await bed.call_modern(capabilities=TASKS).result()
        assert made["resultType"] == "task"
    task = cast("dict[str, Any]", made)
    assert task["status"] == "working"
    ask = await bed.open_ask()
    assert ask.id in task["statusMessage"]
    return task["taskId"]


def _of(id: str) -> Params:
    return {"taskId": id}


@BOTH
async def test_a_handshake_client_fetches_the_result_when_it_is_approved(at_all: bool) -> None:
    async with asking(at_all=at_all) as bed:
        session = await bed.front.client()
        id = await _begun(bed, session)
        got = await bed.ask(session, AGENT, eras.GET, _of(id)).result()
        assert (got["taskId"], got["status"]) == (id, "working")
        fetched = bed.ask(session, AGENT, eras.RESULT, _of(id))
        await settled()
        assert not fetched.outbox.is_final
        assert bed.runs == 0
        await bed.answer(by=ANA)
        result = await fetched.result()
        assert result["content"] == DONE["content"]
        assert cast("Any", result["_meta"])[eras.RELATED] == {"taskId": id}
        got = await bed.ask(session, AGENT, eras.GET, _of(id)).result()
        assert got["status"] == "completed"
        assert bed.runs == 1
        sent = [f for c in bed.script.carriers for f in c.asked(protocol.CALL_TOOL)]
        assert "task" not in params_of(sent[0])
        assert (await bed.told()).count("TOOL_EXECUTED") == 1


@BOTH
async def test_a_modern_client_finds_the_result_in_its_task(at_all: bool) -> None:
    async with asking(Script(handshake=False, modern=True), at_all=at_all) as bed:
        id = await _begun(bed, None)
        got = await bed.ask(None, AGENT, eras.GET, _of(id)).result()
        assert (got["status"], "result" in got) == ("working", False)
        await bed.answer(by=ANA)
        await until(lambda: bed.runs == 1)
        await until(lambda: not len(bed.own_tasks.background_tasks))
        got = await bed.ask(None, AGENT, eras.GET, _of(id)).result()
        assert (got["status"], got["resultType"]) == ("completed", "complete")
        assert cast("Any", got["result"])["content"] == DONE["content"]
        assert {"ttl", "pollInterval"}.isdisjoint(got)
        sent = [f for c in bed.script.carriers for f in c.asked(protocol.CALL_TOOL)]
        assert b"tasks" not in jsonrpc.encode_frame(sent[0])


async def test_a_task_that_is_declined_has_failed_and_runs_nothing() -> None:
    async with asking() as bed:
        session = await bed.front.client()
        id = await _begun(bed, session)
        fetched = bed.ask(session, AGENT, eras.RESULT, _of(id))
        await bed.answer(ApprovalDecision.DECLINE)
        assert b"declined" in jsonrpc.encode_frame(await fetched.answer())
        got = await bed.ask(session, AGENT, eras.GET, _of(id)).result()
        assert got["status"] == "failed"
        assert bed.runs == 0


@BOTH
async def test_a_task_whose_approval_another_call_used_stays_one_task(at_all: bool) -> None:
    async with asking(at_all=at_all) as bed:
        session = await bed.front.client()
        ids = [await _begun(bed, session), await _begun(bed, session)]
        first = await bed.answer()
        await until(lambda: bed.runs == 1)
        second = await bed.open_ask()
        assert second.id != first.id
        await settled()
        assert len(bed.own_tasks) == len(ids)
        await bed.answer()
        for id in ids:
            result = await bed.ask(session, AGENT, eras.RESULT, _of(id)).result()
            assert result["content"] == DONE["content"]
        assert bed.runs == len(ids)


@BOTH
async def test_a_task_is_cancelled_and_the_ask_stays_for_the_same_call(at_all: bool) -> None:
    async with asking(at_all=at_all) as bed:
        session = await bed.front.client()
        id = await _begun(bed, session)
        fetched = bed.ask(session, AGENT, eras.RESULT, _of(id))
        await fetched.asking
        told = await bed.ask(session, AGENT, eras.CANCEL, _of(id)).result()
        assert told["status"] == "cancelled"
        assert "cancelled" in (await fetched.error()).message
        again = await bed.ask(session, AGENT, eras.CANCEL, _of(id)).error()
        assert "already" in again.message
        await bed.answer(by=ANA)
        await settled()
        assert bed.runs == 0
        assert await bed.call(session).result() == DONE
        assert bed.runs == 1


async def test_a_modern_task_is_cancelled_as_often_as_one_likes() -> None:
    async with asking() as bed:
        id = await _begun(bed, None)
        for _ in range(2):
            told = await bed.ask(None, AGENT, eras.CANCEL, _of(id)).result()
            assert told == {"resultType": "complete"}
        got = await bed.ask(None, AGENT, eras.GET, _of(id)).result()
        assert got["status"] == "cancelled"


@pytest.mark.parametrize("method", sorted(eras.METHODS - {eras.UPDATE}))
async def test_a_task_is_its_partys_alone(method: str) -> None:
    async with asking() as bed:
        session = await bed.front.client()
        id = await _begun(bed, session)
        for params in (_of(id), _of(id[:-1] + "0"), _of("~:x"), _of("~:x:y")):
            error = await bed.ask(session, OTHER, method, params).error()
            assert "unknown task" in error.message
        assert (await bed.open_ask()).state is ApprovalState.PENDING


async def test_nothing_that_is_said_to_a_task_answers_the_ask() -> None:
    async with asking() as bed:
        id = await _begun(bed, None)
        responses = {"approval": {"action": "accept", "content": {"decision": "approve"}}}
        said: Params = {"taskId": id, "inputResponses": responses}
        error = await bed.ask(None, AGENT, "tasks/update", said).error()
        assert "needs no input" in error.message
        assert not (await bed.open_ask()).answers
        assert bed.runs == 0


async def test_who_does_not_declare_tasks_asks_after_none() -> None:
    async with asking() as bed:
        id = await _begun(bed, None)
        plain: Params = {
            protocol.PROTOCOL_VERSION: protocol.LATEST_MODERN,
            protocol.CLIENT_CAPABILITIES: {},
        }
        error = await bed.ask(None, AGENT, eras.GET, {**_of(id), "_meta": plain}).error()
        assert "declare" in error.message


async def test_what_a_server_says_amid_a_task_comes_with_its_result() -> None:
    async with asking(Script(replies={protocol.CALL_TOOL: SILENCE})) as bed:
        session = await bed.front.client(elicitation={"form": {}})
        id = await _begun(bed, session)
        await bed.answer(by=ANA)
        await until(lambda: bed.runs == 1)
        carrier = next(each for each in bed.script.carriers if each.asked(protocol.CALL_TOOL))
        (sent,) = carrier.asked(protocol.CALL_TOOL)
        carrier.says(jsonrpc.make_request(7, protocol.ELICIT, {"message": "Name?"}), sent)
        await settled()
        fetched = bed.ask(session, AGENT, eras.RESULT, _of(id))
        await until(lambda: bool(fetched.outbox.frames))
        question = jsonrpc.decode_frame(fetched.outbox.take()[0])
        assert question.method == protocol.ELICIT
        bed.front.desk.handle_message(
            session, jsonrpc.make_result(cast("Any", question.id), {"action": "cancel"})
        )
        await until(lambda: bool([f for f in carrier.told() if f.id == 7]))
        carrier.answers(sent, DONE)
        assert (await fetched.result())["content"] == DONE["content"]


async def test_a_tool_that_is_a_task_itself_is_held_like_any_other() -> None:
    tool = {
        "name": "delete",
        "inputSchema": {"type": "object"},
        "execution": {"taskSupport": "required"},
    }
    async with asking(Script(replies={protocol.LIST_TOOLS: {"tools": [tool]}})) as bed:
        call = bed.call(await bed.front.client(), task={})
        await bed.open_ask()
        await settled()
        assert not call.outbox.is_final
        assert len(bed.own_tasks) == 0


async def test_nobody_has_too_many_tasks() -> None:
    async with asking(options=ApprovalSettings(max_open_per_principal=1000)) as bed:
        session = await bed.front.client()
        calls = [
            bed.call(session, arguments={"path": str(n)}, task={})
            for n in range(MAX_TASKS_PER_PRINCIPAL + 1)
        ]
        for call in calls:
            await call.asking
        await until(lambda: sum(call.outbox.is_final for call in calls) >= MAX_TASKS_PER_PRINCIPAL)
        await settled()
        assert len(bed.own_tasks) == MAX_TASKS_PER_PRINCIPAL
        # Whoever has as many as it may is held, as anybody is who knows of no tasks.
        assert sum(call.outbox.is_final for call in calls) == MAX_TASKS_PER_PRINCIPAL


async def test_a_task_is_forgotten_after_its_time() -> None:
    async with asking() as bed:
        session = await bed.front.client()
        id = await _begun(bed, session)
        await bed.answer(ApprovalDecision.DECLINE)
        await until(lambda: not len(bed.own_tasks.background_tasks))
        bed.time.passes(2 * bed.options.request_ttl + LASTS)
        await _begun(bed, session)
        assert len(bed.own_tasks) == 1
        error = await bed.ask(session, AGENT, eras.GET, _of(id)).error()
        assert "unknown task" in error.message


@BOTH
@pytest.mark.parametrize("method", [eras.GET, eras.RESULT, eras.CANCEL])
async def test_a_task_needs_the_grant_on_its_tool_now(
    at_all: bool, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asking(at_all=at_all) as bed:
        policy = ChangingPolicy()
        monkeypatch.setattr(bed.front.call_gate, "_policy_engine", policy)
        session = await bed.front.client()
        id = await _begun(bed, session)
        policy.effects["delete"] = Effect.DENY
        error = await bed.ask(session, AGENT, method, _of(id)).error()
        assert error.code == ACCESS_DENIED.code
        policy.effects["delete"] = Effect.ALLOW
        got = await bed.ask(session, AGENT, eras.GET, _of(id)).result()
        assert got["status"] == "working"


async def test_without_a_key_a_task_is_its_partys_all_the_same() -> None:
    async with asking() as bed:
        bed.own_tasks = TaskPrompt(eras.UNKEYED_TASK_IDS, bed.time)
        bed.admission.own_tasks = bed.own_tasks
        bed.holding.client_prompts = [bed.own_tasks]
        session = await bed.front.client()
        id = await _begun(bed, session)
        assert "unknown task" in (await bed.ask(session, OTHER, eras.GET, _of(id)).error()).message
        assert (await bed.ask(session, AGENT, eras.GET, _of(id)).result())["taskId"] == id


# Elicitation by a legacy client.


async def _asked(call: Asked) -> tuple[Frame, dict[str, Any]]:
    await until(lambda: bool(call.outbox.frames))
    frame = jsonrpc.decode_frame(call.outbox.take()[0])
    assert frame.method == protocol.ELICIT
    return frame, params_of(frame)


async def _elicited(
    bed: Bed, actor: Actor = AGENT, modes: Params = PAGE_ONLY
) -> tuple[Session, Asked, Frame, dict[str, Any]]:
    """A call of a client with these modes, and what it is asked; a person may answer for itself."""
    if actor is not AGENT:
        bed.grants.own.add(actor.party)
    session = await bed.front.client(elicitation=modes)
    call = bed.call(session, actor)
    return session, call, *await _asked(call)


def _answer(bed: Bed, session: Session, question: Frame, result: object) -> None:
    bed.front.desk.handle_message(session, jsonrpc.make_result(question.id, result))  # type: ignore[arg-type]


async def test_a_client_that_can_show_a_page_is_given_one_and_told_when_it_is_done() -> None:
    async with asking() as bed:
        session, call, question, params = await _elicited(bed)
        ask = await bed.open_ask()
        assert (params["mode"], params["url"]) == ("url", f"/approvals/{ask.id}")
        _answer(bed, session, question, {"action": "accept"})
        await settled()
        assert bed.runs == 0
        assert not (await bed.open_ask()).answers
        await bed.answer(by=ANA)
        await call.asking
        await call.outbox.wait_until_final()
        told, answer = map(jsonrpc.decode_frame, call.outbox.take())
        assert told.method == protocol.ELICITED
        assert params_of(told) == {"elicitationId": params["elicitationId"]}
        assert b"deleted" in jsonrpc.encode_frame(answer)
        assert bed.runs == 1


async def test_a_question_that_nobody_answered_is_taken_back_with_the_answer() -> None:
    async with asking() as bed:
        session, call, question, _ = await _elicited(bed)
        await bed.answer(by=ANA)
        await call.outbox.wait_until_final()
        told = [jsonrpc.decode_frame(frame) for frame in call.outbox.take()]
        assert told[0].method == protocol.CANCELLED
        assert params_of(told[0])["requestId"] == question.id
        # A late word of the client's counts for nothing.
        _answer(bed, session, question, {"action": "decline"})
        await settled()
        assert bed.runs == 1


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_an_agent_that_declines_the_page_only_does_not_wait(action: str) -> None:
    async with asking() as bed:
        session, call, question, _ = await _elicited(bed)
        _answer(bed, session, question, {"action": action})
        assert kind_of(await call.error()) == "pending_approval"
        assert (await bed.open_ask()).state is ApprovalState.PENDING
        await bed.answer(ApprovalDecision.ACCEPT)
        assert await bed.call(await bed.front.client()).result() == DONE
        assert bed.runs == 1


async def test_who_may_answer_for_itself_says_no_by_declining_the_page() -> None:
    async with asking() as bed:
        bed.grants.own.add(BEA.party)
        session = await bed.front.client(elicitation={"url": {}})
        call = bed.call(session, BEA)
        question, _ = await _asked(call)
        _answer(bed, session, question, {"action": "decline"})
        assert kind_of(await call.error()) == "declined"
        assert bed.runs == 0


async def test_a_no_counts_where_another_node_took_a_yes_that_this_one_has_not_seen() -> None:
    async with asking() as bed:
        session, call, question, _ = await _elicited(bed, BEA, {})
        request = await bed.open_ask()
        # As another node does: this one is told later.
        accepted = ApprovalAnswer(ANA.party, ApprovalDecision.ACCEPT, bed.approvals.clock())
        assert await bed.asks.answer(request.id, accepted, request.expires_at, with_notice=False)
        _answer(bed, session, question, {"action": "decline"})
        await call.error()
        assert (await bed.asks.get(request.id) or request).state is ApprovalState.WITHDRAWN
        assert bed.runs == 0


async def test_who_may_answer_for_itself_is_asked_by_a_form() -> None:
    async with asking() as bed:
        session, call, question, params = await _elicited(bed, BEA, {})
        assert params["requestedSchema"]["required"] == ["decision"]
        _answer(bed, session, question, {"action": "accept", "content": {"decision": "approve"}})
        assert await call.result() == DONE
        assert bed.runs == 1


async def test_a_form_that_would_cut_the_arguments_is_not_shown() -> None:
    async with asking() as bed:
        bed.grants.own.add(BEA.party)
        session = await bed.front.client(elicitation={"form": {}, "url": {}})
        call = bed.call(session, BEA, arguments={"path": "x" * 20_000})
        _, params = await _asked(call)
        assert params["mode"] == "url"


@pytest.mark.requirement("MCP-5.6-capability")
@pytest.mark.parametrize("capabilities", [{}, {"roots": {}}, {"elicitation": {"voice": {}}}])
async def test_a_client_without_elicitation_is_asked_nothing_about_its_call(
    capabilities: Params,
) -> None:
    async with asking() as bed:
        bed.grants.own.add(BEA.party)
        session = await bed.front.client(**capabilities)
        call = bed.call(session, BEA)
        ask = await bed.open_ask()
        await settled()
        assert call.outbox.frames == []
        assert bed.runs == 0
        await bed.answer(by=ANA)
        assert await call.result() == DONE
        assert ask.asker == BEA.party


async def test_an_agent_is_asked_by_no_form() -> None:
    async with asking() as bed:
        bed.grants.own.add(AGENT.party)
        session = await bed.front.client(elicitation={})
        call = bed.call(session)
        await bed.open_ask()
        await settled()
        assert call.outbox.frames == []
        assert not call.outbox.is_final


async def test_what_is_no_answer_ends_the_call_and_nothing_runs() -> None:
    async with asking() as bed:
        session, call, question, _ = await _elicited(bed, BEA, {})
        _answer(bed, session, question, {"action": "accept", "content": {"name": "you"}})
        assert "decision" in (await call.error()).message
        assert not (await bed.open_ask()).answers
        assert bed.runs == 0


async def test_a_client_that_cannot_be_asked_after_all_is_held_like_any_other() -> None:
    async with asking() as bed:
        session, call, question, _ = await _elicited(bed)
        refused = {"jsonrpc": "2.0", "id": question.id, "error": {"code": -32601, "message": "no"}}
        bed.front.desk.handle_message(session, jsonrpc.decode_frame(jsonrpc.to_json(refused)))
        await settled()
        assert not call.outbox.is_final
        await bed.answer(by=ANA)
        assert await call.result() == DONE


async def test_an_older_client_is_shown_no_page() -> None:
    async with asking() as bed:
        session = await bed.front.client(elicitation={"url": {}})
        session.version = "2025-06-18"
        call = bed.call(session)
        await bed.open_ask()
        await settled()
        assert call.outbox.frames == []


# Links and keys.


PEPPER = b"p" * 32
NOW = datetime.now(UTC)
ASK = ApprovalRequest(
    *("06gtask", ApprovalKind.CONFIRM, BEA.party, "files", "delete", "digest", "message"),
    dict[str, object](),
    *(NOW, NOW + timedelta(minutes=15)),
    own=True,
)


def _holding(pepper: bytes = PEPPER) -> PendingCalls:
    grants = Grants()
    grants.own.add(BEA.party)
    approvals = ApprovalService(inline_records().approval_requests, grants)
    return build_pending_calls(
        approvals,
        ApprovedCallSteps(None, None),
        grants,
        cast("Any", None),
        pepper=pepper,
        forms=(),
        redact=lambda value: value,
    )


def test_two_nodes_with_one_pepper_share_a_key_and_no_others_do() -> None:
    one, other, stranger = _holding(), _holding(), _holding(b"q" * 32)
    assert one.key == other.key != stranger.key


def test_only_who_may_answer_gets_a_link_that_answers() -> None:
    holding, links = _holding(), ApprovalLinks(PEPPER)
    url = holding.page_url(ASK, BEA)
    token = url.partition("?t=")[2]
    link = links.unseal(token, ASK.id, NOW)
    assert link is not None
    assert link.party == BEA.party
    holding.policy_engine.own.clear()  # type: ignore[attr-defined]  # the grants of this test
    assert "?" not in holding.page_url(ASK, BEA)
    assert "?t=" in holding.page_url(ASK, ANA)
