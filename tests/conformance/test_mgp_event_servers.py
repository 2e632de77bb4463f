"""What servers tell, passed on to those who may hear it. (MGP §13.2, §13.3, §13.5, D-99)"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from comity.events.standard_channels import STANDARD
from tests.conformance.conftest import standing
from tests.conformance.ways import Frame, House, Talk, on_pipes, on_port
from tests.interop.hand_client import SECONDS
from tests.interop.processes import http_server

BOTH: Frame = {"mgp": {"version": "0.3.0", "extensions": ["bidirectional"]}}
NOTICE = "notifications/mgp.event"
USAGE: Frame = {"channel": "model.token_usage", "data": {"tokens_used": 1500, "server_id": ""}}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with http_server(on_port("eventful"), {}) as far:
        servers = {
            "near": on_pipes("eventful"),
            "plain": on_pipes("eventful", EXTENSIONS="[]"),
            "stern": on_pipes("eventful", FAMILIES="no", CHANNELS='["model.stern"]'),
            "far": {"type": "http", "url": f"{far}/mcp"},
        }
        with standing(tmp_path_factory.mktemp("eventful"), servers) as house:
            yield house


@asynccontextmanager
async def hearing(
    house: House, server: str, *channels: str, **more: object
) -> AsyncGenerator[tuple[Talk, Frame]]:
    async with house.among_all(server).talk(BOTH) as talk:
        await talk.client.listen()
        yield talk, await subscribe(talk, *channels, **more)


async def subscribe(talk: Talk, *channels: str, **more: object) -> Frame:
    asked = {"channels": list(channels), **more}
    return (await talk.client.request("mgp/events/subscribe", asked)).result


async def emit(talk: Talk, *events: Frame, **more: object) -> int:
    """How often the server told it."""
    exchange = await talk.call("emit", {"events": list(events), **more})
    return exchange.result["structuredContent"]["told"]


async def told(talk: Talk) -> Frame:
    return (await talk.told(NOTICE))["params"]


async def requests(talk: Talk, method: str) -> list[Frame]:
    """What the server was asked by the gateway."""
    return [each["params"] for each in await talk.seen() if each["method"] == method]


@pytest.mark.requirement("MGP-13.2-subscribe", "MGP-13.3-event", "MGP-13.5-model")
@pytest.mark.requirement("MGP-2.2-ext-bidirectional")
@pytest.mark.parametrize("server", ["near", "far"])
async def test_a_servers_event_reaches_who_subscribed_with_its_data_and_its_name(
    house: House, server: str
) -> None:
    async with hearing(house, server, "model.token_usage") as (talk, answer):
        assert answer["subscribed"] == ["model.token_usage"]
        await emit(talk, {**USAGE, "id": f"{server}-1", "severity": "error"})
        event = await told(talk)
        assert event == {
            "subscription_id": answer["subscription_id"],
            "channel": "model.token_usage",
            "timestamp": "2026-11-02T08:05:00.000Z",
            "severity": "error",
            "id": f"{server}-1",
            "data": USAGE["data"],
            "server_id": server,
        }
        asked = await requests(talk, "mgp/events/subscribe")
        assert asked[-1]["channels"] == ["model.token_usage"]


@pytest.mark.requirement("MGP-13.2-subscribe-result", "MGP-13.5-noassume")
async def test_all_channels_that_there_are_anywhere_are_found_by_their_family(
    house: House,
) -> None:
    async with hearing(house, "near", "model.*", "model.stern", "model.none") as (_, answer):
        assert answer["subscribed"] == [
            *("model.rate_limit", "model.stern", "model.token_usage", "model.tool_budget")
        ]
        assert answer["unsupported"] == ["model.none"]
    async with hearing(house, "near", "*") as (_, answer):
        # A server that does not understand a family has none to offer by it.
        assert answer["subscribed"] == sorted([*STANDARD, "model.rate_limit", "model.token_usage"])


async def test_what_several_follow_is_subscribed_to_once_and_given_up_with_the_last(
    house: House,
) -> None:
    async with AsyncExitStack() as stack:
        first, _ = await stack.enter_async_context(hearing(house, "near", "model.rate_limit"))
        before = len(await requests(first, "mgp/events/unsubscribe"))
        second, answer = await stack.enter_async_context(hearing(house, "near", "model.rate_limit"))
        asked = await requests(first, "mgp/events/subscribe")
        assert len([each for each in asked if each["channels"] == ["model.rate_limit"]]) == 1
        assert await emit(first, {"channel": "model.rate_limit", "data": {"n": 1}}) == 1
        assert (await told(first))["data"] == (await told(second))["data"] == {"n": 1}
        named = {"subscription_id": answer["subscription_id"]}
        await second.client.request("mgp/events/unsubscribe", named)
        assert len(await requests(first, "mgp/events/unsubscribe")) == before
        assert await emit(first, {"channel": "model.rate_limit", "data": {"n": 2}}) == 1
        assert (await told(first))["data"] == {"n": 2}
    async with house.among_all("near").talk() as talk:
        await until_asked(talk, "mgp/events/unsubscribe", before + 1)
        assert await emit(talk, {"channel": "model.rate_limit", "data": {}}) == 0


async def until_asked(talk: Talk, method: str, number: int) -> None:
    async with asyncio.timeout(SECONDS):
        while len(await requests(talk, method)) < number:
            await asyncio.sleep(0.05)


async def test_the_same_event_is_told_once_by_its_id_or_by_what_it_says(house: House) -> None:
    """Also where it comes by two subscriptions, of a channel and of its family. (D-99)"""
    async with hearing(house, "near", "model.*", "model.token_usage") as (talk, _):
        again = {**USAGE, "id": "twice"}
        assert await emit(talk, again, again) == 4
        assert await emit(talk, {**USAGE, "data": {"n": 1}}, {**USAGE, "data": {"n": 1}}) == 4
        await emit(talk, {**USAGE, "id": "last"})
        heard = [await told(talk) for _ in range(3)]
        assert [each["data"] for each in heard] == [USAGE["data"], {"n": 1}, USAGE["data"]]
        assert [heard[0]["id"], heard[2]["id"]] == ["twice", "last"]


async def test_a_server_that_repeats_an_id_of_another_server_is_heard_all_the_same(
    house: House,
) -> None:
    async with (
        hearing(house, "near", "model.token_usage") as (near, _),
        house.among_all("far").talk() as far,
    ):
        await emit(near, {**USAGE, "id": "same"})
        await emit(far, {**USAGE, "id": "same"})
        heard = [await told(near), await told(near)]
        assert [each["server_id"] for each in heard] == ["near", "far"]


@pytest.mark.requirement("MGP-13.2-severity")
async def test_what_matters_less_than_wanted_is_not_passed_on(house: House) -> None:
    least = {"min_severity": "error"}
    async with hearing(house, "near", "model.token_usage", filter=least) as (talk, _):
        await emit(talk, {**USAGE, "id": "mild"}, {**USAGE, "id": "bad", "severity": "critical"})
        assert (await told(talk))["id"] == "bad"


async def test_a_server_cannot_speak_in_the_gateways_name(house: House) -> None:
    """Neither on its channels, nor without being asked, nor under a name that is not its own."""
    async with hearing(house, "near", "*") as (talk, _):
        forged = {"channel": "tool.completed", "data": {"actor": "person:local"}, "id": "forged"}
        system = {"channel": "system.server_state", "data": {"new_state": "error"}, "id": "state"}
        unasked: Frame = {
            "channel": "billing.total",
            "data": {},
            "subscription_id": "none",
            "id": "u",
        }
        named = {**USAGE, "server_id": "", "source": "", "id": "named"}
        broken = {"channel": "model.token_usage", "data": ["no object"]}
        await emit(talk, forged, system, unasked, broken, named, unasked=True)
        heard: list[Frame] = []
        while not heard or heard[-1]["id"] != "named":
            heard.append(await told(talk))
        assert heard[-1]["server_id"] == "near"
        assert not {"forged", "state", "u"} & {each["id"] for each in heard}
        assert all("server_id" not in each for each in heard[:-1])


async def test_a_server_that_comes_again_is_subscribed_to_again(house: House) -> None:
    async with hearing(house, "near", "model.token_usage", "system.server_state") as (talk, _):
        await talk.call("die")
        async with asyncio.timeout(SECONDS):
            while (await told(talk))["data"].get("new_state") != "connected":
                pass
        await until_asked(talk, "mgp/events/subscribe", 1)
        await emit(talk, {**USAGE, "id": "reborn"})
        assert (await told(talk))["id"] == "reborn"


async def test_at_its_own_door_a_client_speaks_with_the_server_itself(house: House) -> None:
    async with house.own("far").talk(BOTH) as talk:
        await talk.client.listen()
        answer = await subscribe(talk, "model.token_usage")
        assert answer["subscription_id"].startswith("own-")
        await emit(talk, {**USAGE, "id": "direct"})
        event = await told(talk)
        assert event["subscription_id"] == answer["subscription_id"]
        assert "server_id" not in event
