"""Tasks (2025-11-25, experimental): begun, watched, cancelled, and there after a reconnection."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.conformance.conftest import EACH_WAY, standing
from tests.conformance.servers.taskmaster import RELATED
from tests.conformance.ways import Entry, Frame, House, Talk, Way, on_pipes, on_port
from tests.interop.hand_client import Exchange
from tests.interop.processes import http_server


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with http_server(on_port("taskmaster")) as far:
        servers: dict[str, Entry] = {
            "near": on_pipes("taskmaster"),
            "far": {"type": "http", "url": f"{far}/mcp"},
        }
        with standing(tmp_path_factory.mktemp("workshop"), servers) as house:
            yield house


@pytest.fixture(name="way", params=EACH_WAY)
def _way(workshop: House, request: pytest.FixtureRequest) -> Way:
    return workshop.way(request.param)


async def begun(talk: Talk) -> Frame:
    """A task, as the client that began it was told."""
    return (await talk.call("work", task={"ttl": 60_000})).result["task"]


async def asked(talk: Talk, method: str, task: Frame) -> Exchange:
    return await talk.client.request(method, {"taskId": task["taskId"]})


@pytest.mark.requirement("MCP-8-task")
async def test_a_call_can_return_a_task_that_is_watched_to_its_result(way: Way) -> None:
    async with way.talk() as talk:
        assert talk.hello["capabilities"]["tasks"]["requests"] == {"tools": {"call": {}}}
        called = await talk.call("work", task={"ttl": 60_000})
        task = called.result["task"]
        watched = await asked(talk, "tasks/get", task)
        result = await asked(talk, "tasks/result", task)
        completed = await asked(talk, "tasks/get", task)
        unknown = await asked(talk, "tasks/get", {"taskId": way.prefix + "no such task"})
    assert (task["status"], task["ttl"]) == ("working", 60_000)
    assert called.result["_meta"] == {"kept": True}
    assert watched.result == task
    assert result.result["content"] == [{"type": "text", "text": "done"}]
    # Wherever the task is named, it is by the name that this client knows.
    assert [note["params"] for note in called.said("notifications/tasks/status")] == [task]
    assert result.result["_meta"][RELATED] == {"taskId": task["taskId"]}
    assert completed.result == {**task, "status": "completed"}
    assert unknown.response["error"]["code"] == -32602


@pytest.mark.requirement("MCP-8-task")
async def test_a_task_is_cancelled_where_it_runs(way: Way) -> None:
    async with way.talk() as talk:
        task, other = await begun(talk), await begun(talk)
        cancelled = await asked(talk, "tasks/cancel", task)
        left = await asked(talk, "tasks/get", other)
    assert cancelled.result == {**task, "status": "cancelled"}
    assert left.result["status"] == "working"


@pytest.mark.requirement("MCP-8-parallel", "MCP-8-progress")
async def test_several_tasks_go_on_at_once_and_each_is_asked_after_on_its_own(way: Way) -> None:
    async with way.talk() as talk:
        said = {name: [f"{name} begun", f"{name} half done"] for name in ("a", "b", "c")}
        begun_at_once = await asyncio.gather(
            *(talk.call("work", {"says": said[name]}, task={"ttl": 60_000}) for name in said)
        )
        tasks = [each.result["task"] for each in begun_at_once]
        assert len({each["taskId"] for each in tasks}) == 3
        for number in range(2):
            seen = [(await asked(talk, "tasks/get", each)).result for each in tasks]
            assert {each["status"] for each in seen} == {"working"}
            assert [each["statusMessage"] for each in seen] == [said[name][number] for name in said]
        # The last is fetched first, and the others are as they were.
        results = [(await asked(talk, "tasks/result", each)).result for each in reversed(tasks)]
    texts = [each["content"][0]["text"] for each in results]
    assert texts == ["c half done", "b half done", "a half done"]


@pytest.mark.requirement("MCP-8-survive")
async def test_a_task_is_there_for_a_client_that_comes_back(way: Way) -> None:
    async with way.talk() as talk:
        task = await begun(talk)
    async with way.talk() as talk:
        assert (await asked(talk, "tasks/get", task)).result == task
        assert (await asked(talk, "tasks/result", task)).result["content"]
