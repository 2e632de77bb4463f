"""Two gateways on a NATS that anybody may use: nothing is learnt there, and nothing is done."""

import asyncio
import itertools
import random
import re
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import aiohttp
import pytest
from nats.aio.client import Client as Nats
from nats.aio.msg import Msg

from comity.approvals.model import ANSWER_VERB
from comity.cluster import nodes, streams
from comity.cluster.nats.seals import MessageSeals
from comity.cluster.nodes import NodeHeartbeat
from comity.cluster.streams import RemoteCallHeader, StreamAction, StreamFrame, StreamOpen
from comity.identity.keys import mac_of_key
from comity.policy.grants import Effect, Grant
from tests.cluster.nats_cluster import NatsCluster
from tests.cluster.nodes import (
    PEPPER,
    SECONDS,
    Node,
    Notes,
    Session,
    Setting,
    call,
    called,
    posted,
    some_nodes,
    until,
)
from tests.cluster.postgres import Postgres
from tests.cluster.topic_crowd import Member
from tests.support.issuing import AUDIENCE, IssuerServer, SigningKey, issuing
from tests.support.principals import add_principals

pytestmark = pytest.mark.timeout(300)

AGENT, OPERATOR, TOKEN_HOLDER = "agent:ci", "person:ana@example.org", "person:of-token"
TALKERS: Final = ("agent:here", "agent:there")
TOPIC: Final = "room"
MANY: Final = 200
COOKIE, PROXY, HEADER = "cookie-s3cret", "proxy-s3cret", "header-s3cret"
MORE: Final = """
[servers.tools.write]
risk = "safe"
[servers.tools.learn]
risk = "dangerous"
require_approval = "always"
"""


@dataclass
class Scene:
    """The nodes, who speaks with them, and who listens to what they say to each other."""

    nodes: list[Node]
    notes: Notes
    keys: dict[str, str]
    issuer: IssuerServer
    wire: Nats
    heard: list[Msg] = field(default_factory=list[Msg])
    opened: list[bytes] = field(default_factory=list[bytes])
    # As a node would read: it is among those who know the pepper.
    seals: MessageSeals = field(
        default_factory=lambda: MessageSeals(mac_of_key(PEPPER.encode(), b"nodes of comity"))
    )

    async def hear(self, message: Msg) -> None:
        self.heard.append(message)
        subject, reply = message.subject.encode(), message.reply.encode()
        if (body := self.seals.open(1, subject, reply, message.data)) is not None:
            self.opened.append(body)

    @property
    def origins(self) -> list[str]:
        return [node.origin for node in self.nodes]

    @property
    def ran(self) -> list[tuple[str, str]]:
        """What the server did that runs once, and how often it was started."""
        read = [(each["tool"], each["n"]) for each in self.notes.of("call")]
        return [*read, *(("start", str(each["fence"])) for each in self.notes.of("start"))]

    def count(self, subject: str) -> int:
        return sum(each.subject.startswith(subject) for each in self.heard)

    async def hear_more(self, subject: str, more: int) -> None:
        """Until so much more was said there."""
        goal = self.count(subject) + more
        await until(lambda: self.count(subject) >= goal)

    def as_party(self, party: str) -> aiohttp.ClientSession:
        if party not in self.keys:
            self.keys[party] = self.issuer.token(sub=party.partition(":")[2])
        shown = {"authorization": f"Bearer {self.keys[party]}", "x-token": HEADER}
        hidden = {"cookie": f"session={COOKIE}", "proxy-authorization": f"Basic {PROXY}"}
        return aiohttp.ClientSession(headers={**shown, **hidden})


async def settle(url: str) -> dict[str, str]:
    """Every principal, its key, and its grants."""
    return await add_principals(
        url,
        PEPPER,
        (AGENT, OPERATOR, *TALKERS),
        *(Grant(party, "topic/send", f"{TOPIC}/chat", Effect.ALLOW) for party in TALKERS),
        *(Grant(party, "tools/*", "*", Effect.ALLOW) for party in (AGENT, TOKEN_HOLDER)),
        Grant(OPERATOR, ANSWER_VERB, "*", Effect.ALLOW),
    )


@asynccontextmanager
async def a_scene(nats: NatsCluster, postgres: Postgres, folder: Path) -> AsyncGenerator[Scene]:
    keys = await settle(postgres.url)
    async with AsyncExitStack() as stack:
        issuer = stack.enter_context(issuing(SigningKey("one", "ES256")))
        tables = f"""
[identity]
mode = "required"
accept_auth_member = true
[[identity.issuers]]
issuer = "{issuer.url}"
audience = "{AUDIENCE}"
principal_prefix = "person:"
algorithms = ["ES256"]
"""
        setting = Setting(folder, nats.urls, postgres.url, tables=tables, more=MORE)
        wire = Nats()
        await wire.connect(nats.urls[0])
        stack.push_async_callback(wire.close)
        scene = Scene([], Notes(setting.notes), keys, issuer, wire)
        await cast("Any", wire).subscribe(">", cb=scene.hear)
        await wire.flush()
        scene.nodes = stack.enter_context(some_nodes(setting, "a", "b"))
        yield scene


