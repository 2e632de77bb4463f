"""A gateway with topics on a real socket, somebody who watches a topic, and whoever attacks it.

The gateway has a thread and an event loop of its own: what it is made to do keeps no test waiting,
and a test that waits keeps it from nothing.
"""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any, cast

from websockets.asyncio.client import ClientConnection, connect

from comity.app.gateway import GatewayParts, assemble_gateway
from comity.http.server import event_loop
from comity.mcp.actors import ADMIN_READ, ADMIN_WRITE
from comity.policy.grants import ANY_TARGET, Effect, Grant
from comity.topics.settings import TopicOverride
from tests.support.credentials import GivenOut, bearer
from tests.support.listening import Application, Peer, listening
from tests.support.settings import settings_with

type Envelope = dict[str, Any]

SECONDS = 20.0
PROTOCOL = "mcpx/v0.1"
ANA, BEA = "person:ana@example.org", "person:bea@example.org"
OPERATOR = "person:operator@example.org"
PROPOSER, READER, NARROW, DENIED, ANYTHING, UNGRANTED = (
    f"agent:{each}" for each in ("proposer", "reader", "narrow", "denied", "anything", "ungranted")
)
READS = ("mcp/request:resources/read", "mcp/request:*/list", "mcp/response:*", "chat")
NARROWLY = ("mcp/request:tools/call:read_file", "mcp/request:tools/call:ls_*", "chat")
GRANTED: dict[str, tuple[str, ...]] = {
    ANA: ("mcp/*", "chat"),
    BEA: ("mcp/*", "chat"),
    PROPOSER: ("mcp/proposal:*", "mcp/response:*", "chat"),
    READER: READS,
    NARROW: NARROWLY,
    DENIED: ("mcp/*", "chat"),
    # Two stars: one alone would stand for what members usually say, and no more.
    ANYTHING: ("**",),
}
FORBIDDEN = ("mcp/request:tools/call:rm", "mcp/proposal:resources/*")
ROOMS = (
    TopicOverride("secret", access="private"),
    TopicOverride("small", access="public", max_members=2),
    TopicOverride("later", kinds="later"),
)
UNHURRIED = {
    "topics_message_rate": 0,
    "topics_chat_rate": 0,
    "topics_reconnect_grace": timedelta(0),
}
"""As much as anybody wants to say, and whoever is cut off has left at once; how floods are held is
shown with the usual bounds."""

_topics = count(1)


def _grants() -> tuple[Grant, ...]:
    allowed = [
        Grant(party, "topic/send", f"*/{each}", Effect.ALLOW)
        for party, capabilities in GRANTED.items()
        for each in capabilities
    ]
    denied = [Grant(DENIED, "topic/send", f"*/{each}", Effect.DENY) for each in FORBIDDEN]
    rules = [Grant(OPERATOR, verb, ANY_TARGET, Effect.ALLOW) for verb in (ADMIN_READ, ADMIN_WRITE)]
    return (*allowed, *denied, *rules)


@dataclass
class Scene:
    """Where the gateway is, and the key of everybody who was given one."""

    address: str
    parts: GatewayParts
    given_out: GivenOut
    keys: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def host(self) -> str:
        return self.address.removeprefix("http://")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def key_of(self, party: str) -> str:
        if party not in self.keys:
            self.keys[party] = self.given_out.give(party)
        return self.keys[party]

    @asynccontextmanager
    async def peering(self) -> AsyncGenerator[Peer]:
        """A plain connection, over which nothing was said yet."""
        peer = Peer(*await asyncio.open_connection("127.0.0.1", self.port, limit=2**22))
        try:
            yield peer
        finally:
            peer.writer.transport.abort()


def fresh_topic() -> str:
    """A topic that no other test has been in."""
    return f"case-{next(_topics)}"


