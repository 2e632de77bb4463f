"""Attacks 7 and 8 of `docs/design/security.md` §1.5: somebody else's session, and lured pages."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest

from comity.app.settings import Settings
from comity.mcp.actors import LOCAL
from tests.support.admitted import Admitted, admitting
from tests.support.credentials import GivenOut, bearer
from tests.support.upstream import Exchange, scripted
from tests.support.visitor import (
    BOTH,
    MODERN,
    SECONDS,
    Frame,
    Reply,
    Visitor,
    at,
    request,
    visiting,
)

type Try = Callable[[Visitor], Awaitable[Reply]]


@pytest.fixture
async def scene() -> AsyncGenerator[Admitted]:
    async with admitting() as admitted:
        yield admitted


async def test_attack_07_a_stolen_session_id_is_that_of_no_session(scene: Admitted) -> None:
    mine, thief = scene.given_out.give("agent:mine"), scene.given_out.give("agent:thief")
    visitor = await scene.greeted(mine)
    stolen = scene.come(thief)
    stolen.session |= {"mcp-session-id": visitor.session["mcp-session-id"]}
    unknown = scene.come(thief)
    unknown.session |= {"mcp-session-id": "0" * 32}
    tries: list[Try] = [
        lambda who: who.post(request(1, "ping")),
        lambda who: who.post({"jsonrpc": "2.0", "method": "notifications/cancelled"}),
        lambda who: who.post({"jsonrpc": "2.0", "id": 1, "result": {}}),
        lambda who: who.get(),
        lambda who: who.get(last="1-1"),
        lambda who: who.send("DELETE", who.session.items()),
    ]
    for each_try in tries:
        replies = [await each_try(each) for each in (stolen, unknown)]
        assert [each.status for each in replies] == [404, 404]
        told = [json.loads(await each.body())["error"]["message"] for each in replies]
        assert told[0] == told[1]
    assert (await visitor.post(request(2, "ping"))).status == 200


async def test_attack_07_a_session_id_alone_lets_nobody_in(scene: Admitted) -> None:
    visitor = await scene.greeted(scene.given_out.give("agent:mine"))
    bare = scene.come()
    bare.session = {"mcp-session-id": visitor.session["mcp-session-id"]}
    assert (await bare.post(request(1, "ping"))).status == 401
    assert (await bare.get()).status == 401


async def test_attack_07_a_stolen_endpoint_of_the_old_transport_takes_no_message(
    scene: Admitted,
) -> None:
    mine, thief = scene.given_out.give("agent:mine"), scene.given_out.give("agent:thief")
    stream = await scene.come().send("GET", bearer(mine).items(), path="/sse")
    place = (await stream.event()).data.decode()
    assert (await scene.come(thief, place).post(request(1, "ping"))).status == 404
    assert (await scene.come(None, place).post(request(1, "ping"))).status == 401
    assert (await scene.come(mine, place).post(request(1, "ping"))).status == 202
    stream.leave()


FORM: Frame = {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}}
ASKABLE: Frame = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
}


async def _ask_modern(visitor: Visitor, more: Frame) -> Frame:
    params: Frame = {"name": "asks", "arguments": {}, "_meta": ASKABLE, **more}
    said = {"content-type": "application/json", "accept": BOTH, "mcp-protocol-version": MODERN}
    said |= {"mcp-method": "tools/call", "mcp-name": "asks", **visitor.session}
    body = json.dumps(request(1, "tools/call", params)).encode()
    reply = await visitor.send("POST", said.items(), body)
    (frame,) = await reply.frames()
    return frame


async def test_attack_07_a_stolen_state_takes_up_no_call() -> None:
    answered = asyncio.Event()
    async with admitting(modern=False) as scene:

        @scene.server.act("asks")
        async def asks(exchange: Exchange) -> None:
            await exchange.stream()
            await exchange.event({"id": "q", "method": "elicitation/create", "params": FORM})
            async with asyncio.timeout(SECONDS):
                await answered.wait()
            done = {"content": [{"type": "text", "text": "thank you"}]}
            await exchange.event({"id": exchange.id, "result": done})

        mine, thief = scene.given_out.give("agent:mine"), scene.given_out.give("agent:thief")
        visitor = scene.come(mine, "/servers/up/mcp")
        asked = (await _ask_modern(visitor, {}))["result"]
        assert asked["resultType"] == "input_required"
        (key,) = asked["inputRequests"]
        again: Frame = {
            "requestState": asked["requestState"],
            "inputResponses": {key: {"action": "accept", "content": {}}},
        }
        stolen = await _ask_modern(scene.come(thief, "/servers/up/mcp"), again)
        assert "names nothing that waits here" in stolen["error"]["message"]
        answered.set()
        taken_up = await _ask_modern(visitor, again)
        assert taken_up["result"]["content"][0]["text"] == "thank you"


async def test_attack_07_a_stolen_task_is_that_of_no_server() -> None:
    async with admitting(modern=False, tools=("plain",)) as scene:

        @scene.server.act("plain")
        async def begin(exchange: Exchange) -> None:
            await exchange.result({"task": {"taskId": "t-1", "status": "working"}})

        @scene.server.act("tasks/get")
        async def tell(exchange: Exchange) -> None:
            asked = exchange.frame["params"]["taskId"]
            await exchange.result({"taskId": asked, "status": "working"})

        mine, thief = scene.given_out.give("agent:mine"), scene.given_out.give("agent:thief")
        visitor, other = await scene.greeted(mine), await scene.greeted(thief)
        params: Frame = {"name": "up__plain", "arguments": {}, "task": {}}
        (begun,) = await (await visitor.post(request(1, "tools/call", params))).frames()
        task = begun["result"]["task"]["taskId"]
        for who, said in ((other, task), (other, "up:t-1"), (visitor, "up:t-1")):
            (refused,) = await (await who.post(request(2, "tasks/get", {"taskId": said}))).frames()
            assert "unknown task" in refused["error"]["message"]
        (told,) = await (await visitor.post(request(3, "tasks/get", {"taskId": task}))).frames()
        assert told["result"]["taskId"] == task
        assert len(scene.server.of("tasks/get")) == 1


async def test_attack_07_two_parties_share_no_session_of_a_server() -> None:
    async with admitting(modern=False) as scene:
        keys = [scene.given_out.give(f"agent:{name}") for name in ("one", "other")]
        for key in (*keys, *keys):
            visitor = scene.come(None, "/servers/up/mcp")
            assert (await visitor.call_modern("plain", **bearer(key))).status == 200
        used = [each.headers["mcp-session-id"] for each in scene.server.of("tools/call")]
        assert used[0] == used[2]
        assert used[1] == used[3]
        assert used[0] != used[1]


@pytest.fixture
async def local() -> AsyncGenerator[Visitor]:
    async with scripted() as server, visiting(at(server.url)) as visitor:
        yield visitor


async def test_the_local_user_needs_no_credentials_on_its_own_machine(local: Visitor) -> None:
    await local.greet()
    (session,) = local.parts.sessions
    assert session.party == LOCAL.party
    assert (await local.send("GET", path="/metrics")).status == 200


async def test_the_local_user_is_an_operator_with_the_token_alone(local: Visitor) -> None:
    assert (await local.send("GET", path="/api/status")).status == 200
    local.token = ""
    for method, path in (
        *(
            ("GET", path)
            for path in ("/api/status", "/api/tools", "/api/approvals", "/api/approvals/stream")
        ),
        ("POST", "/api/servers/up/stop"),
        ("GET", "/admin/participants/agent:ci/capabilities"),
    ):
        reply = await local.send(method, path=path)
        assert reply.status == 401, path
        assert b"operator token" in await reply.body()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("forwarded", "for=192.0.2.1"),
        ("x-forwarded-for", "192.0.2.1"),
        ("x-forwarded-host", "gateway.example.org"),
        ("x-real-ip", "192.0.2.1"),
        ("via", "1.1 proxy"),
    ],
)
async def test_whoever_comes_through_a_proxy_is_not_the_local_user(
    local: Visitor, name: str, value: str
) -> None:
    assert (await local.send("GET", [(name, value)], path="/api/status")).status == 401


async def test_under_another_name_nobody_is_the_local_user() -> None:
    async with visiting(allowed_hosts=("gateway.example.org",)) as visitor:
        named = [("host", "gateway.example.org")]
        assert (await visitor.send("GET", named, path="/api/status")).status == 401
        assert (await visitor.send("GET", named, path="/health")).status == 200


async def test_a_key_is_honoured_in_the_local_mode_and_a_wrong_one_refused() -> None:
    given_out = GivenOut()
    key = given_out.give("agent:ci")
    async with visiting(register=given_out.register) as visitor:
        stranger = GivenOut().give(LOCAL.party)
        wrong = bearer(stranger).items()
        assert (await visitor.send("GET", wrong, path="/api/status")).status == 401
        assert (await visitor.send("GET", bearer(key).items(), path="/api/status")).status == 403


def test_the_local_mode_is_what_a_laptop_gets() -> None:
    assert Settings().identity.mode == "local"
