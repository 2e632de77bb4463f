"""Channels through the whole gateway: registered, listed, opened, closed, each by itself. (§14)"""

import asyncio
from pathlib import Path

import pytest

from comity.errors import MalformedMessage, Unavailable
from tests.live.channel_scene import ALLOWED, BOTH, Error, Frame, Puppet, channel, message, scene

UNKNOWN = -32023
NOT_PERMITTED = -32017
NOT_OPENED = -32024
NOT_ENABLED = -32001


@pytest.mark.requirement(
    "MCPL-4.1-chregister", "MCPL-4.1-chchanged", "MCPL-4.1-chlist", "MCPL-14-named"
)
@pytest.mark.requirement("MCPL-14.3-list")
async def test_channels_are_registered_and_changed_and_listed_for_their_connection(
    tmp_path: Path,
) -> None:
    server = Puppet("chat")
    async with scene(tmp_path, server) as stage:
        results = await server.register("general", "random")
        assert results == [
            {"id": "general", "accepted": True},
            {"id": "random", "accepted": True},
        ]
        server.tell(
            "channels/changed",
            {
                "added": [channel("new")],
                "removed": ["random", "never was"],
                "updated": [channel("general", label="renamed", direction="inbound")],
            },
        )
        listed = (await server.asked("channels/list", {}))["channels"]
        assert [each["id"] for each in listed] == ["general", "new"]
        assert listed[0]["label"] == "renamed"
        assert listed[0]["direction"] == "inbound"
        assert await stage.shown() == {("chat", "general"): "open", ("chat", "new"): "open"}


@pytest.mark.requirement("MCPL-14.3-list")
async def test_a_listed_channel_is_the_one_that_was_registered(tmp_path: Path) -> None:
    server = Puppet("chat")
    address = {"guild": "acme", "channel": "#general"}
    metadata = {"serverId": "discord-connector"}
    described = [
        channel(f"discord:{each}", direction=each, address=address, metadata=metadata)
        for each in ("outbound", "inbound", "bidirectional")
    ]
    async with scene(tmp_path, server):
        await server.asked("channels/register", {"channels": described})
        assert (await server.asked("channels/list", {}))["channels"] == described


@pytest.mark.requirement("MCPL-14.1-caps")
async def test_the_host_says_that_it_knows_channels(tmp_path: Path) -> None:
    server = Puppet("chat", channels={"register": True, "publish": True, "observe": True})
    async with scene(tmp_path, server) as stage:
        (greeting, *_) = server.said("initialize")
        offered = greeting["capabilities"]["experimental"]["mcpl"]["channels"]
        names = ("register", "publish", "observe", "lifecycle", "streaming")
        assert offered == dict.fromkeys(names, True)
        await server.register("general")
        assert await stage.shown() == {("chat", "general"): "open"}


@pytest.mark.requirement("MCPL-14.3-list", "MCPL-4.1-chlist")
async def test_a_server_is_asked_for_its_channels_when_it_comes(tmp_path: Path) -> None:
    server = Puppet("chat", channels={"lifecycle": True})
    server.plays["channels/list"] = lambda _: {"channels": [channel("general")]}
    async with scene(tmp_path, server) as stage:
        await server.until("channels/list")
        await server.asked("channels/list", {})
        assert await stage.shown() == {("chat", "general"): "open"}


@pytest.mark.requirement("MCPL-14.1-gate")
@pytest.mark.parametrize(
    ("enabled", "refused"),
    [
        ([], ["channels/register", "channels/list", "channels/incoming"]),
        (["channels.publish"], ["channels/incoming"]),
        (["channels.observe"], []),
    ],
)
async def test_each_method_needs_a_feature_set_that_is_for_it(
    tmp_path: Path, enabled: list[str], refused: list[str]
) -> None:
    server = Puppet("chat")
    asked: dict[str, dict[str, object]] = {
        "channels/register": {"channels": [channel("general")]},
        "channels/list": {},
        "channels/incoming": {"messages": []},
    }
    async with scene(tmp_path, server, live=f"enabled = {enabled}") as stage:
        for method, params in asked.items():
            answer = await server.ask(method, params)
            if method in refused:
                assert answer["error"]["code"] == NOT_ENABLED, answer
            else:
                assert "result" in answer, answer
        shown = await stage.shown()
        assert bool(shown) == bool(enabled)
        if shown and "channels.publish" not in enabled:
            with pytest.raises(MalformedMessage, match=r"channels\.publish"):
                await stage.api("POST", "send", server="chat", channel="general", text="x")


