"""A gateway with topics, and members who come to it with the plain `websockets` client."""

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import websockets
from websockets.asyncio.client import ClientConnection

from comity.mcp.actors import LOCAL
from tests.support.credentials import bearer
from tests.support.visitor import Frame, Reply, Visitor, visiting

ANA = "person:ana@example.org"
BEA = "person:bea@example.org"
CI = "agent:ci"
OPS = "ops"
SECONDS = 60.0
FULL = ["mcp/*", "chat"]
UNHURRIED: dict[str, Any] = {"topics_message_rate": 0, "topics_chat_rate": 0}
PROPOSE = ["mcp/proposal:*", "mcp/response:*", "chat"]


@dataclass
class Member:
    """One connection, that says exactly what it is told to."""

    party: str
    socket: ClientConnection
    ids: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    async def hears(self) -> Frame:
        """The next envelope."""
        return json.loads(await self.hears_text())

    async def hears_text(self) -> str:
        async with asyncio.timeout(SECONDS):
            return str(await self.socket.recv(decode=True))

    async def hears_kind(self, kind: str) -> Frame:
        """The next envelope of a kind; others are passed over."""
        while (heard := await self.hears())["kind"] != kind:
            pass
        return heard

    async def hears_until(self, id: str) -> list[Frame]:
        """All that comes up to the envelope with this id, and that one."""
        found = [await self.hears()]
        while found[-1]["id"] != id:
            found.append(await self.hears())
        return found

    async def says(self, kind: str = "chat", **more: Any) -> str:
        """Say something; the id under which it was said."""
        id = f"{self.party}-{next(self.ids)}"
        said: Frame = {
            "protocol": "mcpx/v0.1",
            "id": id,
            "from": self.party,
            "kind": kind,
            "payload": {"text": "hello"},
            **more,
        }
        await self.socket.send(json.dumps(said))
        return said["id"]

    async def is_refused(self, kind: str = "chat", **more: Any) -> Frame:
        """Say something that is refused; the `system/error` about it."""
        id = await self.says(kind, **more)
        told = await self.hears_kind("system/error")
        assert told["correlation_id"] == id
        return told

    async def closed(self) -> tuple[int, str]:
        """Until the gateway has closed it: with which code, and why."""
        async with asyncio.timeout(SECONDS):
            await self.socket.wait_closed()
        return self.socket.close_code or 0, self.socket.close_reason or ""

    async def leaves(self) -> None:
        async with asyncio.timeout(SECONDS):
            await self.socket.close()

    def is_cut(self) -> None:
        """The connection is gone, without a word."""
        self.socket.transport.abort()


@dataclass
class Scene:
    """The gateway, its operator, and who has come."""

    visitor: Visitor
    keys: dict[str, str] = field(default_factory=dict[str, str])
    members: list[Member] = field(default_factory=list[Member])

    @property
    def origin(self) -> str:
        return self.visitor.place.address

    async def order(self, path: str, body: object, key: str = "") -> Reply:
        """What an operator orders: whoever runs the gateway, or who shows this key."""
        headers = {"content-type": "application/json", **(bearer(key) if key else {})}
        data = json.dumps(body).encode()
        return await self.visitor.send("POST", headers.items(), data, path)

    async def done(self, path: str, body: object) -> Frame:
        reply = await self.order(path, body)
        assert reply.status == 200, await reply.body()
        return await reply.json()

    async def asked(self, path: str, key: str = "") -> tuple[int, Frame]:
        headers = bearer(key) if key else {}
        reply = await self.visitor.send("GET", headers.items(), path=path)
        return reply.status, await reply.json()

    async def key_of(self, party: str, **wanted: object) -> str:
        """A key of this party; the same each time, unless it is to be a special one."""
        if party in self.keys and not wanted:
            return self.keys[party]
        made = await self.done("/api/keys", {"principal": party, **wanted})
        self.keys.setdefault(party, made["key"])
        return made["key"]

    async def grants(self, party: str, *capabilities: str, topic: str = OPS) -> Frame:
        await self.key_of(party)
        return await self.done(
            f"/admin/participants/{party}/capabilities",
            {"add": capabilities, "remove": [], "topic": topic},
        )

    async def connects(
        self, query: Mapping[str, str], headers: Mapping[str, str] | None = None, **more: Any
    ) -> ClientConnection:
        address = f"{self.origin.replace('http', 'ws', 1)}/ws?{urlencode(query)}"
        # It takes whatever comes, at once: a queue of its own would make it a slow member.
        usual = {"proxy": None, "max_size": 2**26, "max_queue": None, "open_timeout": SECONDS}
        more = {**usual, **more}
        return await websockets.connect(address, additional_headers=headers, **more)

    async def joins(
        self, party: str, topic: str = OPS, mode: str = "", key: str = "", **more: Any
    ) -> Member:
        """Somebody who has joined, and heard nothing yet."""
        query = {"topic": topic, **({"mode": mode} if mode else {})}
        shown = bearer(key or await self.key_of(party))
        member = Member(party, await self.connects(query, shown, **more))
        self.members.append(member)
        return member

    async def sits(
        self, party: str, *capabilities: str, topic: str = OPS, mode: str = ""
    ) -> Member:
        """Somebody who was granted this, has joined, and heard that it did."""
        await self.grants(party, *(capabilities or FULL), topic=topic)
        member = await self.joins(party, topic, mode)
        while (heard := await member.hears_kind("system/presence"))["payload"]["participant"][
            "id"
        ] != party:
            del heard
        return member

    async def is_sent_away(
        self, party: str, query: Mapping[str, str] | None = None, **more: Any
    ) -> tuple[int, Frame]:
        """Somebody is not let in: the status, and what it is told."""
        shown = more.pop("headers", None) or (bearer(await self.key_of(party)) if party else {})
        try:
            await self.connects({"topic": OPS} if query is None else query, shown, **more)
        except websockets.InvalidStatus as refused:
            body = refused.response.body
            return refused.response.status_code, json.loads(body) if body else {}
        raise AssertionError("it was let in")

    async def journal(self) -> list[Frame]:
        """What was written down of topics."""
        return [each for each in await self.whole_journal() if ".topic_" in each["event_type"]]

    async def whole_journal(self) -> list[Frame]:
        journal = self.visitor.parts.audit_log_components.audit_log
        await journal.flush()
        lines = await journal.store.page(journal.node, 0, 10_000)
        return [json.loads(line.body) for line in lines]


@asynccontextmanager
async def gathering(**chosen: Any) -> AsyncGenerator[Scene]:
    """Topics at a gateway; whoever runs it is its operator, the others have keys."""
    async with visiting(**{**UNHURRIED, **chosen}) as visitor:
        scene = Scene(visitor)
        try:
            yield scene
        finally:
            for member in scene.members:
                member.is_cut()


OPERATOR = LOCAL.party
