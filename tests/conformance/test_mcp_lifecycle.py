"""A session from its first message to its end: the handshake, what was agreed, and utilities."""

import asyncio
import itertools

import pytest

from tests.conformance.servers import talker_words as words
from tests.conformance.ways import Frame, House, Way
from tests.interop.hand_client import SECONDS, Exchange, HttpClient, frames_of, over_http

OLDEST, LATEST = words.VERSIONS[0], words.VERSIONS[-1]
EVERYTHING: Frame = {
    "roots": {"listChanged": True},
    "sampling": {"tools": {}},
    "elicitation": {"form": {}, "url": {}},
}
_numbers = itertools.count(1)


@pytest.mark.requirement("MCP-4.1-echo")
@pytest.mark.parametrize("version", words.VERSIONS)
async def test_each_handshake_version_is_echoed(way: Way, version: str) -> None:
    async with way.talk(protocolVersion=version) as talk:
        assert isinstance(talk.client, HttpClient)
        talk.client.session["mcp-protocol-version"] = version
        called = await talk.call("echo", {"in": version})
    assert talk.hello["protocolVersion"] == version
    assert called.result["structuredContent"]["given"] == {"in": version}


@pytest.mark.requirement("MCP-4.1-echo")
@pytest.mark.parametrize("version", ["1999-01-01", "2099-12-31", "later"])
async def test_an_unknown_version_is_answered_with_one_that_is_spoken(
    way: Way, version: str
) -> None:
    async with way.talk(protocolVersion=version) as talk:
        pass
    assert talk.hello["protocolVersion"] == LATEST


@pytest.mark.requirement("MCP-4.1-result")
async def test_a_server_introduces_itself_at_its_own_door(house: House) -> None:
    for server in ("near", "far"):
        async with house.own(server).talk() as talk:
            info = {"name": server, "version": "2.0.0"}
            assert talk.hello == {
                **words.INITIALIZED,
                "serverInfo": info,
                "protocolVersion": LATEST,
            }


@pytest.mark.requirement(
    "MCP-4.1-result",
    "MCP-4.1-cap-tools",
    "MCP-4.1-cap-resources",
    "MCP-4.1-cap-prompts",
    "MCP-4.1-cap-logging",
    "MCP-4.1-cap-completions",
)
async def test_what_servers_can_do_is_declared_at_each_door(any_way: Way) -> None:
    async with any_way.talk() as talk:
        pass
    # Events are the gateway's own, at the door of all servers.
    declared = {name: said for name, said in talk.hello["capabilities"].items() if name != "events"}
    assert declared == words.CAPABILITIES
    assert talk.hello["serverInfo"].keys() >= {"name", "version"}


@pytest.mark.requirement("MCP-4.1-cap-roots", "MCP-4.1-cap-sampling", "MCP-4.1-cap-elicitation")
@pytest.mark.requirement("MCP-4.1-request")
@pytest.mark.parametrize("label", ["own far", "merged far"])
async def test_what_a_client_can_do_reaches_its_server(house: House, label: str) -> None:
    async with house.way(label).talk(EVERYTHING) as talk:
        hello = (await talk.seen())[0]["params"]
    # At the door of all servers the gateway adds that it takes results in pieces.
    said = {name: said for name, said in hello["capabilities"].items() if name != "mgp"}
    assert said == EVERYTHING
    assert hello["clientInfo"].keys() >= {"name", "version"}
    assert hello["protocolVersion"] == LATEST


@pytest.mark.requirement("MCP-4.1-latest", "MCP-4.1-request")
async def test_the_gateway_itself_offers_the_latest_version_it_knows(house: House) -> None:
    """A process that many clients share was greeted by the gateway, before any of them came."""
    async with house.own("near").talk(protocolVersion=OLDEST) as talk:
        hello = (await talk.seen())[0]
    assert hello["method"] == "initialize"
    assert hello["params"]["protocolVersion"] == LATEST
    assert hello["params"]["clientInfo"]["name"] == "comity"
    extended = {"mgp", "experimental"}
    assert hello["params"]["capabilities"].keys() == EVERYTHING.keys() | extended


