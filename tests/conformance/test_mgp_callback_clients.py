"""Who is called back: every type, every door, and the client amid whose call it is. (MGP §13.4)"""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from comity.approvals.model import ANSWER_VERB
from comity.mcp.actors import PrincipalKind
from comity.mcp.framing import SseParser
from comity.policy.grants import Effect, Grant
from tests.conformance.audited import ANA, CI, GRANTS, Scene, audited, described, result
from tests.conformance.evented import BOTH
from tests.conformance.governed import Guest
from tests.conformance.questioned import (
    MGP,
    PLAIN,
    answer,
    callback,
    calling,
    questioned,
    told,
    until_asked,
    until_state,
)
from tests.conformance.ways import COMITY, Frame, House, Talk
from tests.interop.hand_client import SECONDS, Exchange
from tests.interop.processes import operator_headers
from tests.support.upstream import Exchange as Upstreams
from tests.support.visitor import ENVELOPE, request

REQUEST = "notifications/mgp.callback.request"
RESPOND = "mgp/callback/respond"
QUESTIONS: dict[str, tuple[Frame, list[str], Frame, str, object]] = {
    # what more is asked, among what, what a person fills in, by the terminal, and the response
    "confirmation": ({}, ["confirm", "cancel"], {}, "--yes", "confirm"),
    "selection": (
        {"options": ["left", "right"]},
        *(["left", "right"], {"choice": "right"}, "--choose=right", "right"),
    ),
    "input": ({}, [], {"text": "some words"}, "--fill=text=some words", "some words"),
}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with questioned(tmp_path_factory.mktemp("called")) as house:
        yield house


async def called_back(
    talk: Talk, asked: Frame, response: object, **more: object
) -> tuple[Exchange, Frame, Frame]:
    """A call amid which the client is asked and answers; its end, the question and the answer."""
    heard: list[Frame] = []
    answers: list[Frame] = []

    async def respond(said: Frame) -> None:
        heard.append(said)
        params = {"callback_id": said["params"]["callback_id"], "response": response}
        answers.append((await talk.client.request(RESPOND, params)).response)

    exchange = await talk.call("back", {"callbacks": [asked]}, meanwhile=respond, **more)
    (question,), (answered,) = heard, answers
    return exchange, question, answered


@pytest.mark.requirement("MGP-13.4-callback", "MGP-13.4-callback-fields", "MGP-13.4-respond")
@pytest.mark.requirement("MGP-13.4-confirmation", "MGP-13.4-input", "MGP-13.4-selection")
@pytest.mark.requirement("MGP-2.2-ext-bidirectional", "MGP-13.4-callback-timeout")
@pytest.mark.parametrize("server", ["near", "far"])
@pytest.mark.parametrize("kind", QUESTIONS)
async def test_a_client_is_called_back_amid_its_own_call_and_answers(
    house: House, server: str, kind: str
) -> None:
    more, options, _, _, response = QUESTIONS[kind]
    asked = callback(kind, "theirs", timeout_ms=60_000, **more)
    async with house.operated(server).talk(MGP) as talk:
        exchange, question, answered = await called_back(talk, asked, response, named="mine-7")
        params = question["params"]
        shown = {"options": options} if options else {}
        assert params == {
            "callback_id": params["callback_id"],
            "request_id": "mine-7",
            "type": kind,
            "message": "Delete 15 files?",
            "timeout_ms": 60_000,
            **shown,
        }
        assert params["callback_id"] != "theirs"
        assert answered["result"] == {"callback_id": params["callback_id"], "accepted": True}
        assert told(exchange) == [("theirs", response)]
        # It was the one question of the inbox, and is answered for every door.
        ask = await until_state(house, params["callback_id"], "consumed")
        assert (ask["kind"], ask["about"]["asked_by"]) == (ask["kind"], f"server:{server}")
        again = {"callback_id": params["callback_id"], "response": response}
        refused = (await talk.client.request(RESPOND, again)).response
        assert refused["error"]["code"] == -32602
        assert "already consumed" in refused["error"]["message"]


@pytest.mark.requirement("MGP-13.4-confirmation", "MGP-13.4-input", "MGP-13.4-selection")
@pytest.mark.parametrize(
    ("kind", "response", "heard"),
    [
        ("confirmation", "cancel", "cancel"),
        ("confirmation", None, "cancel"),
        ("selection", None, None),
        ("input", None, None),
    ],
)
async def test_a_client_can_say_no(
    house: House, kind: str, response: object, heard: object
) -> None:
    asked = callback(kind, **QUESTIONS[kind][0])
    async with house.operated("near").talk(MGP) as talk:
        exchange, _, _ = await called_back(talk, asked, response)
        assert told(exchange) == [("cb-1", heard)]


