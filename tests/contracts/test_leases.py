"""What all leases promise: one holder at a time, and tokens that only grow."""

import asyncio
import os
import random
import time
from datetime import timedelta

import pytest

from comity.cluster.bus import Bus, Lease, LeaseStore
from comity.errors import MalformedMessage, Unavailable
from tests.contracts.nodes import InMemory, Nodes, eventually, insist

LONG = timedelta(seconds=60)
SHORT = timedelta(seconds=1)
SCHEDULES = int(os.environ.get("COMITY_LEASE_SCHEDULES", "10"))
AT_ONCE = 20


async def _take(leases: LeaseStore, name: str, holder: str) -> Lease | None:
    return await insist(lambda: leases.take(name, holder), Unavailable)


async def _take_at_last(leases: LeaseStore, name: str, holder: str) -> Lease:
    """Asked again and again, as nodes do."""
    deadline = time.monotonic() + 30
    while True:
        lease = await _take(leases, name, holder)
        if lease is not None:
            return lease
        assert time.monotonic() < deadline, "it never came free"
        await asyncio.sleep(0.05)


async def _two(nodes: Nodes, lifetime: timedelta) -> tuple[LeaseStore, LeaseStore]:
    one, other = await nodes.bus(), await nodes.bus()
    return nodes.leases(one, lifetime), nodes.leases(other, lifetime)


async def test_of_two_who_take_a_lease_one_has_it(nodes: Nodes) -> None:
    one, other = await _two(nodes, LONG)
    assert await insist(lambda: one.holder("it"), Unavailable) is None
    lease = await _take(one, "it", "n1")
    assert lease is not None
    assert await _take(other, "it", "n2") is None
    assert await _take(other, "it", "n1") is None
    assert (
        await other.holder("it")
        == await one.holder("it")
        == lease
        == Lease("it", "n1", lease.token)
    )
    assert one.lifetime == LONG


async def test_whoever_has_a_lease_and_takes_it_again_has_the_same(nodes: Nodes) -> None:
    one, _ = await _two(nodes, LONG)
    lease = await _take(one, "it", "n1")
    assert await one.take("it", "n1") == lease
    assert await one.take("it", "n2") is None


async def test_of_many_who_take_a_lease_at_once_one_has_it(nodes: Nodes) -> None:
    each = [nodes.leases(await nodes.bus(), LONG) for _ in range(4)]
    await _take(each[0], "first", "n0")
    for name in ("a", "b", "c", "d", "e"):
        taken = await asyncio.gather(*(_take(one, name, f"n{n}") for n, one in enumerate(each)))
        assert sum(lease is not None for lease in taken) == 1


async def test_a_lease_that_is_given_up_is_free_at_once_and_its_token_is_past(nodes: Nodes) -> None:
    one, other = await _two(nodes, LONG)
    tokens: list[int] = []
    for _ in range(3):
        for holder, leases in (("n1", one), ("n2", other)):
            lease = await _take(leases, "it", holder)
            assert lease is not None
            tokens.append(lease.token)
            await leases.release(lease)
            assert not await leases.renew(lease)
            await leases.release(lease)
            assert await leases.holder("it") is None
    assert tokens == sorted(set(tokens))


async def test_a_lease_that_is_renewed_stays_and_keeps_its_token(nodes: Nodes) -> None:
    for attempt in range(10):
        one, other = await _two(nodes, SHORT)
        if await _is_kept(one, other, f"it-{attempt}"):
            return
    pytest.fail("this machine never renewed within a second")


async def _is_kept(one: LeaseStore, other: LeaseStore, name: str) -> bool:
    """Renew a lease past its lifetime; False if the machine once took longer than that."""
    renewed = time.monotonic()
    lease = await _take_at_last(one, name, "n1")
    until = time.monotonic() + 2.5 * SHORT.total_seconds()
    while time.monotonic() < until:
        sent = time.monotonic()
        is_renewed = await one.renew(lease)
        renewed = sent if is_renewed else renewed
        if not is_renewed or await other.take(name, "n2") is not None:
            is_late = time.monotonic() > renewed + SHORT.total_seconds()
            assert is_late, "a lease was lost that had been renewed in time"
            return False
        await asyncio.sleep(0.05)
    assert await other.holder(name) == lease
    return True


async def test_a_lease_that_is_not_renewed_goes_to_another_with_a_greater_token(
    nodes: Nodes,
) -> None:
    one, other = await _two(nodes, SHORT)
    before = time.monotonic()
    lease = await _take_at_last(one, "it", "n1")
    taken = await _take_at_last(other, "it", "n2")
    assert time.monotonic() - before >= SHORT.total_seconds()
    assert taken.token > lease.token
    assert not await one.renew(lease)
    await one.release(lease)
    assert await other.holder("it") in (taken, None)


async def test_whoever_lost_a_lease_gets_a_new_one_and_not_the_old(nodes: Nodes) -> None:
    one, _ = await _two(nodes, SHORT)
    lease = await _take_at_last(one, "it", "n1")
    await asyncio.sleep(SHORT.total_seconds())
    assert not await one.renew(lease)
    again = await _take_at_last(one, "it", "n1")
    assert again.token > lease.token
    assert not await one.renew(lease)


