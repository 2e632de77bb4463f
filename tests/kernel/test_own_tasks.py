"""Calls that wait for a person as tasks of the gateway's own, in both eras."""

from typing import Any, cast

import pytest

from comity.kernel.approvals import AskOptions
from comity.kernel.own_tasks import MOST_OF_ONE, OwnTasks
from comity.kernel.sessions import Session
from comity.rules import tasks
from comity.rules.own_tasks import LASTS
from comity.wire import jsonrpc, mcp
from comity.wire.asks import State, Verdict
from tests.kernel.asking import AGENT, ANA, DONE, OTHER, TASKS, Bed, asking
from tests.kernel.carriers import SILENCE, Params, Script, params_of, settled, until

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
        got = await bed.ask(session, AGENT, tasks.GET, _of(id)).result()
        assert (got["taskId"], got["status"]) == (id, "working")
        fetched = bed.ask(session, AGENT, tasks.RESULT, _of(id))
        await settled()
        assert not fetched.outbox.final
        assert bed.runs == 0
        await bed.answer(by=ANA)
        result = await fetched.result()
        assert result["content"] == DONE["content"]
        assert cast("Any", result["_meta"])[tasks.RELATED] == {"taskId": id}
        got = await bed.ask(session, AGENT, tasks.GET, _of(id)).result()
        assert got["status"] == "completed"
        assert bed.runs == 1
        sent = [f for c in bed.script.carriers for f in c.asked(mcp.CALL_TOOL)]
        assert "task" not in params_of(sent[0])
        assert (await bed.told()).count("TOOL_EXECUTED") == 1


@BOTH
async def test_a_modern_client_finds_the_result_in_its_task(at_all: bool) -> None:
    async with asking(Script(handshake=False, modern=True), at_all=at_all) as bed:
        id = await _begun(bed, None)
        got = await bed.ask(None, AGENT, tasks.GET, _of(id)).result()
        assert (got["status"], "result" in got) == ("working", False)
        await bed.answer(by=ANA)
        await until(lambda: bed.runs == 1)
        await until(lambda: not len(bed.own_tasks.chores))
        got = await bed.ask(None, AGENT, tasks.GET, _of(id)).result()
        assert (got["status"], got["resultType"]) == ("completed", "complete")
        assert cast("Any", got["result"])["content"] == DONE["content"]
        assert {"ttl", "pollInterval"}.isdisjoint(got)
        sent = [f for c in bed.script.carriers for f in c.asked(mcp.CALL_TOOL)]
        assert b"tasks" not in jsonrpc.encode(sent[0])


async def test_a_task_that_is_declined_has_failed_and_runs_nothing() -> None:
    async with asking() as bed:
        session = await bed.front.client()
        id = await _begun(bed, session)
        fetched = bed.ask(session, AGENT, tasks.RESULT, _of(id))
        await bed.answer(Verdict.DECLINE)
        assert b"declined" in jsonrpc.encode(await fetched.answer())
        got = await bed.ask(session, AGENT, tasks.GET, _of(id)).result()
        assert got["status"] == "failed"
        assert bed.runs == 0


@BOTH
async def test_a_task_is_cancelled_and_the_ask_stays_for_the_same_call(at_all: bool) -> None:
    async with asking(at_all=at_all) as bed:
        session = await bed.front.client()
        id = await _begun(bed, session)
        fetched = bed.ask(session, AGENT, tasks.RESULT, _of(id))
        await fetched.asking
        told = await bed.ask(session, AGENT, tasks.CANCEL, _of(id)).result()
        assert told["status"] == "cancelled"
        assert "cancelled" in (await fetched.error()).message
        again = await bed.ask(session, AGENT, tasks.CANCEL, _of(id)).error()
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
            told = await bed.ask(None, AGENT, tasks.CANCEL, _of(id)).result()
            assert told == {"resultType": "complete"}
        got = await bed.ask(None, AGENT, tasks.GET, _of(id)).result()
        assert got["status"] == "cancelled"


@pytest.mark.parametrize("method", sorted(tasks.METHODS))
async def test_a_task_is_its_partys_alone(method: str) -> None:
    async with asking() as bed:
        session = await bed.front.client()
        id = await _begun(bed, session)
        for params in (_of(id), _of(id[:-1] + "0"), _of("~:x"), _of("~:x:y")):
            error = await bed.ask(session, OTHER, method, params).error()
            assert "no such task" in error.message
        assert (await bed.open_ask()).state is State.PENDING