class Stage:
    """The thread that the gateway runs in."""

    def __init__(self, chosen: dict[str, Any]) -> None:
        self.given_out = GivenOut()
        usual: dict[str, Any] = {"topics_overrides": ROOMS, "grants": _grants(), **UNHURRIED}
        self._settings = settings_with(servers=(), identity_mode="required", **(usual | chosen))
        self._ready = threading.Event()
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._found: tuple[str, GatewayParts] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> Scene:
        self._thread.start()
        self._ready.wait(SECONDS)
        assert self._found is not None, "the gateway did not start"
        return Scene(*self._found, self.given_out)

    def stop(self) -> None:
        assert self._running is not None
        loop, ended = self._running
        loop.call_soon_threadsafe(ended.set)
        self._thread.join(SECONDS)
        assert not self._thread.is_alive(), "the gateway did not stop"

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=event_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._running = asyncio.get_running_loop(), asyncio.Event()
        async with (
            assemble_gateway(self._settings, self.given_out.register) as parts,
            listening(cast("Application", parts.http_app)) as place,
        ):
            self._found = place.address, parts
            self._ready.set()
            await self._running[1].wait()


@contextmanager
def staged(**chosen: Any) -> Generator[Scene]:
    stage = Stage(chosen)
    try:
        yield stage.start()
    finally:
        stage.stop()


@dataclass
class Member:
    """Somebody in a topic, by the plain client of the `websockets` library."""

    party: str
    connection: ClientConnection

    async def hear(self) -> Envelope:
        """The next envelope, whatever it is."""
        async with asyncio.timeout(SECONDS):
            return json.loads(await self.connection.recv())

    async def hear_kind(self, kind: str) -> Envelope:
        while (heard := await self.hear())["kind"] != kind:
            pass
        return heard

    async def tell(self, text: str | bytes) -> None:
        """In a text frame, even where it is no text."""
        async with asyncio.timeout(SECONDS):
            await self.connection.send(text, text=True)

    async def say(self, **members: object) -> Envelope:
        said = {**honest(self.party), **members}
        await self.tell(json.dumps(said))
        return said

    async def is_passed_on(self) -> Envelope:
        """Say something honest, and see it come back as everybody has been given it."""
        said = await self.say()
        while (await self.hear())["id"] != said["id"]:
            pass
        return said

    async def closed(self) -> int:
        """With which code the gateway ended it."""
        async with asyncio.timeout(SECONDS):
            await self.connection.wait_closed()
        return self.connection.close_code or 0


_ids = count(1)


def honest(party: str) -> Envelope:
    """What everybody may say who may chat."""
    return {
        "protocol": PROTOCOL,
        "id": f"honest-{next(_ids)}",
        "from": party,
        "kind": "chat",
        "payload": {"text": "hello"},
    }


@asynccontextmanager
async def came(scene: Scene, party: str, topic: str) -> AsyncGenerator[Member]:
    """In the topic, and past its welcome."""
    async with connect(
        f"ws://{scene.host}/ws?topic={topic}",
        additional_headers=bearer(scene.key_of(party)),
        compression=None,
        max_size=None,
        proxy=None,
        open_timeout=SECONDS,
        close_timeout=SECONDS,
        ping_interval=None,
    ) as connection:
        member = Member(party, connection)
        await member.hear_kind("system/welcome")
        yield member


@asynccontextmanager
async def joined(scene: Scene, party: str, topic: str) -> AsyncGenerator[Member]:
    """The same, and past the word that it came, which itself is told like everybody."""
    async with came(scene, party, topic) as member:
        await member.hear_kind("system/presence")
        yield member


@dataclass
class Watch:
    """Somebody who takes everything that is said in a topic, and what was heard there so far."""

    scene: Scene
    topic: str
    member: Member
    heard: list[Envelope] = field(default_factory=list[Envelope])

    async def heard_since(self) -> list[Envelope]:
        """What came before a word of the watcher's own, which the gateway still passes on."""
        fence = await self.member.say()
        while (heard := await self.member.hear())["id"] != fence["id"]:
            self.heard.append(heard)
        heard, self.heard = self.heard, []
        return [each for each in heard if not _is_coming_or_going(each)]

    @property
    def members(self) -> set[str]:
        return set(self.scene.parts.topic_components.topics.topics[self.topic].local_members)


def _is_coming_or_going(envelope: Envelope) -> bool:
    """The gateway's own word on who joined or left; no attacker's payload has an event in it."""
    return envelope["kind"] == "system/presence" and "event" in envelope["payload"]


@asynccontextmanager
async def watched(scene: Scene, topic: str = "") -> AsyncGenerator[Watch]:
    topic = topic or fresh_topic()
    async with joined(scene, ANA, topic) as member:
        yield Watch(scene, topic, member)