async def test_each_name_is_a_lease_of_its_own(nodes: Nodes) -> None:
    one, other = await _two(nodes, LONG)
    names = ["a", "A", "a.b", "a/b", "a b", "a=20b", "\u00e4", "*", ">", "\r\n", "x" * 256]
    held = [await _take(one, name, "n1") for name in names]
    assert None not in held
    assert [await other.holder(name) for name in names] == held
    for wrong in ("", "x" * 257):
        with pytest.raises(MalformedMessage):
            await one.take(wrong, "n1")


async def test_whoever_cannot_reach_the_others_does_not_know_who_holds_a_lease(
    nodes: Nodes,
) -> None:
    bus = await nodes.bus()
    leases = nodes.leases(bus, LONG)
    lease = await _take(leases, "it", "n1")
    assert lease is not None
    await bus.close()
    with pytest.raises(Unavailable):
        await leases.take("other", "n1")
    with pytest.raises(Unavailable):
        await leases.renew(lease)
    with pytest.raises(Unavailable):
        await leases.holder("it")
    with pytest.raises(Unavailable):
        await leases.release(lease)


async def test_a_failure_in_between_takes_no_lease_from_who_renews_it(nodes: Nodes) -> None:
    bus, other_bus = await nodes.bus(), await nodes.bus()
    leases, other = nodes.leases(bus, LONG), nodes.leases(other_bus, LONG)
    lease = await _take(leases, "it", "n1")
    assert lease is not None
    await nodes.strike(bus)
    await nodes.heal()
    assert await insist(lambda: leases.renew(lease), Unavailable)
    assert await _take(other, "it", "n2") is None
    later = await _take(other, "later", "n2")
    assert later is not None


class Believers:
    """Who believes to hold each lease, until when; all by one clock, as they are one process."""

    def __init__(self) -> None:
        self._until: dict[str, dict[str, float]] = {}
        self._token: dict[str, int] = {}
        self.gained = 0

    def gain(self, lease: Lease, sent: float, lifetime: float) -> None:
        now = time.monotonic()
        believing = self._until.setdefault(lease.name, {})
        others = {holder for holder, until in believing.items() if until > now}
        assert others <= {lease.holder}, f"{lease} while {others} held it"
        assert lease.token > self._token.get(lease.name, 0), "a token that does not grow"
        self._token[lease.name] = lease.token
        believing[lease.holder] = sent + lifetime
        self.gained += 1

    def keep(self, lease: Lease, sent: float, lifetime: float) -> None:
        self._until[lease.name][lease.holder] = sent + lifetime

    def lose(self, lease: Lease) -> None:
        self._until[lease.name].pop(lease.holder, None)


async def _one_node(
    leases: LeaseStore, name: str, holder: str, believers: Believers, chance: random.Random
) -> None:
    """Takes, renews, forgets to, and gives up, as chance has it."""
    lifetime = leases.lifetime.total_seconds()
    lease: Lease | None = None
    while True:
        await asyncio.sleep(chance.random() * lifetime / 2)
        sent = time.monotonic()
        try:
            if lease is None:
                lease = await leases.take(name, holder)
                if lease is not None:
                    believers.gain(lease, sent, lifetime)
            elif chance.random() < 0.1:
                given, lease = lease, None
                believers.lose(given)
                await leases.release(given)
            elif chance.random() < 0.1:
                await asyncio.sleep(lifetime * 1.2)
            elif await leases.renew(lease):
                believers.keep(lease, sent, lifetime)
            else:
                believers.lose(lease)
                lease = None
        except Unavailable:
            continue


async def _round(nodes: Nodes, buses: list[Bus], names: list[str], chance: random.Random) -> int:
    """Some schedules at once, and who keeps the leases fails in the middle of them."""
    believers = Believers()
    doing = [
        asyncio.create_task(
            _one_node(nodes.leases(bus, SHORT), name, f"n{place}", believers, chance)
        )
        for place, bus in enumerate(buses)
        for name in names
    ]
    try:
        await eventually(lambda: _failed(doing) or believers.gained >= len(names))
        await nodes.strike_keeper(chance.choice(buses))
        await asyncio.sleep(chance.random() * 2)
        await nodes.heal()
        await eventually(lambda: all(bus.is_connected for bus in buses))
        gained = believers.gained
        await eventually(lambda: _failed(doing) or believers.gained >= gained + len(names))
    finally:
        for task in doing:
            task.cancel()
        ended = await asyncio.gather(*doing, return_exceptions=True)
    assert [each for each in ended if not isinstance(each, asyncio.CancelledError)] == []
    return believers.gained


def _failed(doing: list[asyncio.Task[None]]) -> bool:
    return any(task.done() for task in doing)


@pytest.mark.timeout(60 + SCHEDULES * 3)
async def test_never_two_hold_a_lease_at_once_whatever_fails(nodes: Nodes) -> None:
    """`COMITY_LEASE_SCHEDULES=200` is the long form."""
    buses = [await nodes.bus() for _ in range(3)]
    for turn in range(0, SCHEDULES if not isinstance(nodes, InMemory) else AT_ONCE, AT_ONCE):
        chance = random.Random(turn)  # noqa: S311 (it need not be unguessable, but the same again)
        names = [f"s{turn + number}" for number in range(AT_ONCE)]
        assert await _round(nodes, buses, names, chance) >= 2 * AT_ONCE
