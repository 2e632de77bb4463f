"""Many servers start so many at a time, so that they do not hold up the event loop together."""

from datetime import timedelta

import pytest

from comity.mcp import protocol
from comity.mcp.mgp import ServerLifecycleState
from comity.servers import service
from comity.servers.service import STARTS_AT_ONCE
from comity.servers.supervisor import ServerTransition, UpstreamServer
from tests.support.carriers import SILENCE, Reply, Script, until
from tests.support.server_house import House, standing, tools

CONNECTED = ServerLifecycleState.CONNECTED


def add_servers(house: House, count: int, **replies: Reply) -> list[UpstreamServer]:
    replies = {protocol.LIST_TOOLS: tools("t"), **replies}
    return [house.add(f"srv-{n}", Script(replies=replies.copy())) for n in range(count)]


async def test_no_more_servers_start_at_once_than_the_limit() -> None:
    async with standing() as house:
        starting: set[str] = set()
        most = 0

        def count(step: ServerTransition) -> None:
            nonlocal most
            starting.discard(step.server)
            if step.state is ServerLifecycleState.CONNECTING:
                starting.add(step.server)
            most = max(most, len(starting))

        house.servers.watch(count)
        servers = add_servers(house, 3 * STARTS_AT_ONCE + 1)
        house.servers.start()
        await until(lambda: all(server.state is CONNECTED for server in servers))
        assert most == STARTS_AT_ONCE


async def test_servers_that_hang_do_not_keep_others_from_their_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "START_TURN", timedelta(milliseconds=1))
    async with standing() as house:
        add_servers(house, 2 * STARTS_AT_ONCE, **{protocol.INITIALIZE: SILENCE})
        last = house.add("last", Script(replies={protocol.LIST_TOOLS: tools("t")}))
        house.servers.start()
        await until(lambda: last.state is CONNECTED)


async def test_a_server_that_was_ordered_to_stop_does_not_start_in_its_turn() -> None:
    async with standing() as house:
        servers = add_servers(house, STARTS_AT_ONCE + 3)
        *others, stopped, removed, restarted = servers
        house.servers.start()
        await house.servers.stop_server(stopped.name)
        await house.servers.remove(removed.name)
        await house.servers.restart(restarted.name)
        await until(lambda: all(each.state is CONNECTED for each in (*others, restarted)))
        assert ServerLifecycleState.CONNECTED not in (stopped.state, removed.state)
        begun = [s.server for s in house.steps if s.state is ServerLifecycleState.CONNECTING]
        assert begun.count(restarted.name) == 1
        assert not {stopped.name, removed.name}.intersection(begun)
