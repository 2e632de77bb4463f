"""Prompts, the completion of their arguments, and log messages, through each door."""

import pytest

from tests.conformance.servers import talker_words as words
from tests.conformance.servers.talker import LEVELS
from tests.conformance.ways import Frame, House, Way
from tests.interop.hand_client import Exchange


@pytest.mark.requirement("MCP-5.3-list")
async def test_prompts_are_listed_as_their_server_describes_them(any_way: Way) -> None:
    (prompt,) = words.PROMPTS
    name = any_way.name("review")
    async with any_way.talk() as talk:
        listed = (await talk.client.request("prompts/list", {})).result["prompts"]
    assert [one for one in listed if one["name"] == name] == [{**prompt, "name": name}]


@pytest.mark.requirement("MCP-5.3-get", "MCP-5.3-fill")
async def test_a_prompt_is_filled_by_its_server_with_messages_of_any_kind(way: Way) -> None:
    params = {"name": way.name("review"), "arguments": {"language": "Rust"}}
    async with way.talk() as talk:
        got = (await talk.client.request("prompts/get", params)).result
    assert got["description"] == "A review."
    text = {"type": "text", "text": "Review this Rust code."}
    assert got["messages"][0] == {"role": "user", "content": text}
    assert [message["content"] for message in got["messages"][1:]] == words.EVERY_CONTENT


@pytest.mark.requirement("MCP-5.3-get", "MCP-2.2-32602")
async def test_an_unknown_prompt_is_refused(way: Way) -> None:
    async with way.talk() as talk:
        got = await talk.client.request("prompts/get", {"name": way.name("nothing")})
    assert got.response["error"]["code"] == -32602


@pytest.mark.requirement("MCP-4.1-cap-completions", "MCP-4.1-complete")
async def test_an_argument_of_a_prompt_is_completed_by_its_server(way: Way) -> None:
    reference = {"type": "ref/prompt", "name": way.name("review")}
    # The server hears its own name for the prompt.
    assert await _complete(way, reference) == ["review language ru…"]


@pytest.mark.requirement("MCP-4.1-cap-completions", "MCP-4.1-complete")
async def test_a_variable_of_a_template_is_completed_by_its_server(way: Way) -> None:
    uri = way.uri("notes/{day}/list")
    assert await _complete(way, {"type": "ref/resource", "uri": uri}) == [f"{uri} language ru…"]


@pytest.mark.requirement("MCP-4.1-cap-logging", "MCP-4.1-setlevel")
async def test_a_level_set_before_the_first_call_is_the_server_s_level(
    house: House, way: Way
) -> None:
    await _silence(house, way)
    async with way.talk() as talk:
        assert (await talk.client.request("logging/setLevel", {"level": "debug"})).result == {}
        assert _levels(await talk.call("log")) == list(LEVELS)


@pytest.mark.requirement("MCP-4.1-cap-logging", "MCP-4.1-setlevel", "MCP-4.1-message")
async def test_nothing_below_the_level_is_told(way: Way) -> None:
    async with way.talk() as talk:
        await talk.call("echo")
        await talk.client.request("logging/setLevel", {"level": "error"})
        logged = await talk.call("log")
    assert _levels(logged) == list(LEVELS[LEVELS.index("error") :])
    note = {"level": "error", "logger": "talker", "data": {"said": "error"}}
    assert logged.said("notifications/message")[0]["params"] == note


@pytest.mark.requirement("MCP-4.1-cap-logging", "MCP-2.4-stateful")
async def test_each_session_has_a_level_of_its_own(house: House, way: Way) -> None:
    await _silence(house, way)
    async with way.talk() as curious, way.talk() as calm:
        await curious.client.request("logging/setLevel", {"level": "debug"})
        await calm.client.request("logging/setLevel", {"level": "alert"})
        assert _levels(await calm.call("log")) == ["alert", "emergency"]
        assert _levels(await curious.call("log")) == list(LEVELS)


async def test_a_log_message_out_of_any_call_reaches_the_one_client(house: House) -> None:
    async with house.own("far").talk() as talk:
        await talk.listen()
        await talk.call("log", {"standalone": True})
        told = await talk.told("notifications/message")
    assert told["params"]["level"] == "warning"


async def _silence(house: House, way: Way) -> None:
    """Have a process that several share say as little as it can, whatever was asked before."""
    async with house.own(way.server).talk() as talk:
        await talk.client.request("logging/setLevel", {"level": "emergency"})


async def _complete(way: Way, reference: Frame) -> list[str]:
    params = {"ref": reference, "argument": {"name": "language", "value": "ru"}}
    async with way.talk() as talk:
        completed = (await talk.client.request("completion/complete", params)).result
    return completed["completion"]["values"]


def _levels(exchange: Exchange) -> list[str]:
    return [note["params"]["level"] for note in exchange.said("notifications/message")]
