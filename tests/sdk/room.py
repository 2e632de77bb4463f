"""A tiny gateway of one topic on plain `websockets`, which can also misbehave on purpose."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import msgspec
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from comity.mcp.actors import GATEWAY
from comity.topics import envelope as wire
from comity.topics import rules
from comity.topics.envelope import Envelope, EnvelopeHeader
from comity.topics.rules import PROPOSE, DeliveryMode, MessageTrail, TopicCapabilities

type Payload = Mapping[str, Any]
MOMENT = "2026-01-01T00:00:00Z"


@dataclass
class Seat:
    socket: ServerConnection
    mode: DeliveryMode


@dataclass
class Room:
    """Tokens are party ids; each party may what `allowed` says, or else propose."""

    allowed: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    is_strict: bool = True
    statuses: list[int] = field(default_factory=list[int])
    """What the next upgrades are refused with."""
    said: list[Envelope] = field(default_factory=list[Envelope])
    upgrades: list[Request] = field(default_factory=list[Request])
    seats: dict[str, Seat] = field(default_factory=dict[str, Seat])
    is_silent: bool = False
    """Whether it sends no welcome."""
    trail: MessageTrail = field(default_factory=MessageTrail)
    url: str = ""
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def may(self, party: str) -> TopicCapabilities:
        return TopicCapabilities(self.allowed.get(party, PROPOSE))

    def process(self, socket: ServerConnection, request: Request) -> Response | None:
        self.upgrades.append(request)
        status = self.statuses.pop(0) if self.statuses else 0
        if not status and not request.headers.get("Authorization", "").startswith("Bearer "):
            status = 401
        if not status:
            return None
        headers = Headers({"Retry-After": "0", "Location": "ws://127.0.0.1:9/"})
        return Response(status, HTTPStatus(status).phrase, headers, b'{"error":"refused"}')

    async def attend(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        wanted = parse_qs(urlsplit(socket.request.path).query)
        party = socket.request.headers["Authorization"].removeprefix("Bearer ")
        before = self.seats.get(party)
        if before is not None:
            await before.socket.close(4001, "replaced")
        self.seats[party] = Seat(socket, DeliveryMode(wanted["mode"][0]))
        if not self.is_silent:
            await self.greet(party)
        if before is None:
            await self.announce("join", party)
        try:
            async for frame in socket:
                await self.hear(party, frame.encode() if isinstance(frame, str) else frame)
        except ConnectionClosed:
            pass
        if self.seats[party].socket is socket:
            del self.seats[party]
            await self.announce("leave", party)

    async def hear(self, party: str, data: bytes) -> None:
        envelope = wire.decode_envelope(data)
        why = rules.envelope_refusal(
            envelope, party, self.may(party), self.trail, is_strict=self.is_strict
        )
        if why is not None:
            told = {"error": why.error, "message": why.message, "attempted_kind": envelope.kind}
            await self.tell(party, wire.ERROR, told, envelope.id)
        else:
            await self.deliver(envelope, data)
        async with self.changed:
            self.said.append(envelope)
            self.changed.notify_all()

    async def deliver(self, envelope: Envelope, data: bytes) -> None:
        """Give it to whom it is for, whoever made it."""
        concerned = self.trail.earlier_senders(envelope)
        self.trail.add(envelope)
        for party, seat in tuple(self.seats.items()):
            if rules.is_recipient(envelope, party, seat.mode, concerned):
                await self.inject(party, data)

    async def greet(self, party: str) -> None:
        others = [
            wire.describe_participant(id, self.may(id).listed) for id in self.seats if id != party
        ]
        you = wire.describe_participant(party, self.may(party).listed)
        await self.tell(party, wire.WELCOME, {"you": you, "participants": others})

    async def promote(self, party: str, *capabilities: str) -> None:
        self.allowed[party] = capabilities
        await self.greet(party)

    async def announce(self, event: str, party: str) -> None:
        listed = self.may(party).listed if event == "join" else None
        made = wire.build_presence(event, wire.describe_participant(party, listed))
        for id in tuple(self.seats):
            await self.tell(id, wire.PRESENCE, made, to=())

    async def tell(
        self,
        party: str,
        kind: str,
        payload: Payload,
        about: str = "",
        to: tuple[str, ...] | None = None,
    ) -> None:
        heading = EnvelopeHeader(str(uuid4()), MOMENT, (party,) if to is None else to, about)
        await self.inject(
            party, wire.encode_envelope(wire.build_envelope(heading, GATEWAY, kind, payload))
        )

    async def inject(self, party: str, data: bytes) -> None:
        """Whatever it is, a member is sent it."""
        with suppress(ConnectionClosed, KeyError):
            await self.seats[party].socket.send(data, text=True)

    async def forge(self, at: str, sender: str, kind: str, payload: Payload, **more: Any) -> str:
        """An envelope as no honest member would send it, past all that a gateway checks."""
        id = str(more.pop("id", uuid4()))
        made = {"protocol": wire.PROTOCOL, "id": id, "from": sender, "kind": kind}
        await self.inject(at, msgspec.json.encode({**made, "payload": payload, **more}))
        return id

    async def cut(self, party: str, code: int = 0, reason: str = "") -> None:
        """End a member's connection: with a code, or as a cable that is pulled."""
        socket = self.seats[party].socket
        if code:
            await socket.close(code, reason)
        else:
            socket.transport.abort()

    async def until_said(self, kind: str, count: int = 1) -> Envelope:
        """The last of so many envelopes whose kind begins so, once it was sent."""
        async with asyncio.timeout(20), self.changed:
            while True:
                found = [each for each in self.said if each.kind.startswith(kind)]
                if len(found) >= count:
                    return found[count - 1]
                await self.changed.wait()


@asynccontextmanager
async def room(allowed: Mapping[str, tuple[str, ...]] | None = None) -> AsyncGenerator[Room]:
    made = Room(dict(allowed or {}))
    async with serve(made.attend, "127.0.0.1", 0, process_request=made.process) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        made.url = f"http://127.0.0.1:{port}"
        yield made
