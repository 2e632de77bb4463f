"""Servers that come and go under a gateway, and what their clients keep of them."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from comity.config import ServerSettings
from comity.wire.errors import Misconfigured
from comity.wire.lifecycle import Reason
from tests.surfaces.upstream import Exchange, Upstream, scripted
from tests.surfaces.visitor import Visitor, at, visiting


async def exchange(visitor: Visitor, server: ServerSettings) -> None:
    residents = visitor.parts.residents
    reach = residents.reach(server)
    await residents.let_go(server.id, Reason.CONFIGURATION_CHANGE)
    residents.admit(server, reach)
    added = visitor.parts.servers.get(server.id)
    assert added is not None
    await added.first_try()


@asynccontextmanager
async def offering() -> AsyncGenerator[Upstream]:
    """A server over HTTP with one tool, `plain`."""
    async with scripted() as server:

        @server.act("tools/list")
        async def tools(exchange: Exchange) -> None:
            await exchange.result({"tools": [{"name": "plain", "inputSchema": {"type": "object"}}]})

        yield server


async def test_a_session_goes_on_with_what_took_the_place_of_its_server() -> None:
    async with (
        offering() as first,
        offering() as second,
        visiting(at(first.url, headers={"x-key": "old"})) as visitor,
    ):
        merged = visitor.other("/mcp")
        for client in (visitor, merged):
            await client.greet()
        await visitor.call("plain")
        await merged.call("up__plain")
        await exchange(visitor, at(second.url, headers={"x-key": "new"}))
        await visitor.call("plain", named=2)
        await merged.call("up__plain", named=2)
        assert len(first.of("tools/call")) == len(second.of("tools/call")) == 2
        assert {each.headers["x-key"] for each in second.heard} == {"new"}
        # Every session that there was at the old place has been ended there.
        assert len([each for each in first.heard if each.verb == "DELETE"]) == 3


async def test_a_server_that_is_dismissed_leaves_nothing_behind() -> None:
    async with scripted() as server, visiting(at(server.url), at(server.url, "other")) as visitor:
        other = visitor.other("/servers/other/mcp")
        await visitor.greet()
        await other.greet()
        await visitor.parts.residents.dismiss("up", Reason.OPERATOR_REQUEST)
        assert (await visitor.call("plain")).status == 404
        assert (await visitor.send("GET", path="/servers/up/sse")).status == 404
        assert (await other.call("plain")).status == 200
        assert [session.door for session in visitor.parts.sessions] == ["other"]
        assert list(visitor.parts.residents.descriptions) == ["other"]


async def test_a_server_that_cannot_be_is_refused_before_anything_is_done() -> None:
    async with scripted() as server, visiting(at(server.url)) as visitor:
        with pytest.raises(Misconfigured):
            visitor.parts.residents.reach(at("http://host:99999/"))
        await visitor.greet()
        assert (await visitor.call("plain")).status == 200