@pytest.mark.requirement("MGP-13.4-notification")
async def test_a_notice_is_told_to_the_client_and_wants_no_answer(house: House) -> None:
    async with house.operated("near").talk(MGP) as talk:
        asked = {"callbacks": [callback("notification", message="Half is done.")], "answers": 0}
        exchange = await talk.call("back", asked, named=41)
        (said,) = exchange.said(REQUEST)
        assert said["params"].items() >= {"type": "notification", "request_id": 41}.items()
        assert said["params"]["message"] == "Half is done."
        given = {"callback_id": said["params"]["callback_id"], "response": "yes"}
        refused = (await talk.client.request(RESPOND, given)).response
        assert refused["error"]["code"] == -32602


@pytest.mark.requirement("MGP-13.4-callback", "MGP-13.4-respond")
async def test_a_client_of_the_modern_era_is_called_back_on_the_stream_of_its_call(
    house: House,
) -> None:
    meta = {**ENVELOPE, "io.modelcontextprotocol/clientCapabilities": MGP}
    asked = {"callbacks": [callback("confirmation")]}
    params = {"name": "near__back", "arguments": asked, "_meta": meta}
    async with (
        asyncio.timeout(SECONDS),
        aiohttp.ClientSession(headers=operator_headers(house.origin)) as http,
        modern(http, house, "tools/call", params) as stream,
    ):
        question = await anext(stream)
        assert question["method"] == REQUEST
        assert question["params"]["request_id"] == "modern-1"
        named = {"callback_id": question["params"]["callback_id"], "response": "confirm"}
        async with modern(http, house, RESPOND, {**named, "_meta": meta}) as answered:
            assert (await anext(answered))["result"]["accepted"] is True
        answers = (await anext(stream))["result"]["structuredContent"]["answers"]
        assert [each["response"] for each in answers] == ["confirm"]


@asynccontextmanager
async def modern(
    http: aiohttp.ClientSession, house: House, method: str, params: Frame
) -> AsyncGenerator[AsyncGenerator[Frame]]:
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": method,
    }
    headers |= {"mcp-name": params["name"]} if "name" in params else {}
    frame = {"jsonrpc": "2.0", "id": "modern-1", "method": method, "params": params}
    async with http.post(house.merged, json=frame, headers=headers) as reply:
        yield frames_in(reply)


async def frames_in(reply: aiohttp.ClientResponse) -> AsyncGenerator[Frame]:
    if reply.content_type == "application/json":
        yield await reply.json()
        return
    parser = SseParser()
    async for piece in reply.content.iter_any():
        for event in parser.feed(piece):
            if event.data:
                yield json.loads(event.data)


@pytest.mark.requirement("MGP-13.4-respond")
@pytest.mark.parametrize("door", ["api", "terminal"])
@pytest.mark.parametrize("kind", QUESTIONS)
async def test_the_first_who_answers_counts_whatever_the_door(
    house: House, kind: str, door: str
) -> None:
    """The client is asked too, and is told that it comes too late."""
    more, _, content, words, response = QUESTIONS[kind]
    async with house.operated("near").talk(MGP) as talk:
        calls = calling(talk, callbacks=[callback(kind, **more)])
        (ask,) = await until_asked(house, KINDS[kind])
        if door == "api":
            assert (await answer(house, ask["id"], "accept", content=content))[0] == 200
        else:
            given = ("approve", ask["id"], "--url", house.origin, words)
            process = await asyncio.create_subprocess_exec(COMITY, *given)
            async with asyncio.timeout(SECONDS):
                assert await process.wait() == 0
        exchange = await calls
        assert told(exchange) == [("cb-1", response)]
        (said,) = exchange.said(REQUEST)
        assert said["params"]["callback_id"] == ask["id"]
        late = await talk.client.request(RESPOND, {"callback_id": ask["id"], "response": "x"})
        assert late.response["error"]["code"] == -32602


KINDS = {"confirmation": "confirm", "selection": "select", "input": "input"}


async def test_a_client_without_the_operator_token_is_not_asked_in_vain(house: House) -> None:
    async with house.among_all("near").talk(MGP) as talk:
        calls = calling(talk, callbacks=[callback("confirmation")])
        (ask,) = await until_asked(house, "confirm")
        said = {"callback_id": ask["id"], "response": "confirm"}
        refused = (await talk.client.request(RESPOND, said)).response
        assert "operator token" in refused["error"]["message"]
        await answer(house, ask["id"], "accept")
        assert not (await calls).said(REQUEST)