@pytest.mark.requirement("MCP-4.1-first", "MCP-4.1-initialized", "MCP-4.1-pre-client")
async def test_a_server_is_greeted_first_and_asked_only_after_that(any_way: Way) -> None:
    async with any_way.talk() as talk:
        await talk.call("echo")
        methods = [frame["method"] for frame in await talk.seen()]
    assert methods[:2] == ["initialize", "notifications/initialized"]
    assert methods.count("initialize") == methods.count("notifications/initialized") == 1


@pytest.mark.requirement("MCP-1-client", "MCP-2.1-id")
async def test_each_server_is_spoken_to_on_a_connection_of_its_own(house: House) -> None:
    async with house.among_all("near").talk() as talk:
        near = await talk.client.request("tools/call", {"name": "near__seen"})
        far = await talk.client.request("tools/call", {"name": "far__seen"})
    said = [one.result["structuredContent"] for one in (near, far)]
    assert said[0]["process"] != said[1]["process"]
    for one in said:
        asked = [frame["id"] for frame in one["frames"] if "id" in frame]
        assert one["frames"][0]["method"] == "initialize"
        assert len(asked) == len(set(asked))


@pytest.mark.requirement("MCP-1-server", "MCP-2.4-stateful")
async def test_each_session_has_one_client(way: Way) -> None:
    async with way.talk(EVERYTHING) as one, way.talk() as other:
        assert isinstance(one.client, HttpClient)
        assert isinstance(other.client, HttpClient)
        assert one.client.session != other.client.session
        one.client.answer = other.client.answer = lambda frame: {"result": {"roots": []}}
        # The two declared different things, and each is held to its own word.
        assert "result" in (await one.ask("roots/list")).result["structuredContent"]
        assert "error" in (await other.ask("roots/list")).result["structuredContent"]


@pytest.mark.requirement("MCP-4.4-ping")
async def test_a_ping_of_the_client_is_answered_with_nothing(any_way: Way) -> None:
    async with any_way.talk() as talk:
        assert (await talk.client.request("ping")).result == {}


@pytest.mark.requirement("MCP-4.4-ping")
async def test_a_ping_of_the_server_is_answered_with_nothing(way: Way) -> None:
    async with way.talk() as talk:
        heard = await talk.call("ask", {"method": "ping"})
    assert heard.result["structuredContent"] == {"result": {}}


@pytest.mark.requirement("MCP-4.4-progress")
@pytest.mark.parametrize("token", ["abc-123", 7, "7"])
async def test_progress_of_a_call_comes_under_the_caller_s_own_token(
    way: Way, token: object
) -> None:
    async with way.talk() as talk:
        exchange = await talk.call("report", _meta={"progressToken": token})
    told = [frame["params"] for frame in exchange.said("notifications/progress")]
    assert [(type(one["progressToken"]), one["progressToken"]) for one in told] == [
        (type(token), token)
    ] * 3
    assert [one["progress"] for one in told] == [1, 2.5, 3]
    assert told[1] == {"progressToken": token, "progress": 2.5, "total": 3, "message": "at 2.5"}


@pytest.mark.requirement("MCP-4.4-progress")
async def test_two_callers_with_one_token_each_hear_of_their_own_call(way: Way) -> None:
    async with way.talk() as one, way.talk() as other:
        calls = [talk.call("report", _meta={"progressToken": 1}) for talk in (one, other)]
        for exchange in await asyncio.gather(*calls):
            told = exchange.said("notifications/progress")
            assert [frame["params"]["progress"] for frame in told] == [1, 2.5, 3]