async def work(scene: Scene, stack: AsyncExitStack) -> tuple[list[Session], list[Member]]:
    """All that nodes speak with each other about: calls, sessions, topics, approvals."""
    a, b = scene.origins
    sessions: list[Session] = []
    for party in (AGENT, TOKEN_HOLDER):
        http = await stack.enter_async_context(scene.as_party(party))
        for origin in (a, b):
            assert await called(http, origin, "fenced__write", f"{party} at {origin}")
        session = Session(http)
        await session.begin(a)
        for origin in (a, b):
            assert await _wrote(session, origin)
        sessions.append(session)
    await _show_in_the_message(scene, sessions[0], b)
    await _approve(scene, sessions[0].http, a, b)
    members = [
        Member(party, scene.keys[party], TOPIC, [origin.removeprefix("http://")])
        for party, origin in zip(TALKERS, (a, b), strict=True)
    ]
    ends = asyncio.Event()
    talking = [asyncio.ensure_future(member.live(ends)) for member in members]
    stack.push_async_callback(asyncio.wait, talking)
    stack.callback(ends.set)
    stack.callback(lambda: [each.cancel() for each in talking])
    await talk(members)
    return sessions, members


async def _wrote(session: Session, origin: str) -> bool:
    n = f"{origin} {time.monotonic_ns()}"
    said = await session.ask(origin, "tools/call", name="fenced__write", arguments={"n": n})
    return said.text.endswith(f"did {n}")


async def _show_in_the_message(scene: Scene, session: Session, origin: str) -> None:
    """A client may put its key into the message, where an operator allows that."""
    auth = {"type": "bearer", "token": scene.keys[AGENT]}
    frame = {"jsonrpc": "2.0", "id": 90, "method": "ping", "auth": auth}
    async with aiohttp.ClientSession() as http:
        said = await posted(http, origin, frame, session.headers)
        assert said.status == 200, said
        wrong = {**frame, "auth": {**auth, "token": scene.keys[OPERATOR]}}
        assert (await posted(http, origin, wrong, session.headers)).status == 404


async def _approve(scene: Scene, http: aiohttp.ClientSession, a: str, b: str) -> None:
    calling = asyncio.ensure_future(call(http, a, "fenced__learn", "approved"))
    async with scene.as_party(OPERATOR) as operator:

        async def pending() -> Any:
            async with operator.get(f"{b}/api/approvals") as reply:
                found = (await reply.json())["approvals"]
            return next((each for each in found if each["state"] == "pending"), None)

        asked = await until(pending)
        answer = f"{b}/api/approvals/{asked['id']}/answer"
        async with operator.post(answer, json={"verdict": "accept"}) as told:
            assert told.status == 200
    assert (await calling).text.endswith("did approved")


async def talk(members: list[Member]) -> None:
    """Each says something, and the other hears it."""
    await until(lambda: all(member.is_welcome.is_set() for member in members))
    for speaker in members:
        await speaker.say()
        for hearer in members:
            await until(
                lambda speaker=speaker, hearer=hearer: (
                    speaker.sent in hearer.visits[-1].heard[speaker.party]
                )
            )


def altered(data: bytes, number: int) -> bytes:
    """As it was said; or as if by another node, over a newer connection, later, or just now."""
    chance = random.Random(number)  # noqa: S311  # chance, no secret
    now = time.time_ns().to_bytes(8, "big")
    places: list[tuple[int, bytes]] = [
        (1, chance.randbytes(7)),
        (1, chance.randbytes(16)),
        (8, b"\x7f" * 4),
        (17, b"\x7f" * 8),
        (25, now),
        (17, b"\x7f" * 8 + now),
    ]
    turn = number % (len(places) + 1)
    if turn == len(places) or len(data) < 40:
        return data
    start, changed = places[turn]
    return data[:start] + changed + data[start + len(changed) :]


