"""The registry's `auth` member: accepted only by decision, and stripped before anybody sees it."""

import json
from typing import Any

import pytest

from comity.errors import INVALID_REQUEST, MalformedMessage
from comity.identity.http_auth import AuthMember
from comity.mcp import jsonrpc
from comity.mcp.actors import LOCAL
from tests.support.admitted import INITIALIZE, admitting
from tests.support.cases import loop_over
from tests.support.credentials import bearer
from tests.support.piped import STDIO_ENTRY, piped
from tests.support.visitor import ENVELOPE, request

ON: dict[str, Any] = {"identity_accept_auth_member": True}


def with_auth(frame: dict[str, Any], token: object, **more: object) -> dict[str, Any]:
    return {**frame, "auth": {"type": "bearer", "token": token}, **more}


@pytest.mark.requirement("REG-auth-bearer")
async def test_a_message_may_carry_its_own_credentials_where_that_was_decided() -> None:
    async with admitting(**ON) as scene:
        key = scene.given_out.give("agent:ci")
        visitor = scene.come(path="/servers/up/mcp")
        began = await visitor.post(with_auth(INITIALIZE, key))
        assert began.status == 200
        visitor.session = {"mcp-session-id": began.headers["mcp-session-id"]}
        call = request(1, "tools/call", {"name": "plain", "arguments": {}})
        assert (await visitor.post(with_auth(call, key, trace_id="kept"))).status == 200
        assert (await visitor.post(call)).status == 401
    sent = scene.server.of("tools/call")
    assert [each.frame.get("trace_id") for each in sent] == ["kept"]
    assert not any(
        "auth" in each.frame or key[10:].encode() in each.body for each in scene.server.heard
    )


async def test_a_modern_message_may_carry_them_as_well() -> None:
    async with admitting(**ON) as scene:
        key = scene.given_out.give("agent:ci")
        visitor = scene.come()
        said = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/list",
        }
        frame = with_auth(request(1, "tools/list", {"_meta": ENVELOPE}), key)
        reply = await visitor.send("POST", said.items(), json.dumps(frame).encode())
        assert reply.status == 200


@loop_over("name", ["auth", "Auth", "AUTH"])
async def test_without_that_decision_a_message_with_credentials_is_refused(name: str) -> None:
    async with admitting() as scene:
        key = scene.given_out.give("agent:ci")
        visitor = await scene.greeted(key)
        canary = "canary-in-the-body"
        frame = {**request(1, "ping"), name: {"type": "bearer", "token": canary}}
        reply = await visitor.post(frame)
        assert reply.status == 400
        assert canary not in (await reply.body()).decode()


@loop_over(
    "auth",
    [
        7,
        None,
        "canary",
        {},
        {"type": "basic", "token": "canary"},
        {"type": "bearer"},
        {"type": "bearer", "token": 7},
        {"type": "bearer", "token": "canary"},
        {"type": "bearer", "token": "ключ-canary"},
        {"type": "bearer", "token": ""},
        [["bearer", "canary"]],
    ],
    ids=str,
)
async def test_what_is_no_credential_is_refused_and_not_repeated(auth: object) -> None:
    async with admitting(**ON) as scene:
        reply = await scene.come().post({**INITIALIZE, "auth": auth})
        assert reply.status == 401
        assert "canary" not in (await reply.body()).decode()


async def test_a_header_and_a_message_must_name_one_party() -> None:
    async with admitting(**ON) as scene:
        one, other = scene.given_out.give("agent:one"), scene.given_out.give("agent:other")
        visitor = scene.come(one)
        assert (await visitor.post(with_auth(INITIALIZE, other))).status == 401
        assert (await visitor.post(with_auth(INITIALIZE, one))).status == 200


async def test_whoever_has_shown_nothing_reads_no_body_of_another_door() -> None:
    async with admitting(**ON) as scene:
        key = scene.given_out.give(LOCAL.party)
        order = json.dumps(with_auth({}, key)).encode()
        headers = [("content-type", "application/json")]
        reply = await scene.come().send("POST", headers, order, "/api/servers/up/stop")
        assert reply.status == 401


async def test_at_the_old_doors_it_is_the_same() -> None:
    async with admitting(**ON) as scene:
        key = scene.given_out.give("agent:ci")
        stream = await scene.come(key).send("GET", bearer(key).items(), path="/sse")
        place = (await stream.event()).data.decode()
        visitor = scene.come(path=place)
        assert (await visitor.post(INITIALIZE)).status == 401
        assert (await visitor.post(with_auth(INITIALIZE, key))).status == 202
        assert (await stream.event()).frame["result"]["serverInfo"]["name"] == "comity"
        stream.leave()


async def test_on_the_pipes_credentials_in_a_message_are_refused_and_not_repeated(
    tmp_path: Any,
) -> None:
    async with piped(tmp_path, {"up": STDIO_ENTRY}) as pipe:
        await pipe.greet()
        pipe.say({"id": 5, "method": "ping", "auth": {"type": "bearer", "token": "canary"}})
        answer = await pipe.next_answer()
    assert answer["error"]["data"]["error_type"] == "invalid_request"
    assert "canary" not in json.dumps(answer)


async def test_a_door_that_knows_nobody_refuses_every_credential() -> None:
    frame = jsonrpc.decode_frame(json.dumps(with_auth(request(1, "ping"), "canary")).encode())
    with pytest.raises(MalformedMessage) as refused:
        await AuthMember().extract(frame, LOCAL)
    assert refused.value.fault is INVALID_REQUEST