@pytest.mark.requirement("MCPL-14.5-scopes", "MCPL-14.6-32017")
async def test_scopes_decide_about_each_channel_by_itself(tmp_path: Path) -> None:
    live = f"""{ALLOWED}
[servers.live.scopes."channels.publish"]
whitelist = ["discord:acme/*"]
blacklist = ["discord:acme/private"]
[servers.live.scopes."channels.observe"]
whitelist = ["discord:**"]
"""
    server = Puppet("chat")
    async with scene(tmp_path, server, live=live, rows=ROW) as stage:
        results = await server.register(
            "discord:acme/general", "discord:acme/private", "discord:other/x", "telegram:1"
        )
        assert [each["accepted"] for each in results] == [True, False, True, False]
        assert [each.get("code") for each in results] == [None, NOT_PERMITTED] * 2
        assert set(await stage.shown()) == {
            ("chat", "discord:acme/general"),
            ("chat", "discord:other/x"),
        }
        await stage.api("POST", "send", server="chat", channel="discord:acme/general", text="hello")
        with pytest.raises(MalformedMessage) as refused:
            await stage.api("POST", "send", server="chat", channel="discord:other/x", text="hello")
        assert refused.value.fault.code == NOT_PERMITTED
        assert len(server.said("channels/publish")) == 1
        heard = await server.hears(message("hi", "telegram:1"), message("hi", "discord:other/x"))
        assert [each.get("code") for each in heard] == [NOT_PERMITTED, None]


ROW = """
[[channels]]
server = "chat"
to = "topic:ops"
"""


@pytest.mark.requirement("MCPL-7.5-resolve")
async def test_a_scope_that_names_a_channel_is_answered_with_its_id(tmp_path: Path) -> None:
    live = """enabled = ["channels.publish", "channels.observe", "calls"]
[servers.live.scopes."*"]
whitelist = ["#*", "C*"]
[servers.live.scopes.calls]
whitelist = ["#*"]
blacklist = ["C01"]
"""
    calls = {"description": "call people", "uses": ["tools"], "scoped": True}
    server = Puppet("chat", sets={**BOTH, "calls": calls})
    async with scene(tmp_path, server, live=live):

        async def elevated(label: str, feature: str = "channels.publish") -> Frame:
            scope = {"label": label, "payload": {"channel": label}}
            return await server.asked("scope/elevate", {"featureSet": feature, "scope": scope})

        await server.register("C01", label="#general")
        await server.register("C02", "C03", label="#twins")
        ours = "dev.comity/scope"
        found = (await elevated("#general"))["payload"]
        assert found == {
            "channel": "#general",
            ours: {"label": "#general", "channelId": "C01"},
        }
        for label in ("#twins", "#nowhere"):
            assert (await elevated(label))["payload"][ours] == {"label": label}
        assert (await elevated("#general", "calls"))["approved"] is False


@pytest.mark.requirement("MCPL-14.5-thinking", "MCPL-14.6-32017")
async def test_nobody_has_or_says_anything_in_the_channel_of_thoughts(tmp_path: Path) -> None:
    server = Puppet("chat")
    async with scene(tmp_path, server, rows=ROW) as stage:
        (result,) = await server.register("thinking")
        assert (result["accepted"], result["code"]) == (False, NOT_PERMITTED)
        with pytest.raises(MalformedMessage) as refused:
            await stage.api("POST", "send", server="chat", channel="thinking", text="hm")
        assert refused.value.fault.code == NOT_PERMITTED
        (heard,) = await server.hears(message("hm", "thinking"))
        assert (heard["accepted"], heard["code"]) == (False, NOT_PERMITTED)
        assert server.said("channels/publish") == []


@pytest.mark.requirement("MCPL-4.1-chopen", "MCPL-4.1-chclose", "MCPL-14.6-32024")
async def test_channels_are_opened_and_closed_by_the_host(tmp_path: Path) -> None:
    server = Puppet("chat")
    opened = channel("discord:#general", address={"channel": "#general"})
    server.plays["channels/open"] = lambda params: (
        {"channel": opened} if params["address"].get("channel") == "#general" else _refuse()
    )
    server.plays["channels/close"] = lambda _: {"closed": True}
    async with scene(tmp_path, server, rows=ROW) as stage:
        found = await stage.api(
            "POST", "open", server="chat", type="discord", address={"channel": "#general"}
        )
        assert (found["id"], found["state"]) == ("discord:#general", "open")
        assert server.said("channels/open") == [
            {"type": "discord", "address": {"channel": "#general"}, "metadata": {}}
        ]
        with pytest.raises(MalformedMessage) as refused:
            await stage.api("POST", "open", server="chat", type="discord", address={})
        assert refused.value.fault.code == NOT_OPENED

        closed = await stage.api("POST", "close", server="chat", channel="discord:#general")
        assert closed["closed"]
        assert server.said("channels/close") == [{"channelId": "discord:#general"}]
        # Its server cannot open it again by itself.
        await server.register("discord:#general")
        assert await stage.shown() == {("chat", "discord:#general"): "closed"}
        with pytest.raises(MalformedMessage) as gone:
            await stage.api("POST", "send", server="chat", channel="discord:#general", text="x")
        assert gone.value.fault.code == UNKNOWN
        (heard,) = await server.hears(message("hi", "discord:#general"))
        assert heard["code"] == UNKNOWN

        server.plays["channels/open"] = lambda _: {"channel": opened}
        await stage.api("POST", "open", server="chat", channel="discord:#general")
        assert await stage.shown() == {("chat", "discord:#general"): "open"}


