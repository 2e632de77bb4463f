"""Events of servers: asked for once, bounded, cut off when they are too many, and theirs alone."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

import msgspec
import pytest

from comity.errors import Unavailable
from comity.events.bus import EventBus
from comity.events.model import LISTENED, MAX_PER_PARTY, NOTICE, SUBSCRIBE, UNSUBSCRIBE
from comity.events.server_events import EventRateLimit, ServerEventSources
from comity.mcp import jsonrpc, protocol
from comity.mcp.jsonrpc import Frame
from comity.toolkit.resilience import RateLimit
from tests.events.event_house import ANA, Ear, a_plane
from tests.support.carriers import (
    SILENCE,
    Params,
    Script,
    ScriptedCarrier,
    discovered,
    hello,
    params_of,
    until,
)
from tests.support.cases import loop_over
from tests.support.desks import Front
from tests.support.server_house import AT_ONCE as NO_PAUSE
from tests.support.server_house import options

TERMS: Params = {"version": "0.3.0", "extensions": ["bidirectional"]}
CHANNELS = ["model.usage", "model.limit", "tool.completed"]
QUICK = EventRateLimit(RateLimit(10, 3600.0, 10), timedelta(0))
LONG = EventRateLimit(RateLimit(10, 3600.0, 10), timedelta(hours=1))


def answers(params: Params) -> object:
    names = msgspec.convert(params["channels"], list[str])
    found = [each for each in CHANNELS for name in names if name in (each, "*", "model.*")]
    return {"subscribed": found, "unsupported": [], "subscription_id": f"s-{names[0]}"}


def handshake(reply: object = answers) -> Script:
    said = hello(tools={}, mgp=TERMS)
    replies = {protocol.INITIALIZE: said, SUBSCRIBE: reply, UNSUBSCRIBE: {}}
    return Script(starts_process=True, replies=replies)


def modern() -> Script:
    said = discovered(tools={}, mgp=TERMS)
    return Script(handshake=False, modern=True, replies={protocol.DISCOVER: said})


@asynccontextmanager
async def telling(
    flood: EventRateLimit = LONG, **scripts: Script
) -> AsyncGenerator[tuple[EventBus, ServerEventSources, Front]]:
    front = Front(scripts, how=options(backoff=NO_PAUSE))
    events = a_plane()
    told = ServerEventSources(events, front.servers, flood)
    await front.ready()
    try:
        yield events, told, front
    finally:
        await told.stop()
        await front.servers.stop()


def usage(name: str | None = None, **other: object) -> Frame:
    said = {
        "subscription_id": "s-model.usage",
        "channel": "model.usage",
        "timestamp": "2026-01-01T12:00:00Z",
        "data": {"n": 1},
        **({} if name is None else {"id": name}),
        **other,
    }
    return jsonrpc.make_notification(NOTICE, said)


def asked_of(carrier: ScriptedCarrier, method: str = SUBSCRIBE) -> list[object]:
    return [params_of(frame).get("channels") for frame in carrier.asked(method)]


async def test_what_is_followed_is_asked_for_once_and_given_up_with_the_last() -> None:
    async with telling(files=handshake()) as (events, told, front):
        first, second = Ear(), Ear()
        one = await first.follow(events, "model.usage").settled()
        other = await second.follow(events, "model.usage", actor=ANA).settled()
        assert one.subscribed == other.subscribed == ("model.usage",)
        server = front.scripts["files"].last
        assert asked_of(server) == [["model.usage"]]
        server.says(usage("1"))
        assert (first.ids, second.ids, first.heard[0].source) == (["1"], ["1"], "files")
        one.close()
        assert len(told) == 1
        other.close()
        await until(lambda: server.asked(UNSUBSCRIBE))
        assert params_of(server.asked(UNSUBSCRIBE)[0])["subscription_id"] == "s-model.usage"
        assert len(told) == 0
        server.says(usage("2"))
        assert first.ids == ["1"]


async def test_a_server_that_one_may_not_know_is_not_even_asked() -> None:
    async with telling(files=handshake(), mail=handshake()) as (events, _, front):
        ear = Ear()
        found = await ear.follow(events, "model.*").settled()
        assert found.subscribed == ("model.limit", "model.tool_budget", "model.usage")
        assert asked_of(front.scripts["files"].last) == [["model.*"]]
        assert not asked_of(front.scripts["mail"].last)
        await Ear().follow(events, "model.*", actor=ANA).settled()
        front.scripts["mail"].last.says(usage("m", subscription_id="s-model.*"))
        assert not ear.heard


@loop_over(
    "reply",
    [
        Unavailable("Method not found"),
        {},
        {"subscribed": [], "subscription_id": "s"},
        {"subscribed": ["tool.completed", "other.thing"], "subscription_id": "s"},
        {"subscribed": ["model.usage"], "subscription_id": "x" * 1000},
    ],
)
async def test_a_server_without_the_channel_offers_none_and_is_not_asked_again(
    reply: object,
) -> None:
    async with telling(files=handshake(reply)) as (events, _, front):
        found = await Ear().follow(events, "model.usage").settled()
        assert (found.subscribed, found.unsupported) == ((), ("model.usage",))
        await Ear().follow(events, "model.usage").settled()
        assert len(asked_of(front.scripts["files"].last)) == 1


async def test_a_silent_server_holds_up_nobody_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comity.events.server_events.ANSWER_SECONDS", 0.05)
    async with telling(files=handshake(SILENCE)) as (events, _, _front):
        found = await Ear().follow(events, "model.usage", "tool.started").settled()
        assert (found.subscribed, found.unsupported) == (("tool.started",), ("model.usage",))


@loop_over(
    "said",
    [
        usage("x", channel="tool.completed", subscription_id="s-model.*"),
        usage("x", subscription_id="s-other"),
        usage("x", subscription_id=""),
        usage("x", channel="billing.total"),
        usage("x", data=[1]),
        usage("x", data={"much": "x" * 20_000}),
        usage("", data={}),
        jsonrpc.make_notification(NOTICE),
    ],
)
async def test_what_nobody_asked_a_server_for_is_passed_over(said: Frame) -> None:
    async with telling(files=handshake()) as (events, _, front):
        ear = Ear()
        await ear.follow(events, "*", "model.usage", "model.*").settled()
        server = front.scripts["files"].last
        server.says(said)
        server.says(usage("good"))
        assert ear.ids == ["good"]


async def test_a_server_that_floods_is_cut_off_and_that_is_told() -> None:
    async with telling(files=handshake()) as (events, told, front):
        ear = Ear()
        await ear.follow(events, "model.usage", "system.source_cut_off").settled()
        server = front.scripts["files"].last
        for number in range(1000):
            server.says(usage(str(number)))
        assert ear.ids[:10] == [str(number) for number in range(10)]
        (cut,) = ear.heard[10:]
        assert (cut.channel, cut.data, cut.source) == (
            "system.source_cut_off",
            {"server_id": "files"},
            "",
        )
        assert len(told) == 0
        await until(lambda: server.asked(UNSUBSCRIBE))
        late = await Ear().follow(events, "model.usage").settled()
        assert late.unsupported == ("model.usage",)


async def test_a_server_that_was_cut_off_is_heard_again_after_a_while() -> None:
    async with telling(QUICK, files=handshake()) as (events, told, front):
        await Ear().follow(events, "model.usage").settled()
        server = front.scripts["files"].last
        for number in range(11):
            server.says(usage(str(number)))
        await until(lambda: len(asked_of(server)) == 2)
        assert len(told) == 1


async def test_a_server_that_starts_again_is_asked_again() -> None:
    async with telling(files=handshake()) as (events, _, front):
        ear = Ear()
        await ear.follow(events, "model.usage").settled()
        first = front.scripts["files"].last
        first.dies()
        await until(lambda: front.scripts["files"].last is not first)
        await until(lambda: asked_of(front.scripts["files"].last))
        await until(lambda: "files" in {server.name for server in front.servers})
        second = front.scripts["files"].last

        def heard() -> bool:
            second.says(usage("again"))
            return bool(ear.heard)

        await until(heard)
        assert ear.ids == ["again"]


async def test_one_party_brings_in_so_many_names_and_there_is_room_for_others() -> None:
    async with telling(files=handshake()) as (events, _, front):
        names = [f"own.n{number}" for number in range(MAX_PER_PARTY + 20)]
        for some in (names[:50], names[50:]):
            await Ear().follow(events, *some).settled()
        assert len(asked_of(front.scripts["files"].last)) == MAX_PER_PARTY
        found = await Ear().follow(events, "model.usage", actor=ANA).settled()
        assert found.subscribed == ("model.usage",)


async def test_a_follower_that_leaves_before_anybody_was_asked_leaves_nothing_behind() -> None:
    async with telling(files=handshake()) as (events, told, front):
        following = Ear().follow(events, "model.usage")
        following.close()
        await following.settled()
        await until(lambda: not len(told))
        server = front.scripts["files"].last
        assert len(asked_of(server)) <= 1


async def test_in_the_modern_era_a_stream_is_the_subscription() -> None:
    async with telling(files=modern()) as (events, _, front):
        ear = Ear()
        following = ear.follow(events, "model.usage")
        (carrier,) = front.scripts["files"].open

        def listening() -> list[Frame]:
            return [
                frame
                for frame in carrier.asked(protocol.LISTEN)
                if LISTENED in str(params_of(frame).get("notifications"))
            ]

        await until(listening)
        (asked,) = listening()
        assert params_of(asked)["notifications"] == {LISTENED: {"channels": ["model.usage"]}}
        agreed = {LISTENED: answers({"channels": ["model.usage"]})}
        carrier.says(
            jsonrpc.make_notification(protocol.ACKNOWLEDGED, {"notifications": agreed}), asked
        )
        found = await following.settled()
        assert found.subscribed == ("model.usage",)
        carrier.says(usage("1"), asked)
        assert ear.ids == ["1"]
        following.close()
        await until(lambda: carrier.abandoned)


async def test_a_modern_server_that_agrees_to_other_things_only_has_no_channel() -> None:
    async with telling(files=modern()) as (events, _, front):
        following = Ear().follow(events, "model.usage")
        (carrier,) = front.scripts["files"].open
        await until(lambda: len(carrier.asked(protocol.LISTEN)) >= 1)
        for asked in carrier.asked(protocol.LISTEN):
            carrier.says(
                jsonrpc.make_notification(protocol.ACKNOWLEDGED, {"notifications": {}}), asked
            )
        assert (await following.settled()).unsupported == ("model.usage",)


async def test_a_server_that_did_not_agree_on_it_is_never_asked() -> None:
    plain = Script(starts_process=True)
    async with telling(files=plain) as (events, _, front):
        found = await Ear().follow(events, "*").settled()
        assert "tool.started" in found.subscribed
        assert not asked_of(front.scripts["files"].last)
