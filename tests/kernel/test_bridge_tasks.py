"""Tools of the handshake era that run only as a task, called by clients that know no such tasks."""

import pytest

from comity.rules import tasks
from comity.wire import jsonrpc, mcp
from comity.wire.errors import METHOD_NOT_FOUND, Unavailable
from tests.kernel.bridged import ACCEPT, DONE, bridged, handshake_server
from tests.kernel.carriers import Params, params_of, result_of, until

each_transport = pytest.mark.parametrize("process", [True, False], ids=["stdio", "http"])
TASKED: Params = {"tools": [{"name": "t", "execution": {"taskSupport": "required"}}]}


@each_transport
async def test_a_tool_that_runs_only_as_a_task_is_run_as_one(process: bool) -> None:
    async with bridged(handshake_server(process, tools_list=TASKED)) as house:
        asked = await house.called()
        assert params_of(house.asked)["task"] == {}
        house.finishes({"task": {"taskId": "t-1", "status": "working"}})
        (waiting,) = house.carrier.asked(tasks.RESULT)
        assert params_of(waiting) == {"taskId": "t-1"}
        house.carrier.says(jsonrpc.request("q", mcp.ELICIT, {"message": "sure?"}), waiting)
        result = await asked.result()
        again = house.retry(result["requestState"], {"1": ACCEPT})
        await until(lambda: house.heard_by_server("q"))
        house.carrier.answers(waiting, {**DONE, "_meta": {tasks.RELATED: {"taskId": "t-1"}}})
        finished = await again.result()
        assert finished["content"] == DONE["content"]
        assert tasks.RELATED not in str(finished)


async def test_a_task_whose_client_withdraws_is_cancelled() -> None:
    async with bridged(handshake_server(tools_list=TASKED, tasks_cancel={})) as house:
        asked = await house.called()
        house.finishes({"task": {"taskId": "t-1", "status": "working"}})
        (await asked.asking).withdraw(None)
        (cancelled,) = house.carrier.asked(tasks.CANCEL)
        assert params_of(cancelled) == {"taskId": "t-1"}


async def test_a_server_that_would_not_begin_a_task_says_why() -> None:
    async with bridged(handshake_server(tools_list=TASKED)) as house:
        asked = await house.called()
        assert isinstance(house.asked.id, int)
        house.carrier.says(jsonrpc.failure(house.asked.id, METHOD_NOT_FOUND, "no"), house.asked)
        assert (await asked.error()).code == METHOD_NOT_FOUND.code


async def test_a_task_that_ends_with_the_link_fails_its_call() -> None:
    async with bridged(handshake_server(tools_list=TASKED)) as house:
        asked = await house.called()
        carrier = house.carrier
        carrier.answers(house.asked, {"task": {"taskId": "t-1", "status": "working"}})
        carrier.dies()
        assert (await asked.error()).message


async def test_a_modern_client_cannot_make_a_task_of_a_plain_tool() -> None:
    async with bridged(handshake_server(tools_call=DONE)) as house:
        params: Params = {"name": "t", "arguments": {}, "task": {"ttl": 1}}
        result = await house.modern(params=params).result()
        assert result_of(jsonrpc.result(1, result))["content"] == DONE["content"]
        assert "task" not in params_of(house.asked)


async def test_a_task_at_a_server_that_is_gone_needs_no_cancelling() -> None:
    async with bridged(handshake_server(tools_list=TASKED)) as house:
        asked = await house.called()
        house.finishes({"task": {"taskId": "t-1", "status": "working"}})
        house.carrier.breaks = Unavailable("the pipe is full")
        (await asked.asking).withdraw(None)
        assert house.carrier.asked(tasks.CANCEL) == []


async def test_a_task_that_begins_while_its_client_is_asked_is_waited_for() -> None:
    async with bridged(handshake_server(tools_list=TASKED)) as house:
        asked = await house.called()
        house.asks("q")
        state = (await asked.result())["requestState"]
        house.finishes({"task": {"taskId": "t-1", "status": "working"}})
        (waiting,) = house.carrier.asked(tasks.RESULT)
        house.carrier.answers(waiting, DONE)
        assert (await house.retry(state, {}).result())["content"] == DONE["content"]
