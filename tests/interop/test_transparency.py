"""Nothing that a server or a client of the handshake era says is lost through Comity.

One conversation is held over each kind of upstream with a server that says everything
(`servers/extended.py`); then every field, request and notification is looked for by itself.
"""

import asyncio
import json
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from tests.interop.conftest import reached
from tests.interop.hand_client import (
    SECONDS,
    Dial,
    Exchange,
    Frame,
    HandClient,
    Meanwhile,
    initialize,
    refuse,
)
from tests.interop.servers import extended

# One conversation is held for all tests, and each of its steps may take its time.
pytestmark = pytest.mark.timeout(300)

ANSWER: Frame = {"choice": "a", "_mgp": {"by": "person:you"}, "odd": extended.ODD_VALUES}
REFUSAL: Frame = {
    "code": 1500,
    "message": "no",
    "data": {"_mgp": {"x": 1}, "odd": extended.ODD_VALUES},
}
HELLO: Frame = {"hello": "server", "_meta": {"vendor/hello": True}, "odd": extended.ODD_VALUES}
GO: Frame = {"go": True, "odd": extended.ODD_VALUES}
CALL_EXTRAS: Frame = {
    "_meta": {"vendor.example/call": extended.ODD_VALUES},
    "_mgp": {"permission_token": "p-1"},
    "trace_id": "4bf92f3577b34da6",
    "state": {"checkpoint": "ckpt-6"},
    "vendorParam": extended.ODD_VALUES,
}
CLIENT_CAPABILITIES: Frame = {
    "mgp": {"version": "0.6.0", "extensions": ["permissions"], "vendor": extended.ODD_VALUES},
    "experimental": {"mcpl": {"version": "0.4", "inference": {"models": ["m"]}}},
    "extensions": {"vendor/extension": {"level": 2}},
    "sampling": {"tools": {}, "context": {}},
    "roots": {"listChanged": True},
    "elicitation": {"form": {}, "url": {}},
    "vendorClient": extended.ODD_VALUES,
}


@dataclass
class Heard:
    """All that one conversation brought, by what was asked."""

    initialized: Frame = field(default_factory=dict[str, Any])
    plainly_initialized: Frame = field(default_factory=dict[str, Any])
    exchanges: dict[str, Exchange] = field(default_factory=dict[str, Exchange])
    pushed: list[Frame] = field(default_factory=list[Frame])
    answers_to_pushes: list[Frame] = field(default_factory=list[Frame])
    seen_by_server: list[Frame] = field(default_factory=list[Frame])


@pytest.fixture(scope="module")
def heard(transport: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Heard]:
    with reached("extended", transport, tmp_path_factory.mktemp("extended")) as dial:
        yield asyncio.run(_converse(dial))


async def _converse(dial: Dial) -> Heard:
    heard = Heard()
    async with dial() as client:
        heard.plainly_initialized = await initialize(client, {})
    async with dial() as client:
        heard.initialized = await initialize(client, CLIENT_CAPABILITIES)
        await client.listen()
        await _ask_everything(client, heard.exchanges)
        await _be_pushed(client, heard)
        heard.seen_by_server = (await client.request("vendor/seen")).result["seen"]
    return heard


async def _ask_everything(client: HandClient, exchanges: dict[str, Exchange]) -> None:
    async def ask(name: str, asked: Awaitable[Exchange]) -> None:
        # A step that fails is a hole in this conversation, and not the end of it.
        try:
            exchanges[name] = await asked
        except (OSError, aiohttp.ClientError, AssertionError) as error:
            exchanges[name] = Exchange([{"lost": repr(error)}])

    async def send_go(_: Frame) -> None:
        await client.notify("notifications/vendor.go", GO)

    async def ask_release(_: Frame) -> None:
        await ask("release", client.request("vendor/release", GO))

    for method in ("tools/list", "resources/list", "prompts/list"):
        await ask(method, client.request(method, {}))
    plain = {"name": "plain", "arguments": extended.ODD_VALUES, **CALL_EXTRAS}
    await ask("plain", client.request("tools/call", plain))
    await ask("failing", _call(client, "failing"))
    await ask("tells", _call(client, "tells"))
    client.answer = lambda frame: {"result": ANSWER}
    await ask("asks", _call(client, "asks"))
    client.answer = lambda frame: {"error": REFUSAL}
    await ask("asks in vain", _call(client, "asks"))
    client.answer = refuse
    await ask("compute", client.request("vendor/compute", HELLO))
    await ask("compute nothing", client.request("vendor/compute"))
    await ask("compute a list", client.request("vendor/compute", [1, "two", {"three": 3}]))
    await client.notify("notifications/vendor.hello", HELLO)
    await ask("waits", _call(client, "waits", send_go))
    await ask("waits longer", _call(client, "waits", ask_release))


async def _call(client: HandClient, tool: str, meanwhile: Meanwhile | None = None) -> Exchange:
    params: Frame = {"name": tool, "arguments": {}}
    return await client.request("tools/call", params, meanwhile=meanwhile)


async def _be_pushed(client: HandClient, heard: Heard) -> None:
    client.answer = lambda frame: {"result": ANSWER}
    await client.notify("notifications/vendor.poke", {})
    with suppress(TimeoutError):
        async with asyncio.timeout(SECONDS):
            while len(heard.pushed) < 2:
                heard.pushed.append(await client.standalone.get())
            while not heard.answers_to_pushes:
                answers = await client.request("vendor/answers")
                heard.answers_to_pushes = answers.result["answers"]


