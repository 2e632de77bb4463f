"""Links shared by clients with the same terms: opened once, for those who are there, and closed."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest
from msgspec import Raw

from comity.kernel.links import Link
from comity.kernel.sessions import Session
from comity.kernel.sharing import Sharers
from comity.kernel.terms import (
    MOST_TERMS,
    STAND_IN,
    Shared,
    SharedLinks,
    extended_terms,
    greeting,
    with_stand_in,
)
from comity.wire import jsonrpc, mcp
from comity.wire.errors import EXHAUSTED, MalformedMessage, Unavailable
from comity.wire.jsonrpc import LIMITS
from comity.wire.mcp import Era
from tests.kernel.carriers import SILENCE, Script, params_of, settled, until

WITHIN = timedelta(seconds=5)
MGP = {"mgp": {"version": "0.6"}}


def _no_matter(link: Link, because: str) -> None: ...


class Inn:
    """One stdio server with the gateway's own link to it."""

    def __init__(self) -> None:
        self.script = Script(costs_a_process=True)
        self.plain = self._make(_no_matter)
        self.links = SharedLinks("srv", WITHIN, self._make)

    def _make(self, gone: Callable[[Link, str], None]) -> Shared:
        sharers = Sharers(None, gone)
        return Shared(Link("srv", self.script.carrier(Era.HANDSHAKE), sharers, LIMITS), sharers)

    async def find(self, session: Session) -> Shared:
        async with asyncio.timeout(10):
            return await self.links.find(session, self.plain)

    @property
    def opened(self) -> int:
        """Links beside the gateway's own."""
        return len(self.script.carriers) - 1


def client(**capabilities: object) -> Session:
    session = Session("", 0)
    session.introduce({"capabilities": jsonrpc.to_raw(capabilities), "x": Raw(b"1")})
    return session


async def test_plain_clients_share_the_gateways_own_link() -> None:
    inn = Inn()
    clients = [client(), client(sampling={}, roots={"listChanged": True}), client(experimental={})]
    assert [await inn.find(each) for each in clients] == [inn.plain] * 3
    assert inn.opened == 0
    assert len(inn.plain.sharers) == 3


async def test_clients_with_equal_extended_terms_share_and_others_do_not() -> None:
    inn = Inn()
    one, same = client(mgp={"a": 1, "b": 2}), client(mgp={"b": 2, "a": 1})
    other, more = client(mgp={"a": 2}), client(mgp={"a": 1, "b": 2}, sampling={})
    first = await inn.find(one)
    assert await inn.find(same) is first
    assert await inn.find(one) is first
    found = {id(await inn.find(each)) for each in (other, more)}
    assert len(found | {id(first)}) == 3
    assert inn.opened == 3
    assert first is not inn.plain


async def test_another_version_is_another_set_of_terms() -> None:
    old = client(**MGP)
    old.version = "2024-11-05"
    assert extended_terms(old) != extended_terms(client(**MGP))


async def test_a_link_is_greeted_with_what_its_first_client_said() -> None:
    inn = Inn()
    await inn.find(client(**MGP))
    (asked,) = inn.script.last.asked(mcp.INITIALIZE)
    assert params_of(asked) == {"capabilities": MGP, "x": 1}


async def test_clients_that_come_at_once_open_one_link() -> None:
    inn = Inn()
    async with asyncio.timeout(10):
        found = await asyncio.gather(*(inn.find(client(**MGP)) for _ in range(5)))
    assert inn.opened == 1
    assert len(found[0].sharers) == 5


async def test_a_link_is_closed_when_the_last_of_its_clients_leaves() -> None:
    inn = Inn()
    first, second = client(**MGP), client(**MGP)
    shared = await inn.find(first)
    await inn.find(second)
    await first.close()
    await settled()
    assert shared.link.is_open
    await second.close()
    await until(lambda: not shared.link.is_open)
    assert inn.script.open == []
    assert await inn.find(client(**MGP)) is not shared


async def test_the_gateways_own_link_stays_when_all_have_left() -> None:
    inn = Inn()
    await inn.plain.link.open()
    session = client()
    await inn.find(session)
    await session.close()
    await settled()
    assert inn.plain.link.is_open
    assert len(inn.plain.sharers) == 0


async def test_what_only_who_left_followed_is_unsubscribed() -> None:
    inn = Inn()
    await inn.plain.link.open()
    session, other = client(), client()
    for each in (session, other):
        (await inn.find(each)).sharers.follow(each, "x:1")
    inn.plain.sharers.follow(session, "x:2")
    await session.close()
    await settled()
    carrier = inn.script.carriers[0]
    assert [params_of(frame) for frame in carrier.asked(mcp.UNSUBSCRIBE)] == [{"uri": "x:2"}]
    await inn.plain.link.close()
    await settled()


