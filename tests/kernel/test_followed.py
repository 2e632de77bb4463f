"""Resources that handshake clients subscribe to, at modern servers."""

import copy

import pytest

from comity.kernel import following
from comity.kernel.sessions import Session
from comity.wire import jsonrpc, mcp
from comity.wire.errors import EXHAUSTED, INVALID_PARAMS, METHOD_NOT_FOUND
from tests.kernel.bridged import Bridged, bridged, modern_server
from tests.kernel.carriers import (
    params_of,
    settled,
    until,
)
from tests.kernel.follows import (
    A,
    B,
    agrees,
    each_transport,
    leave_out_pauses,
    listened,
    listens,
    says,
)
from tests.kernel.refused import kind_of


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_pauses(monkeypatch)


async def followed(house: Bridged, session: Session, uri: str) -> None:
    asked = house.front.ask(session, mcp.SUBSCRIBE, {"uri": uri})
    before = listened(house.script).count(uri)
    if not any(session_follows(house, uri)):
        await until(lambda: listened(house.script).count(uri) > before)
        agrees(house.script, uri)
    assert await asked.result() == {}


def session_follows(house: Bridged, uri: str) -> list[bool]:
    return [True] if uri in listened(house.script) and len(house.front.bridge) else []


def heard(session: Session) -> list[object]:
    return [params_of(jsonrpc.decode(data)) for data in session.standalone.take()]


@each_transport
async def test_a_subscriber_hears_of_its_resource_until_it_unsubscribes(process: bool) -> None:
    async with bridged(modern_server(process)) as house:
        session = await house.front.client()
        await followed(house, session, A)
        says(house.script, A, mcp.RESOURCE_UPDATED, {"uri": A})
        assert heard(session) == [{"uri": A}]
        listen = listens(house.script, A)
        assert await house.front.ask(session, mcp.UNSUBSCRIBE, {"uri": A}).result() == {}
        await until(lambda: len(house.front.bridge) == 0)
        (carrier,) = house.script.open
        await until(lambda: listen.id in carrier.abandoned or process)
        assert await house.front.ask(session, mcp.UNSUBSCRIBE, {"uri": A}).result() == {}


async def test_a_subscriber_hears_which_part_of_its_resource_was_updated() -> None:
    async with bridged(modern_server()) as house:
        session = await house.front.client()
        await followed(house, session, A)
        says(house.script, A, mcp.RESOURCE_UPDATED, {"uri": f"{A}/part"})
        says(house.script, A, mcp.RESOURCE_UPDATED, {"uri": 7})
        assert heard(session) == [{"uri": f"{A}/part"}, {"uri": A}]
        await house.front.sessions.end(session)


async def test_sessions_share_one_listening_and_the_last_to_leave_ends_it() -> None:
    async with bridged(modern_server()) as house:
        one, other = await house.front.client(), await house.front.client()
        await followed(house, one, A)
        await followed(house, other, A)
        await followed(house, other, A)
        assert listened(house.script) == [A]
        says(house.script, A, mcp.RESOURCE_UPDATED, {"uri": A})
        assert heard(one) == heard(other) == [{"uri": A}]
        await house.front.sessions.end(one)
        assert len(house.front.bridge) == 1
        await house.front.sessions.end(other)
        assert len(house.front.bridge) == 0
        (carrier,) = house.script.open
        await until(lambda: carrier.abandoned)


async def test_who_leaves_and_comes_back_at_once_is_heard_of_again() -> None:
    async with bridged(modern_server()) as house:
        session = await house.front.client()
        await followed(house, session, A)
        leaving = house.front.ask(session, mcp.UNSUBSCRIBE, {"uri": A})
        coming = house.front.ask(session, mcp.SUBSCRIBE, {"uri": A})
        await leaving.result()
        await until(lambda: listened(house.script) == [A, A])
        agrees(house.script, A)
        await coming.result()
        await settled()
        says(house.script, A, mcp.RESOURCE_UPDATED, {"uri": A})
        assert heard(session) == [{"uri": A}]
        await house.front.sessions.end(session)


async def test_a_listening_that_ends_is_begun_again_and_everything_may_have_changed() -> None:
    async with bridged(modern_server()) as house:
        session = await house.front.client()
        await followed(house, session, A)
        (carrier,) = house.script.open
        carrier.answers(listens(house.script, A), {"resultType": "complete"})
        await until(lambda: listened(house.script) == [A, A])
        agrees(house.script, A)
        assert heard(session) == [{"uri": A}]
        await house.front.sessions.end(session)


async def test_a_server_that_would_not_is_an_error_for_who_asked() -> None:
    async with bridged(modern_server()) as house:
        session = await house.front.client()
        asked = house.front.ask(session, mcp.SUBSCRIBE, {"uri": A})
        await until(lambda: listened(house.script) == [A])
        (carrier,) = house.script.open
        listen = listens(house.script, A)
        assert isinstance(listen.id, int)
        carrier.says(jsonrpc.failure(listen.id, METHOD_NOT_FOUND, "no subscriptions"), listen)
        error = await asked.error()
        assert error.code == INVALID_PARAMS.code
        assert "no subscriptions" in error.message
        assert len(house.front.bridge) == 0


async def test_a_server_that_stays_silent_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "AGREE_SECONDS", 0.01)
    async with bridged(modern_server()) as house:
        session = await house.front.client()
        asked = house.front.ask(session, mcp.SUBSCRIBE, {"uri": A})
        assert kind_of(await asked.error()) == "upstream_slow"
        assert len(house.front.bridge) == 0


async def test_a_session_that_ends_while_its_server_thinks_follows_nothing() -> None:
    async with bridged(modern_server()) as house:
        session = await house.front.client()
        asked = house.front.ask(session, mcp.SUBSCRIBE, {"uri": A})
        await until(lambda: listened(house.script) == [A])
        await house.front.sessions.end(session)
        await asked.asking
        assert len(house.front.bridge) == 0
        again = house.front.ask(session, mcp.SUBSCRIBE, {"uri": A})
        await again.asking
        assert listened(house.script) == [A]


async def test_nobody_can_follow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "MOST_FOLLOWED", 2)
    async with bridged(modern_server()) as house:
        session = await house.front.client()
        for uri in (A, B):
            await followed(house, session, uri)
        third = house.front.ask(session, mcp.SUBSCRIBE, {"uri": "file:///c"})
        assert kind_of(await third.error()) == EXHAUSTED.error_type
        assert len(house.front.bridge) == 2
        await house.front.sessions.end(session)


async def test_a_server_that_took_anothers_place_is_listened_to_for_all_who_follow() -> None:
    async with bridged(modern_server()) as house:
        one, other = await house.front.client(), await house.front.client()
        await followed(house, one, A)
        server = house.front.servers.get("srv")
        assert server is not None
        replaced = copy.copy(server.reached)
        server.reached = replaced
        asked = house.front.ask(other, mcp.SUBSCRIBE, {"uri": A})
        await until(lambda: listened(house.script) == [A, A])
        agrees(house.script, A)
        await asked.result()
        says(house.script, A, mcp.RESOURCE_UPDATED, {"uri": A})
        assert heard(one) == heard(other) == [{"uri": A}]
        for session in (one, other):
            await house.front.sessions.end(session)