@pytest.mark.requirement("MGP-1.2-negotiated")
async def test_who_did_not_negotiate_it_is_neither_asked_nor_heard(house: House) -> None:
    only_security: Frame = {"mgp": {"version": "0.3.0", "extensions": ["security"]}}
    for spoken in (PLAIN, only_security):
        async with house.among_all("near").talk(spoken) as talk:
            calls = calling(talk, callbacks=[callback("confirmation")])
            (ask,) = await until_asked(house, "confirm")
            said = {"callback_id": ask["id"], "response": "confirm"}
            refused = (await talk.client.request(RESPOND, said)).response
            assert refused["error"]["code"] == -32601
            await answer(house, ask["id"], "accept")
            assert not (await calls).said(REQUEST)


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"callback_id": "none-such", "response": "confirm"},
        {"callback_id": 7, "response": "confirm"},
        {"callback_id": "x", "response": {"a": 1}},
        {"callback_id": "x"},
    ],
)
async def test_an_answer_to_nothing_is_refused(house: House, said: Frame) -> None:
    async with house.among_all("near").talk(MGP) as talk:
        assert (await talk.client.request(RESPOND, said)).response["error"]["code"] == -32602


# Who may answer.

FOR_ANA = (
    *GRANTS,
    Grant(CI, "tools/call", "files/*", Effect.ALLOW),
    Grant(ANA, ANSWER_VERB, "files/*", Effect.ALLOW),
)


@asynccontextmanager
async def asking_files(scene: Scene) -> AsyncGenerator["asyncio.Future[Frame]"]:
    """The scripted server asks amid its next call; gives what it is answered."""
    answered: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()

    async def back(exchange: Upstreams) -> None:
        await exchange.stream()
        named = {"request_id": exchange.id, "callback_id": "cb-1"}
        asked = {"type": "confirmation", "message": "Sure?", **named}
        await exchange.event({"method": REQUEST, "params": asked})
        said = await answered
        content = [{"type": "text", "text": str(said["response"])}]
        await exchange.event({"id": exchange.id, "result": {"content": content}})

    async def respond(exchange: Upstreams) -> None:
        answered.set_result(exchange.frame["params"])
        await exchange.result({})

    scene.files.acts["read"] = back
    scene.files.acts[RESPOND] = respond
    yield answered


@pytest.mark.requirement("MGP-13.4-respond")
async def test_an_agent_never_answers_what_is_asked_amid_its_own_call() -> None:
    """It is not asked; and where it learns the id, it is refused. A person may, at any door."""
    async with audited(grants=FOR_ANA) as scene, asking_files(scene):
        hello: Frame = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}, **BOTH},
            "serverInfo": {"name": "files", "version": "1"},
        }
        scene.files.acts["initialize"] = result(hello)
        safe: Frame = {
            "name": "read",
            "security": {"risk_level": "safe", "permissions_required": []},
        }
        scene.files.acts["tools/list"] = result({"tools": [described(safe)]})
        ana = await scene.guest().greet(**BOTH)
        assert (await ana.http("POST", "/api/servers/files/restart", {}))[0] == 200
        await scene.until_connected("files")
        agent = await scene.guest(CI, PrincipalKind.AGENT).greet(**BOTH)
        calling = asyncio.ensure_future(all_of_a_call(agent))
        (ask,) = await pending(ana)
        said = {"callback_id": ask["id"], "response": "confirm"}
        other = await scene.guest(CI, PrincipalKind.AGENT).greet(**BOTH)
        refused = await other.ask(RESPOND, said)
        assert refused["error"]["data"]["error_type"] == "access_denied"
        assert (await ana.ask(RESPOND, said))["result"]["accepted"] is True
        *before, last = await calling
        assert last["result"]["content"][0]["text"] == "confirm"
        assert REQUEST not in [each["method"] for each in before]


async def all_of_a_call(guest: Guest) -> list[Frame]:
    """Every message on the stream of a call."""
    guest.visitor.session = guest.session
    asked: Frame = {"name": "files__read", "arguments": {}}
    return await (await guest.visitor.post(request(77, "tools/call", asked))).frames()


async def pending(ana: Any) -> list[Frame]:
    async with asyncio.timeout(SECONDS):
        while True:
            status, said = await ana.http("GET", "/api/approvals?state=pending")
            assert status == 200, said
            if said["approvals"]:
                return said["approvals"]
            await asyncio.sleep(0.02)
