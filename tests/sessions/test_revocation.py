"""What is open ends when the access of its principal ends or changes."""

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace

import pytest

from comity.mcp.protocol import LISTEN
from comity.policy.grants import Effect, Grant
from tests.support.credentials import bearer
from tests.support.upstream import Exchange, scripted
from tests.support.visitor import ENVELOPE, SECONDS, Frame, Pairs, Reply, Visitor, at, visiting

CI, OTHER = "agent:ci", "agent:other"


@dataclass
class Guest(Visitor):
    """A visitor that shows its key with each request."""

    key: str = ""

    @property
    def credential(self) -> str:
        return f"key:{self.key.split('_')[2]}"

    async def send(
        self, method: str, headers: Pairs = (), body: bytes = b"", path: str | None = None
    ) -> Reply:
        shown = [*headers, *bearer(self.key).items()]
        return await super().send(method, shown, body, path)


@dataclass
class Scene:
    """A gateway with one server, whose tool `slow` does not answer."""

    operator: Visitor
    called: asyncio.Event

    async def order(self, path: str, body: object = None) -> Frame:
        headers = {"content-type": "application/json"}
        told = json.dumps(body or {}).encode()
        reply = await self.operator.send("POST", headers.items(), told, path)
        assert reply.status == 200, await reply.body()
        return await reply.json()

    def listeners(self) -> list[str]:
        """The credentials of the listen requests that are open."""
        calls = self.operator.parts.active_calls
        return [call.client_stream.actor.credential for call in calls if call.method == LISTEN]

    async def guest(self, principal: str = CI) -> tuple[Guest, str]:
        made = await self.order("/api/keys", {"principal": principal})
        visitor = self.operator
        return Guest(visitor.place, visitor.parts, "/mcp", key=made["key"]), made["id"]


@pytest.fixture
async def scene() -> AsyncGenerator[Scene]:
    async with scripted() as server:
        called = asyncio.Event()

        @server.act("tools/list")
        async def tools(exchange: Exchange) -> None:
            listed = [{"name": "slow", "inputSchema": {"type": "object"}}]
            await exchange.result({"tools": listed})

        @server.act("tools/call")
        async def slow(_: Exchange) -> None:
            called.set()
            await asyncio.sleep(SECONDS)

        grants = tuple(Grant(each, "tools/call", "up/*", Effect.ALLOW) for each in (CI, OTHER))
        async with visiting(at(server.url), grants=grants) as visitor:
            yield Scene(visitor, called)


async def standing(guest: Guest) -> Reply:
    """The open stream of a session."""
    await guest.greet()
    stream = await guest.get()
    assert stream.is_stream
    return stream


async def listening(guest: Guest) -> Reply:
    """The open stream of a listen request."""
    params = {"notifications": {"toolsListChanged": True}, "_meta": ENVELOPE}
    stream = await guest.ask_modern("subscriptions/listen", params)
    assert (await stream.event()).frame["method"] == "notifications/subscriptions/acknowledged"
    return stream


async def test_a_disabled_principal_loses_its_streams_sessions_and_calls(scene: Scene) -> None:
    guest, _ = await scene.guest()
    other, _ = await scene.guest(OTHER)
    stays = await listening(other)
    stream, listened = await standing(guest), await listening(replace(guest, session={}))
    calling = asyncio.ensure_future(guest.call_modern("up__slow"))
    await asyncio.wait_for(scene.called.wait(), SECONDS)
    await scene.order(f"/api/principals/{CI}/disable")
    await stream.events()
    await listened.events()
    told = await (await calling).json()
    assert "revoked" in told["error"]["message"]
    assert (await guest.get()).status == 401
    assert len(scene.operator.parts.sessions) == 0
    assert scene.listeners() == [other.credential]
    stays.leave()


async def test_a_disabled_principal_begins_anew_once_it_is_enabled(scene: Scene) -> None:
    guest, _ = await scene.guest()
    stream = await standing(guest)
    await scene.order(f"/api/principals/{CI}/disable")
    await stream.events()
    await scene.order(f"/api/principals/{CI}/enable")
    assert (await guest.get()).status == 404
    await standing(guest)


async def test_a_revoked_key_loses_what_it_opened(scene: Scene) -> None:
    guest, key = await scene.guest()
    second, _ = await scene.guest()
    kept = await listening(second)
    stream, listened = await standing(guest), await listening(replace(guest, session={}))
    await scene.order(f"/api/keys/{key}/revoke")
    await stream.events()
    await listened.events()
    assert scene.listeners() == [second.credential]
    kept.leave()


async def test_a_deleted_principal_loses_its_streams(scene: Scene) -> None:
    guest, _ = await scene.guest()
    stream = await listening(guest)
    await scene.order(f"/api/principals/{CI}/delete")
    await stream.events()
    assert (await guest.ask_modern("tools/list")).status == 401


async def test_other_groups_end_streams_but_no_call_without_a_session(scene: Scene) -> None:
    guest, _ = await scene.guest()
    await scene.guest(OTHER)
    stream, listened = await standing(guest), await listening(replace(guest, session={}))
    calling = asyncio.ensure_future(guest.call_modern("up__slow"))
    await asyncio.wait_for(scene.called.wait(), SECONDS)
    changed = await scene.order(f"/api/principals/{CI}/groups", {"add": ["sre"]})
    assert changed["groups"] == ["sre"]
    await stream.events()
    await listened.events()
    assert (await guest.get()).status == 404
    assert not calling.done()
    calling.cancel()
    # The same groups again change nothing.
    again = await listening(replace(guest, session={}))
    await scene.order(f"/api/principals/{CI}/groups", {"add": ["sre"]})
    await scene.order(f"/api/principals/{OTHER}/disable")
    assert scene.listeners() == [guest.credential]
    again.leave()