async def test_there_are_only_so_many_kinds_of_clients() -> None:
    inn = Inn()
    kinds = [client(mgp={"n": number}) for number in range(MOST_TERMS + 1)]
    opening = [asyncio.ensure_future(inn.find(each)) for each in kinds]
    async with asyncio.timeout(10):
        found = await asyncio.gather(*opening, return_exceptions=True)
    (refused,) = [each for each in found if isinstance(each, BaseException)]
    assert isinstance(refused, Unavailable)
    assert refused.fault is EXHAUSTED
    assert inn.opened == MOST_TERMS
    await kinds[0].close()
    await inn.find(kinds[-1])


async def test_a_link_that_died_is_opened_again_and_the_dead_one_forgotten() -> None:
    inn = Inn()
    session = client(**MGP)
    for number in range(1, 6):
        shared = await inn.find(session)
        assert (inn.opened, len(session.farewells)) == (number, 1)
        assert session.shared == {"srv": shared.link}
        inn.script.last.dies()


async def test_a_client_that_changes_its_terms_leaves_the_link_it_had() -> None:
    inn = Inn()
    session = client(**MGP)
    first = await inn.find(session)
    session.introduce({"capabilities": jsonrpc.to_raw({"mgp": {"version": "2"}})})
    second = await inn.find(session)
    assert second is not first
    await until(lambda: not first.link.is_open)
    await session.close()
    await until(lambda: not second.link.is_open)


async def test_a_link_whose_only_client_left_meanwhile_is_not_kept() -> None:
    inn = Inn()
    inn.script.replies[mcp.INITIALIZE] = SILENCE
    session = client(**MGP)
    finding = asyncio.ensure_future(inn.find(session))
    await settled()
    await session.close()
    inn.script.last.answers(inn.script.last.asked(mcp.INITIALIZE)[0], _welcome())
    with pytest.raises(Unavailable):
        await finding
    assert inn.script.open == []


async def test_a_link_whose_client_gave_up_waiting_is_that_clients_all_the_same() -> None:
    inn = Inn()
    inn.script.replies[mcp.INITIALIZE] = SILENCE
    session = client(**MGP)
    finding = asyncio.ensure_future(inn.find(session))
    await settled()
    finding.cancel()
    await asyncio.wait([finding])
    inn.script.last.answers(inn.script.last.asked(mcp.INITIALIZE)[0], _welcome())
    await settled()
    assert (await inn.find(session)).link.is_open
    assert inn.opened == 1
    await session.close()
    await until(lambda: not inn.script.open)


async def test_a_client_that_has_ended_is_attached_to_nothing() -> None:
    inn = Inn()
    session = client()
    await session.close()
    with pytest.raises(Unavailable):
        await inn.find(session)
    assert len(inn.plain.sharers) == 0


async def test_closing_ends_what_is_open_and_what_is_being_opened() -> None:
    inn = Inn()
    await inn.find(client(**MGP))
    inn.script.replies[mcp.INITIALIZE] = SILENCE
    waiting = asyncio.ensure_future(inn.find(client(mgp={"n": 1})))
    await settled()
    async with asyncio.timeout(10):
        await inn.links.close()
    with pytest.raises(Unavailable):
        await waiting
    assert inn.script.open == []
    del inn.script.replies[mcp.INITIALIZE]
    await inn.find(client(mgp={"n": 1}))


async def test_a_server_that_refuses_the_handshake_is_asked_again_next_time() -> None:
    inn = Inn()
    inn.script.replies[mcp.INITIALIZE] = Unavailable("no")
    for _ in range(2):
        with pytest.raises(Unavailable, match="refused the handshake"):
            await inn.find(client(**MGP))
    assert (inn.opened, inn.script.open) == (2, [])


@pytest.mark.parametrize("declared", [b'{"mgp":{"a":1,"a":2}}', b'{"mgp":1e999}'])
def test_terms_that_cannot_be_read_are_refused(declared: bytes) -> None:
    session = Session("", 0)
    session.introduce({"capabilities": Raw(declared)})
    with pytest.raises(MalformedMessage):
        extended_terms(session)


def test_the_gateway_introduces_itself_by_name() -> None:
    said = greeting({"roots": {}})
    assert said["protocolVersion"] == mcp.LATEST_HANDSHAKE
    offered = {
        "version": "0.3.0",
        "extensions": ["audit", "bidirectional", "lifecycle", "security", "streaming"],
    }
    assert said["capabilities"] == {"roots": {}, "mgp": offered}


def _welcome() -> dict[str, object]:
    return {"protocolVersion": mcp.LATEST_HANDSHAKE, "capabilities": {}}


STAND_INS: list[tuple[dict[str, object], dict[str, object]]] = [
    ({}, {"form": {}}),
    ({"elicitation": {"url": {}}}, {"url": {}}),
]


@pytest.mark.parametrize(("said", "heard"), STAND_INS)
def test_where_people_stand_in_a_server_hears_so_but_for_what_its_client_said(
    said: dict[str, object], heard: dict[str, object]
) -> None:
    hello = jsonrpc.to_raw({"protocolVersion": "1", "capabilities": {"roots": {}, **said}})
    assert jsonrpc.value(with_stand_in(hello, STAND_IN)) == {
        "protocolVersion": "1",
        "capabilities": {"roots": {}, "elicitation": heard},
    }
