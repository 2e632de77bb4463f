"""Tasks of servers: each belongs to the principal that began it, while it may call the tool."""

import functools
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import cast

from comity.errors import ACCESS_DENIED, INVALID_PARAMS
from comity.gateway.pipeline import CallGate
from comity.mcp import eras, jsonrpc, protocol
from comity.mcp.actors import Actor
from comity.mcp.jsonrpc import Frame
from comity.policy.grants import Effect
from comity.sessions.sessions import Session
from tests.support.carriers import SILENCE, Params, Script, params_of, result_of, until
from tests.support.cases import loop_over
from tests.support.changing_policy import ChangingPolicy
from tests.support.desks import MODERN, Asked, Front, all_servers, one_server

ANA, BEN = Actor("person:ana"), Actor("person:ben")
WITH_TASKS: Params = {
    **MODERN,
    protocol.CLIENT_CAPABILITIES: {"extensions": {eras.EXTENSION.decode(): {}}},
}
each_endpoint = loop_over("whole", [False, True], ids=["one server", "all servers"])
each_kind = loop_over("process", [False, True], ids=["http", "stdio"])
each_version = loop_over("modern", [False, True], ids=["legacy", "modern"])


class TaskClient:
    """A client of one principal, in one version, with the tasks that it began."""

    def __init__(self, front: Front, actor: Actor, session: Session | None) -> None:
        self.front = front
        self.actor = actor
        self.session = session

    def ask(self, method: str, params: Params) -> Asked:
        if self.session is not None:
            return self.front.ask(self.session, method, params, self.actor)
        modern: Params = {**params, "_meta": WITH_TASKS}
        return self.front.handle_modern_request(method, modern, actor=self.actor)

    async def begin(self) -> str:
        """Begin a task, and return the id that the client gets."""
        params: Params = {"name": "read", "arguments": {}}
        if self.session is None:
            return str((await self.ask("tools/call", params).result())["taskId"])
        begun = (await self.ask("tools/call", {**params, "task": {}}).result())["task"]
        return str(cast("Params", begun)["taskId"])

    @property
    def methods(self) -> list[str]:
        last = eras.RESULT if self.session is not None else eras.UPDATE
        return [eras.GET, eras.CANCEL, last]


@asynccontextmanager
async def serving(
    whole: bool, process: bool, modern: bool, policy: ChangingPolicy | None = None
) -> AsyncGenerator[tuple[Front, Script]]:
    script = Script(starts_process=process, modern=modern, handshake=not modern)
    script.replies[protocol.LIST_TOOLS] = {
        "tools": [{"name": "read", "inputSchema": {"type": "object"}}]
    }
    numbers = iter(range(1, 100))
    script.replies[protocol.CALL_TOOL] = lambda _: _began(f"t-{next(numbers)}", modern)
    for method in (*eras.METHODS, eras.LIST):
        script.replies[method] = lambda params: {"taskId": params["taskId"], "status": "working"}
    gate = functools.partial(CallGate, policy_engine=policy)
    front: AbstractAsyncContextManager[Front] = (
        all_servers({"srv": script}, make_gate=gate)
        if whole
        else one_server(script, make_gate=gate)
    )
    async with front as opened:
        yield opened, script


def _began(task: str, modern: bool) -> Params:
    named: Params = {"taskId": task, "status": "working"}
    return {"resultType": "task", **named} if modern else {"task": named}


async def client(front: Front, actor: Actor, modern: bool) -> TaskClient:
    return TaskClient(front, actor, None if modern else await front.client(actor))


def asked_at_server(script: Script, method: str) -> list[Frame]:
    return [frame for carrier in script.carriers for frame in carrier.asked(method)]


@each_endpoint
@each_kind
@each_version
async def test_a_task_is_of_the_principal_that_began_it(
    whole: bool, process: bool, modern: bool
) -> None:
    async with serving(whole, process, modern) as (front, script):
        ana, again = await client(front, ANA, modern), await client(front, ANA, modern)
        ben = await client(front, BEN, modern)
        task = await ana.begin()
        for method in ana.methods:
            for stolen in (task, "t-1", "srv:t-1", "srv::t-1", "srv::read:t-1"):
                error = await ben.ask(method, {"taskId": stolen}).error()
                assert (error.code, "unknown task" in error.message) == (INVALID_PARAMS.code, True)
            assert asked_at_server(script, method) == []
            for own in (ana, again):
                assert (await own.ask(method, {"taskId": task}).result())["taskId"] == task
            seen = [params_of(frame)["taskId"] for frame in asked_at_server(script, method)]
            assert seen == ["t-1", "t-1"]


@each_endpoint
@each_kind
@each_version
async def test_a_task_needs_the_grant_on_its_tool_now(
    whole: bool, process: bool, modern: bool
) -> None:
    policy = ChangingPolicy()
    async with serving(whole, process, modern, policy) as (front, script):
        ana = await client(front, ANA, modern)
        task = await ana.begin()
        policy.effects["read"] = Effect.DENY
        for method in ana.methods:
            error = await ana.ask(method, {"taskId": task}).error()
            assert error.code == ACCESS_DENIED.code
            assert asked_at_server(script, method) == []
        policy.effects["read"], policy.effects[""] = Effect.ALLOW, Effect.DENY
        assert (await ana.ask(eras.GET, {"taskId": task}).result())["status"] == "working"


@each_endpoint
@each_kind
async def test_the_status_of_a_task_reaches_its_own_client_alone(
    whole: bool, process: bool
) -> None:
    async with serving(whole, process, modern=False) as (front, script):
        ana, ben = await client(front, ANA, False), await client(front, BEN, False)
        task = await ana.begin()
        assert ana.session is not None
        assert ben.session is not None
        script.replies[protocol.CALL_TOOL] = SILENCE
        asked = ben.ask("tools/call", {"name": "read", "arguments": {}, "task": {}})
        await until(lambda: len(asked_at_server(script, protocol.CALL_TOOL)) == 2)
        connection = ben.session.own_connections.get("srv") or ben.session.shared_connections["srv"]
        carrier = next(each for each in script.carriers if each is connection.transport)
        for named in ("t-1", "t-9", "t-2"):
            carrier.says(jsonrpc.make_notification(eras.STATUS, {"taskId": named, "x": named}))
        carrier.answers(carrier.asked(protocol.CALL_TOOL)[-1], _began("t-2", modern=False))
        await asked.asking
        await asked.outbox.wait_until_final()
        status, answer = map(jsonrpc.decode_frame, asked.outbox.take())
        begun = cast("Params", result_of(answer)["task"])
        assert params_of(status) == {"taskId": begun["taskId"], "x": "t-2"}
        assert ben.session.standalone.take() == []
        told = [params_of(jsonrpc.decode_frame(each)) for each in ana.session.standalone.take()]
        assert told == ([{"taskId": task, "x": "t-1"}] if process else [])
        carrier.says(jsonrpc.make_notification(eras.STATUS, {"taskId": "t-2", "x": "later"}))
        (later,) = map(jsonrpc.decode_frame, ben.session.standalone.take())
        assert params_of(later) == {"taskId": begun["taskId"], "x": "later"}
