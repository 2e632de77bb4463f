"""What MCPx asks of a participant, shown by ours at the gateway's own door. (§3, §4.3, §8.2)"""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve

from comity.errors import MalformedMessage
from comity.sdk.topics import events
from comity.sdk.topics.envelopes import EnvelopeDraft
from comity.sdk.topics.events import (
    Chat,
    EnvelopeRefusal,
    Event,
    MemberFulfilment,
    MemberMessage,
    MemberMisbehaviour,
    MissedEnvelopes,
    ParticipantEventStream,
    Presence,
    Proposal,
    Request,
    Response,
    Welcome,
)
from comity.sdk.topics.participant import Participant, ParticipantOptions, join_topic
from comity.topics.rules import FULL, DeliveryMode
from tests.sdk.door import TOPIC, Door, door
from tests.sdk.scene import ANA, BOT, WORKER, WRITE, write

row = pytest.mark.requirement
MALLORY = "agent:mallory"


@dataclass
class Crowd:
    """Three participants of ours, and one who sends whatever it likes."""

    gateway: Door
    ana: Participant
    bot: Participant
    worker: Participant
    mallory: ClientConnection

    async def forge(self, kind: str, payload: object, **more: Any) -> str:
        """A whole envelope of mallory's, but not a true one."""
        id = more.pop("id", f"forged-{len(kind)}-{id_of(payload)}")
        made = {"protocol": "mcpx/v0.1", "id": id, "from": MALLORY, "kind": kind}
        await self.mallory.send(json.dumps({**made, "payload": payload, **more}))
        return id


def id_of(payload: object) -> str:
    return str(abs(hash(json.dumps(payload))))


@asynccontextmanager
async def crowd() -> AsyncGenerator[Crowd]:
    async with door({ANA: FULL, MALLORY: FULL}) as gateway:
        address = f"{gateway.url.replace('http', 'ws', 1)}/ws?topic={TOPIC}"
        headers = {"Authorization": f"Bearer {gateway.token(MALLORY)}"}
        tools = {"write": write}
        async with (
            join_topic(gateway.url, TOPIC, token=gateway.token(WORKER), serves=tools) as worker,
            join_topic(gateway.url, TOPIC, token=gateway.token(ANA)) as ana,
            join_topic(gateway.url, TOPIC, token=gateway.token(BOT)) as bot,
            connect(address, additional_headers=headers, max_queue=None) as mallory,
        ):
            yield Crowd(gateway, ana, bot, worker, mallory)


async def next_of[E](stream: ParticipantEventStream[E]) -> E:
    async with asyncio.timeout(30):
        event = await anext(stream)
    assert not isinstance(event, MissedEnvelopes)
    return event


@row("MCPX-8.2-welcome", "MCPX-8.2-presence", "MCPX-6.2-use")
async def test_it_learns_from_the_welcome_who_it_is_and_from_presence_who_else_is_there() -> None:
    async with (
        door({ANA: FULL}) as gateway,
        join_topic(gateway.url, TOPIC, token=gateway.token(ANA)) as ana,
    ):
        assert (ana.id, dict(ana.others)) == (ANA, {})
        assert set(FULL) <= set(ana.capabilities)
        presences = ana.events(Presence)
        async with join_topic(gateway.url, TOPIC, token=gateway.token(BOT)) as bot:
            while BOT not in ana.others:
                await next_of(presences)
            assert ana.others[BOT] == bot.capabilities
        while BOT in ana.others:
            await next_of(presences)


@row("MCPX-3-single", "MCPX-3-protocol", "MCPX-3-id", "MCPX-3-ts", "MCPX-3-from", "MCPX-3-to")
@row("MCPX-3-kind", "MCPX-3-kind-chat", "MCPX-3-payload", "MCPX-3-correlation")
@row("MCPX-3.3-text", "MCPX-3.3-format", "MCPX-3.3-broadcast", "MCPX-3-corr-reply")
async def test_what_it_says_is_an_envelope_of_the_document() -> None:
    async with crowd() as made:
        chats = made.ana.events(Chat)
        sent = await made.bot.chat("hello", form="markdown", reply_to="what-you-said")
        heard = (await next_of(chats)).envelope
        assert (heard.protocol, heard.id, heard.sender, heard.to) == ("mcpx/v0.1", sent, BOT, ())
        assert (heard.kind, heard.correlation_id) == ("chat", "what-you-said")
        assert json.loads(bytes(heard.payload)) == {"text": "hello", "format": "markdown"}
        assert UUID(heard.id).version == 4
        assert datetime.fromisoformat(heard.ts).utcoffset() == timedelta()
        await made.bot.chat("to you", to=ANA)
        plain = await next_of(chats)
        assert (plain.to, plain.format) == ((ANA,), "plain")
        assert json.loads(bytes(plain.envelope.payload)) == {"text": "to you", "format": "plain"}


