"""Channels of a live server: registered, opened, spoken into and listened to."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from comity.sdk.server import (
    ChannelDescriptor,
    ChannelDirection,
    ChannelOutput,
    HostUnavailable,
    Message,
    Misconfigured,
    Post,
    Server,
)
from comity.sdk.testing import Era, Harness, HarnessServerError
from tests.pace import here
from tests.support.cases import loop_over

ERAS = pytest.mark.parametrize("era", ["handshake", "modern"])
GENERAL = ChannelDescriptor(
    "irc:#quay",
    "irc",
    "#quay (harbour)",
    ChannelDirection.BOTH,
    {"network": "harbour", "room": "#quay"},
    {"serverId": "irc-bridge"},
)


def chatting() -> Server:
    server = Server("irc")
    server.feature("channels.publish", "Publish to channels", uses=["channels.publish"])
    server.feature("channels.observe", "Observe channels", uses=["channels.observe"])
    return server


@pytest.mark.requirement(
    *("MCPL-4.1-chregister", "MCPL-14-named", "MCPL-14.2-id", "MCPL-14.2-type"),
    *("MCPL-14.2-label", "MCPL-14.2-direction", "MCPL-14.2-address", "MCPL-14.2-metadata"),
    *("MCPL-14.3-register", "MCPL-14.3-changed", "MCPL-4.1-chchanged", "MCPL-14.1-gate"),
)
@ERAS
async def test_channels_are_registered_when_allowed_and_changes_are_told(era: Era) -> None:
    server = chatting()
    await server.channels.register(GENERAL)
    async with Harness(server, era=era) as host:
        await host.tools()
        assert host.said("channels/register") == []
        await host.enable("channels.publish")
        await host.until(lambda: host.places.known)
        (told,) = host.said("channels/register")
        renamed = ChannelDescriptor("irc:#quay", "irc", "#all")
        lobby = ChannelDescriptor("irc:#lobby", "irc", direction=ChannelDirection.IN)
        await server.channels.change(added=[renamed, lobby])
        await server.channels.change(removed=["irc:#quay", "irc:#never"])
        await host.until(lambda: host.places.known.keys() == {"irc:#lobby"})
        first, second = host.said("channels/changed")
    assert told == {
        "channels": [
            {
                "id": "irc:#quay",
                "type": "irc",
                "label": "#quay (harbour)",
                "direction": "bidirectional",
                "address": {"network": "harbour", "room": "#quay"},
                "metadata": {"serverId": "irc-bridge"},
            }
        ]
    }
    assert [each["id"] for each in first["added"]] == ["irc:#lobby"]
    assert first["added"][0]["direction"] == "inbound"
    assert [each["label"] for each in first["updated"]] == ["#all"]
    assert second == {"added": [], "removed": ["irc:#quay"], "updated": []}


@pytest.mark.requirement("MCPL-4.1-chincoming", "MCPL-14.3-incoming", "MCPL-14.3-incomingmsg")
@ERAS
async def test_messages_come_in_together_and_each_has_an_outcome(era: Era) -> None:
    server = chatting()
    await server.channels.register(GENERAL)
    async with Harness(server, ["channels.*"], era=era) as host:
        await host.until(lambda: host.places.known)
        at = datetime(2026, 11, 2, 8, 30, tzinfo=UTC)
        visitor = Message(
            "irc:#quay", "m-31", "When does the ferry leave?", "A visitor", "u-5", "t-9", at,
            {"mentions": ["@pilot"]},
        )  # fmt: skip
        arrived = await server.channels.incoming(visitor, Message("irc:#x", "m-32", "Hm"))
        (told,) = host.said("channels/incoming")
    assert told["messages"][0] == {
        "channelId": "irc:#quay",
        "messageId": "m-31",
        "threadId": "t-9",
        "author": {"id": "u-5", "name": "A visitor"},
        "timestamp": "2026-11-02T08:30:00.000Z",
        "content": [{"type": "text", "text": "When does the ferry leave?"}],
        "metadata": {"mentions": ["@pilot"]},
    }
    first, second = arrived
    assert (first.accepted, first.conversation) == (True, "conv-irc:#quay")
    assert (second.accepted, second.reason) == (False, "Unknown channel")


@pytest.mark.requirement(
    *("MCPL-4.1-chpublish", "MCPL-14.3-publishack", "MCPL-14.6-32017", "MCPL-14.6-32023")
)
@ERAS
async def test_words_are_delivered_and_acknowledged(era: Era) -> None:
    server, posts = chatting(), list[Post]()
    feed = ChannelDescriptor("irc:#feed", "irc", direction=ChannelDirection.IN)
    await server.channels.register(GENERAL, feed)
    heard = asyncio.Event()

    @server.channels.on_publish
    async def deliver(post: Post) -> str | bool:
        posts.append(post)
        heard.set()
        return False if post.text == "fail" else f"out-{len(posts)}"

    async with Harness(server, ["channels.*"], era=era) as host:
        assert await host.publish("irc:#quay", "Hello team") == "out-1"
        with pytest.raises(HarnessServerError, match="not delivered"):
            await host.publish("irc:#quay", "fail")
        codes: list[Any] = []
        for channel in ("irc:#never", "thinking", "irc:#feed"):
            with pytest.raises(HarnessServerError) as refused:
                await host.publish(channel, "Hello")
            codes.append(refused.value.code)
        heard.clear()
        told = {"channelId": "irc:#quay", "content": "Without an answer", "stream": True}
        await host.tell("channels/publish", told)
        await asyncio.wait_for(heard.wait(), here(30))
        await host.disable("channels.publish")
        with pytest.raises(HarnessServerError) as refused:
            await host.publish("irc:#quay", "Hello")
        codes.append(refused.value.code)
    assert codes == [-32023, -32017, -32017, -32017]
    assert (posts[0].text, posts[0].conversation, posts[0].stream) == (
        "Hello team",
        "conv-1",
        False,
    )
    assert (posts[0].channel, posts[-1].stream) == (GENERAL, True)


@pytest.mark.requirement(
    *("MCPL-4.1-chopen", "MCPL-4.1-chclose", "MCPL-14.3-open", "MCPL-14.3-close"),
    *("MCPL-14.6-32024", "MCPL-14.6-32023", "MCPL-4.1-chlist", "MCPL-14.3-list"),
)
@ERAS
async def test_a_host_opens_closes_and_lists_channels(era: Era) -> None:
    server, closed = chatting(), list[str]()

    @server.channels.on_open
    async def connect(type: str, address: Mapping[str, Any]) -> ChannelDescriptor | None:
        if address.get("channel") == "#broken":
            raise ConnectionError("the token is secret")
        known = type == "irc"
        return (
            ChannelDescriptor(f"{type}:{address['channel']}", type, address=dict(address))
            if known
            else None
        )

    @server.channels.on_close
    async def leave(channel: str) -> bool:
        closed.append(channel)
        return channel != "irc:#stays"

    async with Harness(server, ["channels.*"], era=era) as host:
        opened = await host.open("irc", {"channel": "#quay"})
        assert (opened.id, opened.address) == ("irc:#quay", {"channel": "#quay"})
        for type, channel in (("pager", "#quay"), ("irc", "#broken")):
            with pytest.raises(HarnessServerError) as refused:
                await host.open(type, {"channel": channel})
            assert refused.value.code == -32024
            assert "secret" not in str(refused.value)
        listed = await host.request("channels/list", {})
        assert [each["id"] for each in listed["channels"]] == ["irc:#quay"]
        assert [each.id for each in await server.channels.listed()] == ["irc:#quay"]
        await host.open("irc", {"channel": "#stays"})
        assert not await host.close("irc:#stays")
        assert await host.close("irc:#quay")
        with pytest.raises(HarnessServerError) as refused:
            await host.close("irc:#quay")
        assert refused.value.code == -32023
        # What a host opened or closed itself needs no telling.
        assert host.said("channels/changed") == []
    assert closed == ["irc:#stays", "irc:#quay"]


@pytest.mark.requirement("MCPL-4.1-choutchunk", "MCPL-4.1-choutcomplete")
@ERAS
async def test_observers_see_pieces_and_the_whole(era: Era) -> None:
    server, seen = chatting(), list[ChannelOutput]()
    done = asyncio.Event()

    @server.channels.on_outgoing
    async def watch(outgoing: ChannelOutput) -> None:
        seen.append(outgoing)
        if outgoing.is_complete:
            done.set()

    about = {"inferenceId": "inf_abc", "conversationId": "conv_123", "channelId": "thinking"}
    async with Harness(server, ["channels.observe"], era=era) as host:
        await host.tell("channels/outgoing/chunk", {**about, "index": 0, "delta": "Hello team,"})
        await host.tell("channels/outgoing/chunk", {**about, "index": "x"})
        content = [{"type": "text", "text": "Hello team, hello."}]
        await host.tell("channels/outgoing/complete", {**about, "content": content})
        await asyncio.wait_for(done.wait(), here(30))
        await host.disable("channels.observe")
        await host.tell("channels/outgoing/complete", {**about, "content": content})
        await host.tools()
    pieces, wholes = (
        [each for each in seen if each.is_complete is complete] for complete in (False, True)
    )
    assert [(each.index, each.delta) for each in pieces] == [(0, "Hello team,")]
    assert [each.content[0].text for each in wholes] == ["Hello team, hello."]
    assert (wholes[0].channel, wholes[0].inference) == ("thinking", "inf_abc")


@loop_over("id", ["", "thinking", "a" * 300, "a\nb"])
async def test_a_channel_without_a_proper_id_is_refused(id: str) -> None:
    with pytest.raises(Misconfigured):
        await chatting().channels.register(ChannelDescriptor(id, "irc"))


async def test_messages_that_no_host_could_read_are_refused_before_they_are_sent() -> None:
    with pytest.raises(Misconfigured, match="messageId"):
        await chatting().channels.incoming(Message("irc:#a", "", "Hi"))


async def test_without_a_host_there_is_nothing_to_list() -> None:
    with pytest.raises(HostUnavailable):
        await chatting().channels.listed()


async def test_a_host_without_channels_is_told_of_none() -> None:
    server = chatting()
    await server.channels.register(GENERAL)
    async with Harness(server, ["channels.*"], mcpl=False) as host:
        await host.tools()
        assert host.said("channels/register") == []


@ERAS
async def test_what_fails_within_is_told_to_nobody_outside(era: Era) -> None:
    server = chatting()
    await server.channels.register(GENERAL)

    @server.channels.on_publish
    async def deliver(post: Post) -> None:
        raise ConnectionError("the token is secret")

    @server.channels.on_close
    async def leave(channel: str) -> None:
        raise RuntimeError("the token is secret")

    async with Harness(server, ["channels.*"], era=era) as host:
        refused: list[HarnessServerError] = []
        for method, params in (
            ("channels/publish", {"channelId": GENERAL.id, "content": "Hello"}),
            ("channels/close", {"channelId": GENERAL.id}),
            ("channels/publish", {"channelId": GENERAL.id, "content": {"type": "video"}}),
        ):
            with pytest.raises(HarnessServerError) as found:
                await host.request(method, params)
            refused.append(found.value)
    assert [each.code for each in refused] == [-32603, -32603, -32602]
    assert not any("secret" in str(each) for each in refused)