def assert_same(found: object, sent: object) -> None:
    # As text, because 1, 1.0 and true are equal in Python and not on the wire.
    assert json.dumps(found, sort_keys=True) == json.dumps(sent, sort_keys=True)


INITIALIZE_FIELDS: Frame = {
    "instructions": "Say anything.",
    "vendorInitialize": extended.ODD_VALUES,
    "_meta": {"vendor.example/initialize": extended.ODD_VALUES},
}
SERVER_CAPABILITIES: Frame = {
    "mgp": extended.MGP,
    **{
        name: extended.CAPABILITIES[name]
        for name in ("experimental", "extensions", "tools", "vendorCapability")
    },
}


@pytest.mark.requirement(
    *("MCP-4.1-result", "MCP-4.1-cap-tools", "MCP-4.1-cap-roots", "MCP-4.1-cap-sampling"),
    *("MCP-4.1-cap-elicitation", "MCP-5.1-list", "MCP-5.1-result", "MCP-5.1-call"),
    *("MCP-5.1-protoerr", "MCP-5.2-list", "MCP-5.3-list"),
)
def test_every_field_crosses_unchanged(heard: Heard) -> None:
    said = {name: exchange.response for name, exchange in heard.exchanges.items()}
    lists = {name: said[f"{name}/list"]["result"] for name in ("tools", "resources", "prompts")}
    (tool,), (resource,), (prompt,) = (lists[name][name] for name in lists)
    called = said["plain"]["result"]
    crossed: list[tuple[Frame, Frame]] = [
        (heard.initialized, INITIALIZE_FIELDS),
        (heard.initialized["capabilities"], SERVER_CAPABILITIES),
        (_seen(heard, "initialize")["params"]["capabilities"], CLIENT_CAPABILITIES),
        *((listed, extended.LIST_EXTRAS) for listed in lists.values()),
        (tool, extended.TOOL),
        (resource, extended.RESOURCE),
        (prompt, extended.PROMPT),
        (called, extended.RESULT),
        (called["received"], CALL_EXTRAS),
        (called["received"]["arguments"], extended.ODD_VALUES),
        (said["failing"]["error"], extended.ERROR),
    ]
    for found, sent in crossed:
        assert_same({name: found[name] for name in sent}, sent)


def test_mgp_is_said_only_to_a_client_that_said_it(heard: Heard) -> None:
    assert "mgp" not in heard.plainly_initialized["capabilities"]
    said = heard.plainly_initialized["capabilities"]["experimental"]
    assert_same(said["vendor/experiment"], {"on": True})
    # On a link that is shared the gateway has asked about MCPL, and this client has not.
    assert_same(said.get("mcpl", extended.MCPL), extended.MCPL)


@pytest.mark.requirement("MCP-2.3-notif")
def test_custom_messages_of_the_server_in_a_call_reach_the_client(heard: Heard) -> None:
    (asked,) = heard.exchanges["asks"].said("vendor/ask")
    assert_same(asked["params"], extended.QUESTION)
    (told,) = heard.exchanges["tells"].said("notifications/vendor.news")
    assert_same(told["params"], extended.NEWS)
    assert "id" not in told


def test_custom_messages_of_the_client_in_a_call_reach_the_server(heard: Heard) -> None:
    assert_same(heard.exchanges["asks"].result["answer"], {"result": ANSWER})
    assert_same(heard.exchanges["asks in vain"].result["answer"], {"error": REFUSAL})
    went = heard.exchanges["waits"].result["went"]
    assert_same(went, {"method": "notifications/vendor.go", "params": GO})
    went = heard.exchanges["waits longer"].result["went"]
    assert_same(went, {"method": "vendor/release", "params": GO})
    assert_same(heard.exchanges["release"].result, {"released": True})


@pytest.mark.requirement("MCP-2.1-params")
def test_custom_request_of_the_client_keeps_its_params_whatever_they_are(heard: Heard) -> None:
    answered = heard.exchanges["compute"].result
    assert_same(answered, {"given": HELLO, "vendorResult": extended.ODD_VALUES})
    assert_same(heard.exchanges["compute nothing"].result["given"], None)
    assert_same(heard.exchanges["compute a list"].result["given"], [1, "two", {"three": 3}])


@pytest.mark.requirement("MCP-2.3-notif")
def test_custom_notification_of_the_client_reaches_the_server(heard: Heard) -> None:
    said = _seen(heard, "notifications/vendor.hello")
    assert_same(said["params"], HELLO)
    assert "id" not in said


@pytest.mark.requirement("MCP-3.2-get")
def test_custom_messages_cross_outside_of_any_call(heard: Heard) -> None:
    told, asked = heard.pushed
    assert told["method"] == "notifications/vendor.push"
    assert_same(told["params"], extended.PUSH)
    assert asked["method"] == "vendor/push_ask"
    assert_same(asked["params"], extended.PUSH_QUESTION)
    assert_same(heard.answers_to_pushes, [{"result": ANSWER}])


@pytest.mark.requirement("MCP-2.1-jsonrpc", "MCP-2.2-onlyone")
def test_every_frame_is_json_rpc(heard: Heard) -> None:
    frames = [frame for exchange in heard.exchanges.values() for frame in exchange.frames]
    assert frames
    for frame in [*frames, *heard.pushed, *heard.seen_by_server]:
        assert frame["jsonrpc"] == "2.0"
        assert ("method" in frame) + ("result" in frame) + ("error" in frame) == 1


def _seen(heard: Heard, method: str) -> Frame:
    (frame,) = [frame for frame in heard.seen_by_server if frame["method"] == method]
    return frame