@row("MCPX-3-kind-request", "MCPX-3-kind-response", "MCPX-3-corr-response", "MCPX-3.1-format")
@row("MCPX-3.1-method", "MCPX-3.1-context", "MCPX-3.1.1-payload", "MCPX-3.1.2-corr")
@row("MCPX-3.1.2-context", "MCPX-3.1.2-payload", "MCPX-8.2-corrgen", "MCPX-8.2-mcpserver")
@row("MCPX-2.1-mcp")
async def test_a_request_and_its_response_are_those_of_the_document() -> None:
    async with crowd() as made:
        requests, responses = made.bot.events(Request), made.bot.events(Response)
        result = await made.ana.request("tools/call", WRITE, to=WORKER)
        asked, answer = await next_of(requests), await next_of(responses)
        assert asked.envelope.kind == "mcp/request:tools/call:write"
        payload = json.loads(bytes(asked.envelope.payload))
        assert payload == {
            "jsonrpc": "2.0",
            "id": asked.rpc_id,
            "method": "tools/call",
            "params": WRITE,
        }
        assert answer.envelope.kind == "mcp/response:tools/call:write"
        assert (answer.sender, answer.to, answer.correlation_id) == (WORKER, (ANA,), asked.id)
        answered = json.loads(bytes(answer.envelope.payload))
        assert answered == {"jsonrpc": "2.0", "id": asked.rpc_id, "result": result}
        uri = "file:///srv/a:b"
        with pytest.raises(Exception, match="there is no resources/read here"):
            await made.ana.request("resources/read", {"uri": uri}, to=WORKER)
        assert (await next_of(requests)).envelope.kind == f"mcp/request:resources/read:{uri}"
        for member in (BOT, WORKER):
            assert await made.ana.request("ping", to=member) == {}
            assert "serverInfo" in await made.ana.request("initialize", to=member)


@row("MCPX-3-kind-proposal", "MCPX-3.2-must", "MCPX-3.2-kind", "MCPX-3.2-payload")
@row("MCPX-3.2.1-nocorr", "MCPX-3.2.1-corr", "MCPX-3.2.1-fulfil", "MCPX-3-corr-fulfil")
@row("MCPX-3.2.1-respto", "MCPX-3.2.1-respcorr", "MCPX-3.2.1-audit", "MCPX-8.2-recognise")
@row("MCPX-2.1-isolation", "MCPX-2.1-governance", "MCPX-9.1-flow", "MCPX-10.2-tracking")
async def test_who_may_only_propose_is_fulfilled_by_somebody_who_may() -> None:
    async with crowd() as made:
        said: ParticipantEventStream[MemberMessage] = made.bot.events(Request, Response)
        proposals, fulfilments = made.ana.events(Proposal), made.bot.events(MemberFulfilment)
        wanted = asyncio.create_task(made.bot.request("tools/call", WRITE, to=WORKER))
        proposal = await next_of(proposals)
        assert proposal.envelope.kind == "mcp/proposal:tools/call:write"
        payload = json.loads(bytes(proposal.envelope.payload))
        assert payload == {"method": "tools/call", "params": WRITE}
        assert b"correlation_id" not in bytes(proposal.envelope.payload)
        assert proposal.correlation_id == ""
        tracked = made.ana.proposal(proposal.id)
        assert tracked is not None
        assert (tracked.id, tracked.proposer, tracked.target) == (proposal.id, BOT, (WORKER,))
        assert (tracked.method, tracked.params) == ("tools/call", WRITE)
        assert (tracked.status, tracked.expires_at > tracked.created_at) == ("pending", True)
        await made.ana.fulfil(proposal)
        assert "content" in await wanted
        done = made.ana.proposal(proposal.id)
        assert done is not None
        assert (done.status, done.created_at) == ("answered", tracked.created_at)
        fulfilment, answer = await next_of(said), await next_of(said)
        assert fulfilment.correlation_id == proposal.id
        assert (answer.correlation_id, answer.to) == (fulfilment.id, (ANA, BOT))
        assert (await next_of(fulfilments)).proposal.fulfilled_by == ANA