async def test_nothing_that_is_said_to_a_task_answers_the_ask() -> None:
    async with asking() as bed:
        id = await _begun(bed, None)
        responses = {"approval": {"action": "accept", "content": {"decision": "approve"}}}
        said: Params = {"taskId": id, "inputResponses": responses}
        error = await bed.ask(None, AGENT, "tasks/update", said).error()
        assert "asks its client for nothing" in error.message
        assert not (await bed.open_ask()).answers
        assert bed.runs == 0


async def test_who_does_not_declare_tasks_asks_after_none() -> None:
    async with asking() as bed:
        id = await _begun(bed, None)
        plain: Params = {mcp.PROTOCOL_VERSION: mcp.LATEST_MODERN, mcp.CLIENT_CAPABILITIES: {}}
        error = await bed.ask(None, AGENT, tasks.GET, {**_of(id), "_meta": plain}).error()
        assert "declare" in error.message


async def test_what_a_server_says_amid_a_task_comes_with_its_result() -> None:
    async with asking(Script(replies={mcp.CALL_TOOL: SILENCE})) as bed:
        session = await bed.front.client(elicitation={"form": {}})
        id = await _begun(bed, session)
        await bed.answer(by=ANA)
        await until(lambda: bed.runs == 1)
        carrier = next(each for each in bed.script.carriers if each.asked(mcp.CALL_TOOL))
        (sent,) = carrier.asked(mcp.CALL_TOOL)
        carrier.says(jsonrpc.request(7, mcp.ELICIT, {"message": "Name?"}), sent)
        await settled()
        fetched = bed.ask(session, AGENT, tasks.RESULT, _of(id))
        await until(lambda: bool(fetched.outbox.frames))
        question = jsonrpc.decode(fetched.outbox.take()[0])
        assert question.method == mcp.ELICIT
        bed.front.desk.hear(session, jsonrpc.result(cast("Any", question.id), {"action": "cancel"}))
        await until(lambda: bool([f for f in carrier.told() if f.id == 7]))
        carrier.answers(sent, DONE)
        assert (await fetched.result())["content"] == DONE["content"]


async def test_a_tool_that_is_a_task_itself_is_held_like_any_other() -> None:
    tool = {
        "name": "delete",
        "inputSchema": {"type": "object"},
        "execution": {"taskSupport": "required"},
    }
    async with asking(Script(replies={mcp.LIST_TOOLS: {"tools": [tool]}})) as bed:
        call = bed.call(await bed.front.client(), task={})
        await bed.open_ask()
        await settled()
        assert not call.outbox.final
        assert len(bed.own_tasks) == 0


async def test_nobody_has_too_many_tasks() -> None:
    async with asking(options=AskOptions(most_of_one=1000)) as bed:
        session = await bed.front.client()
        calls = [
            bed.call(session, arguments={"path": str(n)}, task={}) for n in range(MOST_OF_ONE + 1)
        ]
        for call in calls:
            await call.asking
        await until(lambda: sum(call.outbox.final for call in calls) >= MOST_OF_ONE)
        await settled()
        assert len(bed.own_tasks) == MOST_OF_ONE
        # Whoever has as many as it may is held, as anybody is who knows of no tasks.
        assert sum(call.outbox.final for call in calls) == MOST_OF_ONE


async def test_a_task_is_forgotten_after_its_time() -> None:
    async with asking() as bed:
        session = await bed.front.client()
        id = await _begun(bed, session)
        await bed.answer(Verdict.DECLINE)
        await until(lambda: not len(bed.own_tasks.chores))
        bed.time.passes(2 * bed.options.expires + LASTS)
        await _begun(bed, session)
        assert len(bed.own_tasks) == 1
        error = await bed.ask(session, AGENT, tasks.GET, _of(id)).error()
        assert "no such task" in error.message


async def test_where_names_are_plain_a_task_is_its_partys_all_the_same() -> None:
    async with asking() as bed:
        bed.own_tasks = OwnTasks(tasks.PLAIN_NAMES, bed.time)
        bed.admission.own_tasks, bed.holding.forms = bed.own_tasks, [bed.own_tasks]
        session = await bed.front.client()
        id = await _begun(bed, session)
        assert "no such task" in (await bed.ask(session, OTHER, tasks.GET, _of(id)).error()).message
        assert (await bed.ask(session, AGENT, tasks.GET, _of(id)).result())["taskId"] == id