def _refuse() -> dict[str, object]:
    raise Error(NOT_OPENED, "no such guild")


@pytest.mark.requirement("MCPL-14.5-moderate")
async def test_what_an_operator_says_is_looked_through_for_secrets_too(tmp_path: Path) -> None:
    server = Puppet("chat")
    secret = "ghp_" + "a1B2c3D4e5F6g7H8i9J0" * 2
    async with scene(tmp_path, server) as stage:
        await server.register("general")
        await stage.api("POST", "send", server="chat", channel="general", text=f"it is {secret}")
        (published,) = server.said("channels/publish")
        assert secret not in str(published)
        assert published["content"][0]["text"].startswith("it is [secret:")


@pytest.mark.requirement("MCPL-14.6-32023")
async def test_a_channel_that_is_not_there_is_unknown(tmp_path: Path) -> None:
    server = Puppet("chat")
    async with scene(tmp_path, server, rows=ROW) as stage:
        for deed, said in (("send", {"text": "x"}), ("close", {}), ("open", {})):
            with pytest.raises(MalformedMessage) as refused:
                await stage.api("POST", deed, server="chat", channel="nowhere", **said)
            assert refused.value.fault.code == UNKNOWN
        with pytest.raises(Unavailable, match="not connected"):
            await stage.api("POST", "send", server="other", channel="general", text="x")
        (heard,) = await server.hears(message("hi", "nowhere"))
        assert (heard["accepted"], heard["code"]) == (False, UNKNOWN)


async def test_two_servers_may_call_their_channels_alike(tmp_path: Path) -> None:
    """D-72: a channel is its server and its id."""
    one, other = Puppet("one"), Puppet("other")
    async with scene(tmp_path, one, other) as stage:
        await one.register("general")
        await other.register("general", label="mine")
        await stage.api("POST", "send", server="other", channel="general", text="hello")
        assert one.said("channels/publish") == []
        assert len(other.said("channels/publish")) == 1
        other.tell("channels/changed", {"removed": ["general"]})
        await other.asked("channels/list", {})
        assert await stage.shown() == {("one", "general"): "open"}


async def test_a_thousand_channels_registered_again_and_again_stay_a_thousand(
    tmp_path: Path,
) -> None:
    server = Puppet("chat")
    ids = [f"c{number}" for number in range(1_000)]
    async with scene(tmp_path, server) as stage:
        for _ in range(20):
            assert all(each["accepted"] for each in await server.register(*ids))
        (more,) = await server.register("one more")
        assert not more["accepted"]
        assert await server.code("channels/register", {"channels": [channel("x")] * 1_001})
        assert len(await stage.shown()) == 1_000
        # Who goes on is held back, and everything else goes on.
        asked = [server.ask("channels/register", {"channels": []}) for _ in range(1_000)]
        answers = await asyncio.gather(*asked)
        assert any("error" in each for each in answers)
        await stage.api("POST", "send", server="chat", channel="c7", text="hello")


async def test_channels_of_a_connection_end_with_it(tmp_path: Path) -> None:
    server = Puppet("chat")
    async with scene(tmp_path, server) as stage:
        await server.register("general")
        server.cut()
        await server.until("featureSets/update", 2)
        assert await server.asked("channels/list", {}) == {"channels": []}
        assert await stage.shown() == {}


async def test_what_is_no_channel_is_refused_whole(tmp_path: Path) -> None:
    server = Puppet("chat")
    wrong: list[dict[str, object]] = [
        {},
        {"channels": "all"},
        {"channels": [channel("fine"), {"id": "a\nb", "type": "x"}]},
    ]
    async with scene(tmp_path, server) as stage:
        for each in wrong:
            assert await server.code("channels/register", each) == -32602
        assert await stage.shown() == {}