@row("MCPX-10.2-ttl")
async def test_a_proposal_lives_five_minutes() -> None:
    async with crowd() as made:
        handle = await made.bot.propose("tools/call", WRITE, to=WORKER)
        lives = handle.proposal.expires_at - handle.proposal.created_at
        assert (lives, handle.proposal.status) == (timedelta(minutes=5), "pending")


@row("MCPX-8.2-respect", "MCPX-6.2-use")
async def test_what_the_welcome_does_not_allow_is_not_even_sent() -> None:
    async with crowd() as made:
        refusals = made.bot.events(EnvelopeRefusal)
        with pytest.raises(PermissionError, match="propose it instead"):
            await made.bot.ask("tools/call", WRITE, to=WORKER)
        welcomes = made.bot.events(Welcome)
        await made.gateway.promote(BOT, "mcp/request:tools/*")
        await next_of(welcomes)
        assert "content" in await made.bot.request("tools/call", WRITE, to=WORKER)
        await made.gateway.promote(BOT, remove=("mcp/request:tools/*",))
        await next_of(welcomes)
        with pytest.raises(PermissionError, match="propose it instead"):
            await made.bot.ask("tools/call", WRITE, to=WORKER)
        refusals.end()
        assert [event async for event in refusals] == []


@row("MCPX-4.1-reserved", "MCPX-3-kind-system", "MCPX-3-kind-presence")
@pytest.mark.parametrize("kind", ["system/presence", "system/welcome", "system", "presence"])
async def test_what_is_the_gateways_own_is_not_sent(kind: str) -> None:
    async with crowd() as made:
        with pytest.raises(MalformedMessage, match="is the gateway's own"):
            await made.ana.say(EnvelopeDraft(kind, {}))


LIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "another tool": (
        "mcp/request:tools/call:write",
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "delete"}},
        {"to": [WORKER]},
    ),
    "another method": (
        "mcp/request:tools/list",
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": WRITE},
        {"to": [WORKER]},
    ),
    "another resource": (
        "mcp/proposal:resources/read:file:///srv/a",
        {"method": "resources/read", "params": {"uri": "file:///etc/passwd"}},
        {},
    ),
    "no request": ("mcp/request:tools/call:write", {"params": WRITE}, {"to": [WORKER]}),
    "no text": ("chat", {"words": "hello"}, {}),
}


@row("MCPX-4.3-wellformed", "MCPX-4.3-method", "MCPX-4.3-context", "MCPX-4.3-drop")
@row("MCPX-4.3-before", "MCPX-4.3-reputation", "MCPX-7.1-strict", "MCPX-7.1-report")
@pytest.mark.parametrize("lie", LIES)
async def test_what_is_not_what_it_says_is_dropped_counted_and_reported(lie: str) -> None:
    kind, payload, more = LIES[lie]
    async with crowd() as made:
        told: ParticipantEventStream[Event] = made.worker.events()
        await made.forge(kind, payload, **more)
        misbehaviour = await next_of(told)
        while not isinstance(misbehaviour, MemberMisbehaviour):
            assert isinstance(misbehaviour, Presence | Welcome), "it was told as if it were true"
            misbehaviour = await next_of(told)
        assert (misbehaviour.sender, misbehaviour.kind) == (MALLORY, kind)
        assert made.worker.reputation == {MALLORY: 1}
        chats = made.ana.events(Chat)
        await made.worker.report(misbehaviour)
        assert (await next_of(chats)).text.startswith(f"Dropped {kind} from {MALLORY}: ")


BROKEN: dict[str, dict[str, Any]] = {
    "another protocol": {"protocol": "mcpx/v9"},
    "no id": {"id": None},
    "an empty id": {"id": ""},
    "no sender": {"from": None},
    "no kind": {"kind": None},
    "a payload that is no object": {"payload": ["hello"]},
    "members at random": {"to": "everybody"},
}