def forgeries(scene: Scene) -> list[Callable[[], bytes]]:
    """What somebody could say who knows how nodes speak, but not their secret."""
    chance = random.Random(7)  # noqa: S311  # chance, no secret
    ids = sorted({each.subject.split(".")[2] for each in scene.heard if ".to." in each.subject})
    head = streams.encode_message(RemoteCallHeader("fenced", (), AGENT, "agent", "", (), None, ()))
    frame = (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"write","arguments":'
        b'{"n":"forged"},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}'
    )
    opening = streams.encode_message(StreamOpen("mcp", head, None, frame))

    def marked(data: bytes) -> bytes:
        return b"\x01" + chance.randbytes(7) + b"\x7f" * 4 + data

    said = [b"", b"\x01", b"\x02", b"hello", bytes(100_000), b"\x02" + bytes(64), b"\xff" * 200]
    for number, id in enumerate(ids):
        name, _, epoch = id.rpartition("-")
        said.append(nodes.encode_heartbeat(NodeHeartbeat(name, epoch, leaves=True)))
        said.append(
            streams.encode_message(
                StreamFrame(StreamAction.OPEN, id, 900 + number, True, data=opening)
            )
        )
        said.append(
            streams.encode_message(
                StreamFrame(StreamAction.OPEN, "no subject\r\n", 5, True, data=opening)
            )
        )
        said.append(streams.encode_message(StreamFrame(StreamAction.SUMS, id, data=b"\xc1")))
    plain: list[Callable[[], bytes]] = [lambda data=data: data for data in said]
    return [*plain, *(lambda data=data: marked(data) for data in said)]


async def attack(scene: Scene, captured: list[Msg]) -> None:
    own = [each for each in captured if not each.subject.startswith("$JS.")]
    calls = [each for each in own if ".to." in each.subject]
    others = [each for each in own if ".to." not in each.subject]
    again = itertools.islice(itertools.cycle([*calls, *others]), max(MANY, len(own)))
    for number, message in enumerate(again):
        await scene.wire.publish(message.subject, altered(message.data, number), message.reply)
    for message in calls:
        await scene.wire.publish(message.subject, message.data, message.reply)
    subjects = sorted({each.subject for each in captured})
    made = forgeries(scene)
    for number in range(max(MANY, 2 * len(made), len(subjects))):
        subject = subjects[number % len(subjects)]
        await scene.wire.publish(subject, made[number % len(made)]())
    for subject in subjects:
        if not subject.startswith(("$JS.", "_INBOX.")):
            for forged in made:
                await scene.wire.publish(subject, forged(), "_INBOX.nobody")
    await scene.wire.flush(int(SECONDS))


async def test_captured_messages_tell_nobody_anything_and_replayed_or_forged_ones_do_nothing(
    nats: NatsCluster, postgres: Postgres, tmp_path: Path
) -> None:
    async with (
        a_scene(nats, postgres, tmp_path) as scene,
        AsyncExitStack() as stack,
    ):
        sessions, members = await work(scene, stack)
        await _show_that_nothing_is_told(scene)
        captured, ran = list(scene.heard), scene.ran
        heard = [len(member.visits[-1].heard[each]) for member in members for each in TALKERS]
        await attack(scene, captured)
        # Long enough for a node to be missed, and for the lease to be renewed or lost.
        await scene.hear_more("comity.nodes", 30)
        assert scene.ran == ran
        await scene.hear_more("$KV.", 2)
        assert scene.ran == ran
        await _show_that_nobody_is_missed(scene, stack)
        assert heard == [
            len(member.visits[-1].heard[each]) for member in members for each in TALKERS
        ]
        for session in sessions:
            for origin in scene.origins:
                assert await _wrote(session, origin)
                assert await called(session.http, origin, "fenced__write", f"after {origin}")
        assert [each for each in scene.ran if each[0] == "start"] == ran[-1:]
        await talk(members)
        assert [member.faults for member in members] == [[], []]
        assert [len(member.visits) for member in members] == [1, 1]


async def _show_that_nothing_is_told(scene: Scene) -> None:
    """Neither to somebody who listens, nor to another node."""
    subjects = {each.subject for each in scene.heard}
    for kind in ("comity.nodes", "comity.to.", "comity.topic.", "comity.topics", "$KV.", "_INBOX."):
        assert any(each.startswith(kind) for each in subjects), kind
    assert sum(b"fenced__write" in each for each in scene.opened) >= 2
    keys = scene.keys.values()
    secrets = [*keys, *(re.split("[_.]", each)[-1] for each in keys), PEPPER]
    secrets += [COOKIE, PROXY, HEADER, "earer "]
    for message in scene.heard:
        whole = f"{message.subject} {message.headers}".encode() + message.data
        assert [each for each in secrets if each.encode() in whole] == [], message.subject
        assert b"fenced__write" not in whole
    for body in scene.opened:
        assert [each for each in secrets if each.encode() in body] == []


async def _show_that_nobody_is_missed(scene: Scene, stack: AsyncExitStack) -> None:
    http = await stack.enter_async_context(aiohttp.ClientSession())
    for node in scene.nodes:
        async with http.get(f"{node.origin}/ready?strict") as reply:
            told = await reply.json()
        assert (reply.status, told["cluster"]) == (
            200,
            {"status": "joined", "nodes": len(scene.nodes), "silent": 0},
        )
        said = node.program.said
        for wrong in ("never retrieved", "Traceback", "fallen silent", "is gone", "a bug"):
            assert wrong not in said, said
        assert said.count("that no node of this cluster sealed") == 1
        assert said.count("that came before, or after later ones") == 1