@pytest.mark.requirement("MCP-4.4-progress")
async def test_progress_of_a_client_s_answer_reaches_the_server_that_asked(way: Way) -> None:
    token = f"of the server {next(_numbers)}"
    question: Frame = {"method": "roots/list", "params": {"_meta": {"progressToken": token}}}
    async with way.talk(EVERYTHING) as talk:
        assert isinstance(talk.client, HttpClient)
        params: Frame = {"name": way.name("ask"), "arguments": question}
        call = {"jsonrpc": "2.0", "id": "asks", "method": "tools/call", "params": params}
        async with asyncio.timeout(SECONDS), talk.client.post(call) as reply:
            async for frame in frames_of(reply):
                if frame.get("method") == "roots/list":
                    given = frame["params"]["_meta"]["progressToken"]
                    progress = {"progressToken": given, "progress": 0.5, "total": 1}
                    await talk.client.notify("notifications/progress", progress)
                    answer: Frame = {"jsonrpc": "2.0", "id": frame["id"], "result": {"roots": []}}
                    async with talk.client.post(answer) as taken:
                        assert taken.status == 202
        seen = await talk.seen()
    told = [frame["params"] for frame in seen if frame["method"] == "notifications/progress"]
    assert {"progressToken": token, "progress": 0.5, "total": 1} in told


@pytest.mark.requirement("MCP-4.4-cancelled")
async def test_a_call_that_the_client_takes_back_is_taken_back_from_its_server(way: Way) -> None:
    reason = f"User cancelled {next(_numbers)}"

    async def cancel(_: Frame) -> None:
        taken_back = {"requestId": "mine", "reason": reason}
        await talk.client.notify("notifications/cancelled", taken_back)

    async with way.talk() as talk:
        with pytest.raises(ConnectionError):
            await talk.call("wait", named="mine", meanwhile=cancel)
        async with asyncio.timeout(SECONDS):
            while not (told := _cancelled(seen := await talk.seen(), reason)):
                await asyncio.sleep(0.02)
    waits = [frame["id"] for frame in seen if _tool(frame) == "wait"]
    # Named as the server knows the call, and no other call of anybody's.
    assert [one["requestId"] for one in told] == waits[-1:]


@pytest.mark.requirement("MCP-4.4-cancelled")
async def test_a_question_that_the_server_takes_back_is_taken_back_from_the_client(
    way: Way,
) -> None:
    async with way.talk(EVERYTHING) as talk:
        # What has an answer already cannot be taken back.
        talk.client.answer = lambda _: {}
        exchange: Exchange = await talk.call("ask_in_vain")
    (asked,) = exchange.said("sampling/createMessage")
    (taken_back,) = exchange.said("notifications/cancelled")
    assert taken_back["params"] == {"requestId": asked["id"], "reason": "no longer needed"}


@pytest.mark.requirement("MCP-4.4-cancelled")
@pytest.mark.parametrize("server", ["near", "far"])
async def test_a_cancellation_touches_no_call_of_another_client(house: House, server: str) -> None:
    way = house.own(server)
    async with way.talk() as mine, way.talk() as theirs:
        taken_back = {"requestId": "same", "reason": "not yours"}

        async def cancel_theirs(_: Frame) -> None:
            await theirs.client.notify("notifications/cancelled", taken_back)
            await mine.client.notify("notifications/talker.go")

        waited = await mine.call("wait", named="same", meanwhile=cancel_theirs)
    assert waited.result["content"][0]["text"] == "went"


async def test_a_session_of_one_door_opens_no_other(house: House) -> None:
    async with house.own("near").talk() as talk, over_http(house.door("far")) as other:
        assert isinstance(talk.client, HttpClient)
        other.session = dict(talk.client.session)
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        async with other.post(ping) as refused:
            assert refused.status == 404
        other.session = {}


def _cancelled(seen: list[Frame], reason: str) -> list[Frame]:
    told = [frame["params"] for frame in seen if frame["method"] == "notifications/cancelled"]
    return [one for one in told if one.get("reason") == reason]


def _tool(frame: Frame) -> str:
    return frame["params"]["name"] if frame["method"] == "tools/call" else ""