@asynccontextmanager
async def careless() -> AsyncGenerator[tuple[str, Callable[[str], Awaitable[None]]]]:
    """A gateway that looks at no envelope: the address, and how to have it send a frame."""
    seats: list[ServerConnection] = []
    you = {"id": ANA, "capabilities": list(FULL)}
    welcome: dict[str, Any] = {
        "protocol": "mcpx/v0.1",
        "id": "w-1",
        "from": "system:gateway",
        "to": [ANA],
        "ts": "2026-01-02T03:04:05Z",
        "kind": "system/welcome",
        "payload": {"you": you, "participants": []},
    }

    async def seated(seat: ServerConnection) -> None:
        seats.append(seat)
        await seat.send(json.dumps(welcome))
        await seat.wait_closed()

    async def send(frame: str) -> None:
        await seats[-1].send(frame)

    async with serve(seated, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}", send


@row("MCPX-8.2-structure")
@pytest.mark.parametrize("fault", BROKEN)
async def test_an_envelope_that_is_none_is_not_processed_whoever_lets_it_through(
    fault: str,
) -> None:
    whole = {
        "protocol": "mcpx/v0.1",
        "id": "c-1",
        "from": MALLORY,
        "kind": "chat",
        "payload": {"text": "hello"},
    }
    broken = {name: said for name, said in {**whole, **BROKEN[fault]}.items() if said is not None}
    async with careless() as (url, send), join_topic(url, TOPIC, token="any") as ana:
        told: ParticipantEventStream[Event] = ana.events(Chat, MemberMisbehaviour)
        await send(json.dumps(broken))
        await send("no JSON at all")
        await send(json.dumps({**whole, "id": "c-2"}))
        seen = [await next_of(told) for _ in range(3)]
        assert [type(each) for each in seen] == [MemberMisbehaviour, MemberMisbehaviour, Chat]
        assert isinstance(seen[2], Chat)
        assert seen[2].id == "c-2"


@row("MCPX-4.3-defensive")
async def test_an_answer_to_what_a_late_joiner_never_saw_is_shown_and_not_acted_on() -> None:
    async with crowd() as made:
        requests = made.worker.events(Request)
        silent = ParticipantOptions(answer_within=timedelta(seconds=30))
        payload = {"jsonrpc": "2.0", "id": 5, "method": "x/y"}
        asked = await made.forge("mcp/request:x/y", payload, to=[MALLORY])
        await next_of(requests)
        token = made.gateway.token("agent:late")
        async with join_topic(made.gateway.url, TOPIC, token=token, options=silent) as late:
            responses = late.events(Response)
            answer = {"jsonrpc": "2.0", "id": 5, "result": {"done": True}}
            await made.forge("mcp/response:x/y", answer, correlation_id=asked)
            orphan = await next_of(responses)
            assert orphan.is_orphan
            assert late.reputation == {}


@row("MCPX-6.3-pref")
async def test_it_can_ask_for_what_concerns_it_alone() -> None:
    async with crowd() as made:
        token = made.gateway.token("agent:quiet")
        mode = DeliveryMode.DIRECTED
        async with join_topic(made.gateway.url, TOPIC, token=token, mode=mode) as quiet:
            chats = quiet.events(Chat)
            await made.ana.chat("not for you", to=BOT)
            await made.ana.chat("for all")
            assert (await next_of(chats)).text == "for all"


@row("MCPX-6.1c-match", "MCPX-6.1c-break")
async def test_another_version_of_the_protocol_is_not_spoken() -> None:
    async with crowd() as made:
        chats = made.ana.events(Chat)
        await made.forge("chat", {"text": "old"}, protocol="mcp-x/v0")
        await made.forge("chat", {"text": "new"})
        assert (await next_of(chats)).text == "new"


@row("MCPX-2.2-besteffort")
async def test_what_was_lost_to_a_slow_listener_is_told_and_not_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "MOST_EVENTS", 20)
    async with crowd() as made:
        slow, last = made.ana.events(Chat), made.ana.events(Presence)
        for number in range(30):
            await made.bot.chat(str(number))
        async with join_topic(made.gateway.url, TOPIC, token=made.gateway.token("agent:end")):
            while (await next_of(last)).id != "agent:end":
                pass
        missed = await anext(slow)
        assert isinstance(missed, MissedEnvelopes)
        assert missed.count == 10
        assert (await next_of(slow)).text == "10"
