"""Resources: listed, read by their URI, and followed, through each door."""

import pytest

from tests.conformance.servers import talker_words as words
from tests.conformance.ways import Frame, House, Way

UPDATED = "notifications/resources/updated"


@pytest.mark.requirement("MCP-5.2-list")
async def test_resources_are_listed_as_their_server_describes_them(any_way: Way) -> None:
    async with any_way.talk() as talk:
        listed = (await talk.client.request("resources/list", {})).result["resources"]
    own = [one for one in listed if one["uri"].startswith(any_way.uri(""))]
    by_uri = sorted(any_way.words(words.RESOURCES), key=lambda one: one["uri"])
    assert sorted(own, key=lambda one: one["uri"]) == by_uri


@pytest.mark.requirement("MCP-5.2-templates")
async def test_templates_are_listed_as_their_server_describes_them(way: Way) -> None:
    async with way.talk() as talk:
        listed = (await talk.client.request("resources/templates/list", {})).result
    own = [one for one in listed["resourceTemplates"] if one["uriTemplate"].startswith(way.uri(""))]
    assert own == way.words(words.TEMPLATES)


@pytest.mark.requirement("MCP-5.2-list", "MCP-5.2-templates", "MCP-1-host")
async def test_the_resources_of_every_server_are_in_the_merged_lists(house: House) -> None:
    async with house.among_all("near").talk() as talk:
        resources = (await talk.client.request("resources/list", {})).result["resources"]
        listed = (await talk.client.request("resources/templates/list", {})).result
    templates = listed["resourceTemplates"]
    for server in ("near", "far"):
        assert f"{server}://text" in [one["uri"] for one in resources]
        assert f"{server}://notes/{{day}}/list" in [one["uriTemplate"] for one in templates]


@pytest.mark.requirement("MCP-5.2-read")
@pytest.mark.parametrize("path", ["text", "blob"])
async def test_a_resource_is_read_as_text_or_as_bytes(way: Way, path: str) -> None:
    async with way.talk() as talk:
        read = await talk.client.request("resources/read", {"uri": way.uri(path)})
    assert read.result["contents"] == way.words(words.CONTENTS[f"talker://{path}"])


@pytest.mark.requirement("MCP-5.2-multi")
async def test_one_read_can_bring_several_items(way: Way) -> None:
    async with way.talk() as talk:
        read = await talk.client.request("resources/read", {"uri": way.uri("folder")})
    assert read.result["contents"] == way.words(words.CONTENTS[words.FOLDER])
    assert len(read.result["contents"]) == 2


@pytest.mark.requirement("MCP-5.2-templates", "MCP-5.2-read")
async def test_a_uri_made_from_a_template_is_read_from_the_server_that_offers_it(way: Way) -> None:
    uri = way.uri("notes/2025-01-15/list")
    async with way.talk() as talk:
        read = await talk.client.request("resources/read", {"uri": uri})
    assert read.result["contents"] == [{"uri": uri, "text": f"the note at {uri}"}]


@pytest.mark.requirement("MCP-5.2-read")
async def test_an_unknown_resource_is_an_error_that_names_no_other(way: Way) -> None:
    async with way.talk() as talk:
        read = await talk.client.request("resources/read", {"uri": "nobody://there"})
    assert read.response["error"]["code"] == -32002


@pytest.mark.requirement("MCP-5.2-appcontrolled")
async def test_only_what_a_client_chose_is_fetched(way: Way) -> None:
    async with way.talk() as talk:
        await talk.client.request("resources/list", {})
        await talk.client.request("resources/templates/list", {})
        before = _reads(await talk.seen())
        await talk.client.request("resources/read", {"uri": way.uri("folder")})
        after = _reads(await talk.seen())
    assert after[len(before) :] == [way.uri("folder")]
    # What went before was asked for by the clients of the other tests; none began by itself.
    assert way.uri("blob") not in after[len(before) :]


@pytest.mark.requirement("MCP-5.2-subscribe")
async def test_a_change_is_told_to_those_who_subscribed_and_to_no_other(way: Way) -> None:
    uri = way.uri("text")
    async with way.talk() as reader, way.talk() as other:
        await reader.listen()
        await other.listen()
        await other.call("echo")
        assert (await reader.client.request("resources/subscribe", {"uri": uri})).result == {}
        await other.client.request("resources/subscribe", {"uri": way.uri("blob")})
        await reader.call("touch", {"uri": uri})
        await other.call("touch", {"uri": way.uri("blob")})
        assert (await reader.told(UPDATED))["params"] == {"uri": uri}
        # Updates come in order: had the first been told here too, it would have come first.
        assert (await other.told(UPDATED))["params"] == {"uri": way.uri("blob")}


@pytest.mark.requirement("MCP-5.2-subscribe")
async def test_after_unsubscribing_nothing_more_is_told(way: Way) -> None:
    text, blob = way.uri("text"), way.uri("blob")
    async with way.talk() as talk:
        await talk.listen()
        for uri in (text, blob):
            await talk.client.request("resources/subscribe", {"uri": uri})
        assert (await talk.client.request("resources/unsubscribe", {"uri": text})).result == {}
        await talk.call("touch", {"uri": text})
        await talk.call("touch", {"uri": blob})
        assert (await talk.told(UPDATED))["params"] == {"uri": blob}


@pytest.mark.requirement("MCP-5.2-subscribe")
async def test_one_reader_who_leaves_takes_no_other_s_subscription_along(way: Way) -> None:
    uri = way.uri("text")
    async with way.talk() as stays:
        await stays.listen()
        await stays.client.request("resources/subscribe", {"uri": uri})
        async with way.talk() as leaves:
            await leaves.client.request("resources/subscribe", {"uri": uri})
            await leaves.client.request("resources/unsubscribe", {"uri": uri})
        await stays.call("touch", {"uri": uri})
        assert (await stays.told(UPDATED))["params"] == {"uri": uri}


def _reads(seen: list[Frame]) -> list[str]:
    return [frame["params"]["uri"] for frame in seen if frame["method"] == "resources/read"]
