"""MCP Events at the endpoint of all servers: listed, subscribed to and polled for."""

from datetime import timedelta
from typing import Any

import pytest

from comity.errors import EVENT_NOT_FOUND, EVENTS_FORBIDDEN, MalformedMessage
from comity.events.methods import MAX_BUFFERED_EVENTS, McpEventMethods
from comity.events.model import GatewayEvent, Severity
from comity.mcp import jsonrpc
from comity.mcp.actors import ANONYMOUS, Actor
from comity.sessions.calls import Call
from comity.sessions.client_streams import ClientStream
from comity.sessions.methods import MethodRequest, MethodTable
from tests.support.hooked import ANA, BEA, NOW, URL, Hooked

PLACE = {"mode": "webhook", "url": URL}


class Methods(MethodTable):
    """Asks what is registered, without an endpoint."""

    async def ask(self, method: str, actor: Actor = ANA, /, **params: Any) -> dict[str, Any]:
        frame = jsonrpc.make_request(1, method, params)
        stream = ClientStream()
        stream.actor = actor
        call = Call(frame, stream, None, 0.0)
        return await self.answer(MethodRequest(call, None, None, frame)) or {}


@pytest.fixture
def hooked() -> Hooked:
    return Hooked()


@pytest.fixture
def events(hooked: Hooked) -> McpEventMethods:
    return McpEventMethods(hooked.plane, hooked.subscribing)


@pytest.fixture
def methods(events: McpEventMethods) -> Methods:
    methods = Methods()
    methods.register(events)
    return methods


def happened(number: int, actor: Actor = ANA) -> GatewayEvent:
    about = ("files", "read", actor.party)
    return GatewayEvent(f"e{number}", "tool.completed", NOW, Severity.INFO, {"n": number}, *about)


async def numbers(methods: Methods, cursor: str | None, **more: Any) -> tuple[list[int], Any]:
    page = await methods.ask("events/poll", name="tool.*", cursor=cursor, **more)
    return [each["data"]["n"] for each in page["events"]], page


async def test_who_shows_nothing_hears_nothing(methods: Methods) -> None:
    for name, params in (("events/list", {}), ("events/poll", {"name": "*"})):
        with pytest.raises(MalformedMessage) as refused:
            await methods.ask(name, ANONYMOUS, **params)
        assert refused.value.fault is EVENTS_FORBIDDEN


async def test_a_subscription_is_renewed_and_says_how_it_went(
    methods: Methods, hooked: Hooked
) -> None:
    first = await methods.ask("events/subscribe", name="tool.*", delivery=PLACE)
    assert first["secret"].startswith("whsec_")
    assert "deliveryStatus" not in first
    await hooked.wait(hooked.hooks.subscriptions[first["id"]], "e1")
    await hooked.round()
    again = await methods.ask("events/subscribe", name="tool.*", delivery=PLACE)
    assert again["id"] == first["id"]
    assert "secret" not in again
    assert again["deliveryStatus"] == {
        "active": True,
        "lastDeliveryAt": "2026-07-28T12:00:00.000Z",
        "lastError": None,
    }
    assert await methods.ask("events/unsubscribe", name="tool.*", delivery=PLACE) == {}
    with pytest.raises(MalformedMessage) as gone:
        await methods.ask("events/unsubscribe", name="tool.*", delivery=PLACE)
    assert gone.value.fault is EVENT_NOT_FOUND


async def test_an_event_that_is_not_there_cannot_be_subscribed_to(methods: Methods) -> None:
    with pytest.raises(MalformedMessage) as unknown:
        await methods.ask("events/subscribe", name="no.such", delivery=PLACE)
    assert unknown.value.fault is EVENT_NOT_FOUND


async def test_a_poll_goes_on_where_the_last_one_ended(methods: Methods, hooked: Hooked) -> None:
    found, page = await numbers(methods, None)
    assert (found, page["truncated"]) == ([], False)
    for number in range(3):
        hooked.plane.publish(happened(number))
    hooked.plane.publish(happened(9, BEA))
    found, page = await numbers(methods, page["cursor"], maxEvents=2)
    assert (found, page["hasMore"], page["truncated"]) == ([0, 1], True, False)
    found, page = await numbers(methods, page["cursor"])
    assert (found, page["hasMore"]) == ([2], False)
    again, _ = await numbers(methods, page["cursor"])
    assert again == []


async def test_what_is_too_much_to_wait_is_told_to_be_missing(
    methods: Methods, hooked: Hooked
) -> None:
    _, page = await numbers(methods, None)
    for number in range(MAX_BUFFERED_EVENTS + 2):
        hooked.plane.publish(happened(number))
    found, page = await numbers(methods, page["cursor"])
    assert (found[0], page["truncated"]) == (2, True)
    for strange in ("elsewhere.1", "nonsense", f"{page['cursor'].partition('.')[0]}.999999"):
        found, page = await numbers(methods, strange)
        assert (found, page["truncated"]) == ([], True)


async def test_who_stops_polling_is_forgotten(
    methods: Methods, hooked: Hooked, events: McpEventMethods
) -> None:
    await numbers(methods, None)
    assert len(hooked.plane) == 1
    events.drop_idle_buffers()
    assert len(hooked.plane) == 1
    hooked.now += timedelta(minutes=6)
    events.drop_idle_buffers()
    assert len(hooked.plane) == 0
