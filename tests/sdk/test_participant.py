"""A participant of a topic: connection, requests, proposals, and other members."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from comity.errors import ACCESS_DENIED, EXHAUSTED, MalformedMessage, Misconfigured, Unavailable
from comity.mcp.actors import GATEWAY
from comity.sdk.topics.events import (
    MOST_BYTES,
    MOST_EVENTS,
    Chat,
    DisconnectionEvent,
    EnvelopeRefusal,
    Event,
    MemberFulfilment,
    MemberMisbehaviour,
    MissedEnvelopes,
    ParticipantEventStream,
    Presence,
    Proposal,
    ReconnectionEvent,
    Rejection,
    Request,
    Response,
    Welcome,
)
from comity.sdk.topics.membership import MOST_WAITED_FOR, ParticipantMembership
from comity.sdk.topics.participant import ParticipantOptions, join_topic
from comity.toolkit.resilience import RetrySchedule
from comity.topics import envelope as wire
from comity.topics.rules import FULL, RESPOND, DeliveryMode, ProposalState
from tests.sdk.made import ME, frame, request, response, welcome
from tests.sdk.room import room
from tests.sdk.scene import ANA, BEA, BOT, LIFETIME, QUICK, WORKER, WRITE, everybody, first, until
from tests.support.cases import loop_over


async def test_what_came_before_anybody_could_listen_is_not_lost_and_frames_are_overheard() -> None:
    frames: list[bytes] = []
    async with (
        room() as gateway,
        join_topic(
            gateway.url, "ops", token=BOT, options=ParticipantOptions(overhear=frames.append)
        ) as bot,
    ):
        assert isinstance(bot.already[0], Welcome)
        assert json.loads(frames[0])["kind"] == "system/welcome"
        stream = bot.events(Chat)
        await gateway.forge(BOT, ANA, "chat", {"text": "hello"})
        assert isinstance(await first(stream), Chat)
        assert json.loads(frames[-1])["payload"] == {"text": "hello"}
        assert bot.ended is None
    assert bot.ended is not None


async def test_it_connects_with_a_topic_a_mode_and_the_token_alone() -> None:
    async with (
        room() as gateway,
        join_topic(gateway.url, "ops", token=BOT, mode=DeliveryMode.DIRECTED),
    ):
        (upgrade,) = gateway.upgrades
        assert upgrade.path == "/ws?topic=ops&mode=directed"
        assert upgrade.headers["Authorization"] == f"Bearer {BOT}"


async def test_a_chat_is_told_to_those_who_listen() -> None:
    async with room() as gateway, everybody(gateway) as (ana, bot, _):
        heard: list[str] = []
        done = asyncio.Event()

        def hear(chat: Chat) -> None:
            heard.append(f"{chat.sender}: {chat.text}")
            done.set()

        ana.on(Chat, hear)
        stream = ana.events(Chat)
        sent = await bot.chat("hello", to=ANA, reply_to="what-you-said")
        event = await first(stream)
        assert isinstance(event, Chat)
        assert (event.id, event.to, event.correlation_id) == (sent, (ANA,), "what-you-said")
        async with asyncio.timeout(20):
            await done.wait()
        assert heard == ["agent:bot: hello"]


async def test_a_callback_that_fails_is_called_again_and_one_that_was_stopped_is_not() -> None:
    async with room() as gateway, everybody(gateway) as (ana, bot, _):
        heard: list[str] = []
        stopped: list[str] = []
        twice = asyncio.Event()

        async def hear(chat: Chat) -> None:
            heard.append(chat.text)
            if len(heard) == 2:
                twice.set()
            raise RuntimeError("on purpose")

        stop = ana.on(Chat, lambda chat: stopped.append(chat.text))
        ana.on(Chat, hear)
        stop()
        await bot.chat("one")
        await bot.chat("two")
        async with asyncio.timeout(20):
            await twice.wait()
        assert (heard, stopped) == (["one", "two"], [])


async def test_an_error_is_raised_with_the_words_of_whoever_was_asked() -> None:
    async with room() as gateway, everybody(gateway) as (ana, _, worker):
        with pytest.raises(Unavailable, match="agent:wk answered: there is no tool 'dig' here"):
            await ana.request("tools/call", {"name": "dig"}, to=worker.id)
        answer = await ana.ask("tools/call", {"name": "dig"}, to=worker.id)
        assert answer.error is not None
        assert answer.error["code"] == -32602


async def test_who_may_not_ask_can_be_told_so_instead() -> None:
    async with room() as gateway, everybody(gateway) as (_, bot, worker):
        with pytest.raises(PermissionError, match="propose it instead"):
            await bot.request("tools/call", WRITE, to=worker.id, or_propose=False)
        assert gateway.said == []


async def test_who_does_not_answer_is_waited_for_no_longer_than_said() -> None:
    async with room({ANA: FULL}) as gateway, join_topic(gateway.url, "ops", token=ANA) as ana:
        with pytest.raises(TimeoutError, match="no answer to mcp/request:ping from agent:wk"):
            await ana.request("ping", to=WORKER, within=timedelta(milliseconds=50))


async def test_what_the_gateway_refused_is_told() -> None:
    async with room({ANA: ("chat",)}) as gateway, join_topic(gateway.url, "ops", token=ANA) as ana:
        gateway.allowed[ANA] = ()
        refusals = ana.events(EnvelopeRefusal)
        sent = await ana.chat("hello")
        refused = await first(refusals)
        assert isinstance(refused, EnvelopeRefusal)
        assert (refused.id, refused.error, refused.attempted_kind) == (
            sent,
            "capability_violation",
            "chat",
        )


async def test_a_request_can_be_answered_by_hand() -> None:
    async with (
        room({ANA: FULL, WORKER: RESPOND}) as gateway,
        join_topic(gateway.url, "ops", token=WORKER, serves=None) as worker,
        join_topic(gateway.url, "ops", token=ANA) as ana,
    ):
        requests = worker.events(Request)
        wanted = asyncio.create_task(ana.request("x/y", {}, to=WORKER))
        request = await first(requests)
        assert isinstance(request, Request)
        await worker.respond(request, {"result": {"by": "hand"}})
        assert await wanted == {"by": "hand"}


async def test_what_others_do_wrong_can_be_told_to_all() -> None:
    async with room() as gateway, everybody(gateway) as (ana, _, _):
        await ana.report(MemberMisbehaviour(BOT, "its kind is not true", kind="chat", count=3))
        told = await gateway.until_said("chat")
        assert b"Dropped chat from agent:bot: its kind is not true (3 times" in bytes(told.payload)


async def test_a_response_to_somebody_elses_request_is_shown_with_what_was_asked() -> None:
    async with room() as gateway, everybody(gateway) as (ana, bot, worker):
        responses = bot.events(Response)
        await ana.request("tools/call", WRITE, to=worker.id)
        seen = await first(responses)
        assert isinstance(seen, Response)
        assert (str(seen.asked), seen.is_orphan) == ("mcp/request:tools/call:write", False)


async def test_it_comes_back_after_a_cut_and_says_what_waited() -> None:
    async with room() as gateway, join_topic(gateway.url, "ops", token=BOT, options=QUICK) as bot:
        stream = bot.events()
        gateway.statuses = [503, 429]
        await gateway.cut(BOT)
        assert isinstance(await until(stream, DisconnectionEvent), DisconnectionEvent)
        waiting = asyncio.create_task(bot.chat("I was away"))
        back = await until(stream, ReconnectionEvent)
        assert isinstance(back, ReconnectionEvent)
        assert back.attempts == 3
        await waiting
        assert (await gateway.until_said("chat")).sender == BOT
        assert bot.is_connected


@loop_over(("code", "word"), [(4001, "replaced this one"), (4003, "any more")])
async def test_it_stays_away_when_it_was_replaced_or_put_out(code: int, word: str) -> None:
    async with room() as gateway, join_topic(gateway.url, "ops", token=BOT, options=QUICK) as bot:
        stream = bot.events(Chat)
        pending = await bot.propose("tools/call", WRITE)
        await gateway.cut(BOT, code, "go")
        with pytest.raises(Unavailable, match=word):
            await pending
        with pytest.raises(StopAsyncIteration):
            await first(stream)
        with pytest.raises(Unavailable, match=word) as refused:
            await bot.chat("anybody?")
        assert refused.value.fault is ACCESS_DENIED
        assert not bot.is_connected
        assert len(gateway.upgrades) == 1


@loop_over(
    ("status", "advice"),
    [(401, "send a token"), (403, "ask an operator"), (404, "name of the topic"), (302, "address")],
)
async def test_who_is_not_let_in_is_told_what_to_do(status: int, advice: str) -> None:
    async with room() as gateway:
        gateway.statuses = [status]
        with pytest.raises(Unavailable, match=advice):
            async with join_topic(gateway.url, "ops", token=BOT, options=QUICK):
                pass
        assert len(gateway.upgrades) == 1


async def test_a_refusal_is_told_in_its_own_words_and_who_we_would_be_is_asked_for() -> None:
    async with room() as gateway:
        gateway.statuses = [403]
        with pytest.raises(Unavailable, match="HTTP 403: refused;"):
            async with join_topic(
                gateway.url, "ops", token=BOT, options=ParticipantOptions(alias="ana")
            ):
                pass
        assert gateway.upgrades[0].path.endswith("&as=ana")


async def test_a_gateway_that_is_not_there_is_tried_for_a_while() -> None:
    short = ParticipantOptions(patience=timedelta(milliseconds=300), backoff=QUICK.backoff)
    with pytest.raises(Unavailable, match="cannot be reached"):
        async with join_topic("http://127.0.0.1:9", "ops", token=BOT, options=short):
            pass


@loop_over(("url", "topic"), [("gateway", "ops"), ("ftp://host", "ops"), ("http://host", "o/p")])
async def test_an_address_that_is_none_is_told_at_once(url: str, topic: str) -> None:
    with pytest.raises(Misconfigured):
        async with join_topic(url, topic, token=BOT):
            pass


async def test_after_leaving_nothing_is_sent_and_nobody_waits() -> None:
    async with room() as gateway:
        async with join_topic(gateway.url, "ops", token=BOT) as bot:
            stream = bot.events()
        with pytest.raises(Unavailable, match="left the topic"):
            await bot.chat("one more thing")
        async with asyncio.timeout(20):
            assert [event async for event in stream if isinstance(event, Chat)] == []
            assert [event async for event in bot] == []


async def test_a_gateway_that_cuts_at_once_is_not_run_at() -> None:
    slow = ParticipantOptions(backoff=RetrySchedule(timedelta(seconds=60), timedelta(seconds=60)))
    async with room() as gateway, join_topic(gateway.url, "ops", token=BOT, options=slow) as bot:
        stream = bot.events()
        await gateway.cut(BOT, 1011, "something went wrong")
        await until(stream, DisconnectionEvent)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(gateway.upgrades) == 1
        assert not bot.is_connected


LATER = ParticipantOptions(has_later_kinds=True)


async def test_what_the_gateway_refuses_in_the_end_is_proposed_too() -> None:
    async with room() as gateway, everybody(gateway) as (ana, bot, worker):
        welcomes = bot.events(Welcome)
        await gateway.promote(BOT, *FULL)
        await first(welcomes)
        # Taken away again, and the word of it is not there yet.
        gateway.allowed[BOT] = ("mcp/proposal:*", "chat")
        proposals = ana.events(Proposal)
        wanted = asyncio.create_task(bot.request("tools/call", WRITE, to=worker.id))
        proposal = await first(proposals)
        assert isinstance(proposal, Proposal)
        await ana.fulfil(proposal)
        assert "content" in await wanted


async def test_a_proposal_is_followed_to_its_end() -> None:
    async with room() as gateway, everybody(gateway) as (ana, bot, worker):
        fulfilments = bot.events(MemberFulfilment)
        proposals = ana.events(Proposal)
        handle = await bot.propose("tools/call", WRITE, to=worker.id)
        assert handle.proposal.status is ProposalState.PENDING
        await first(proposals)
        assert [each.id for each in ana.proposals] == [handle.id]
        await ana.fulfil(handle.id)
        assert "content" in await handle
        told = await first(fulfilments)
        assert isinstance(told, MemberFulfilment)
        assert (told.is_first, told.is_as_proposed, told.request.sender) == (True, True, ANA)
        assert (handle.proposal.status, handle.proposal.fulfilled_by) == (
            ProposalState.ANSWERED,
            ANA,
        )
        with pytest.raises(Unavailable, match=f"is fulfilled|is answered by {ANA}"):
            await ana.fulfil(handle.id)


async def test_a_proposal_that_nobody_fulfils_ends_with_its_time() -> None:
    short = ParticipantOptions(lifetime=timedelta(milliseconds=100))
    async with room() as gateway, join_topic(gateway.url, "ops", token=BOT, options=short) as bot:
        with pytest.raises(Unavailable, match="is expired and has no answer"):
            await bot.request("tools/call", WRITE, to="agent:nobody")
        assert bot.proposals == ()


async def test_nobody_is_asked_twice_for_one_proposal() -> None:
    async with room() as gateway, everybody(gateway) as (ana, bot, worker):
        gateway.allowed[BEA] = FULL
        async with join_topic(gateway.url, "ops", token=BEA) as bea:
            seen = ana.events(Proposal), bea.events(Proposal)
            handle = await bot.propose("tools/call", WRITE, to=worker.id)
            for stream in seen:
                await first(stream)
            # Neither hears of the other's before it has sent its own.
            one, other = await asyncio.gather(ana.fulfil(handle.id), bea.fulfil(handle.id))
            assert sorted([one.error is None, other.error is None]) == [False, True]


async def test_what_was_proposed_to_one_is_not_done_by_another() -> None:
    async with room() as gateway, everybody(gateway) as (ana, bot, worker):
        proposals = ana.events(Proposal)
        handle = await bot.propose("tools/call", WRITE, to=worker.id)
        await first(proposals)
        with pytest.raises(MalformedMessage, match="name with `to` who fulfils it: agent:wk"):
            await ana.fulfil(handle.id, to=BOT)
        broad = await bot.propose("tools/call", WRITE)
        await first(proposals)
        with pytest.raises(MalformedMessage, match="a member"):
            await ana.fulfil(broad.id)
        with pytest.raises(MalformedMessage, match="no proposal"):
            await ana.fulfil("never-seen")


async def test_rejecting_and_withdrawing_are_off_unless_a_topic_has_them() -> None:
    async with room() as gateway, everybody(gateway) as (ana, bot, worker):
        proposals = ana.events(Proposal)
        handle = await bot.propose("tools/call", WRITE, to=worker.id)
        proposal = await first(proposals)
        assert isinstance(proposal, Proposal)
        with pytest.raises(PermissionError, match="is no kind of"):
            await ana.reject(proposal)
        with pytest.raises(PermissionError, match="is no kind of"):
            await handle.withdraw()


async def test_a_topic_with_later_kinds_knows_no_and_never_mind() -> None:
    async with room({ANA: FULL, BOT: ("mcp/*", "chat")}) as gateway:
        gateway.is_strict = False
        gateway.allowed[BOT] = ("mcp/proposal:*", "mcp/withdraw", "chat")
        async with (
            join_topic(gateway.url, "ops", token=ANA, options=LATER) as ana,
            join_topic(gateway.url, "ops", token=BOT, options=LATER) as bot,
        ):
            proposals, rejections = ana.events(Proposal), bot.events(Rejection)
            handle = await bot.propose("tools/call", WRITE)
            proposal = await first(proposals)
            assert isinstance(proposal, Proposal)
            await ana.reject(proposal, "not today")
            with pytest.raises(Unavailable, match="said no: not today"):
                await handle
            rejection = await first(rejections)
            assert isinstance(rejection, Rejection)
            assert rejection.proposal.status is ProposalState.REJECTED
            other = await bot.propose("tools/call", WRITE)
            await first(proposals)
            await other.withdraw("never mind")
            with pytest.raises(Unavailable, match="it was withdrawn"):
                await other
            assert other.proposal.status is ProposalState.WITHDRAWN


MALLORY = "agent:mallory"


def member() -> ParticipantMembership:
    made = ParticipantMembership(LIFETIME, has_later_kinds=False)
    assert made.greeted(welcome(ME, ANA))
    return made


async def test_a_member_who_was_not_asked_cannot_answer_for_another() -> None:
    async with room({ANA: FULL}) as gateway, join_topic(gateway.url, "ops", token=ANA) as ana:
        blamed = ana.events(MemberMisbehaviour)
        wanted = asyncio.create_task(ana.request("tools/call", WRITE, to=WORKER))
        asked = await gateway.until_said("mcp/request")
        kind = "mcp/response:tools/call:write"
        answer = {"jsonrpc": "2.0", "id": 1, "result": {"by": "mallory"}}
        await gateway.forge(ANA, MALLORY, kind, answer, correlation_id=asked.id)
        told = await first(blamed)
        assert isinstance(told, MemberMisbehaviour)
        assert (told.sender, wanted.done()) == (MALLORY, False)
        answer["result"] = {"by": "worker"}
        await gateway.forge(ANA, WORKER, kind, answer, correlation_id=asked.id)
        assert await wanted == {"by": "worker"}


async def test_nor_answer_what_another_fulfilled_for_us() -> None:
    async with room() as gateway, everybody(gateway) as (ana, bot, worker):
        del worker
        proposed = await bot.propose("tools/call", WRITE, to="agent:else")
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": WRITE}
        kind, about = "mcp/request:tools/call:write", {"correlation_id": proposed.id}
        requests = bot.events(Request)
        # Addressed to itself, this is no fulfilment of what was proposed to another.
        fake = await gateway.forge(BOT, MALLORY, kind, call, to=[MALLORY], **about)
        real = await gateway.forge(BOT, ANA, kind, call, to=["agent:else"], **about)
        for _ in range(2):
            await first(requests)
        answer = {"jsonrpc": "2.0", "id": 1, "result": {"by": "mallory"}}
        kind = "mcp/response:tools/call:write"
        responses = bot.events(Response)
        await gateway.forge(BOT, MALLORY, kind, answer, correlation_id=fake)
        await first(responses)
        assert not proposed.answer.done()
        answer["result"] = {"by": "else"}
        await gateway.forge(BOT, "agent:else", kind, answer, correlation_id=real)
        assert await proposed == {"by": "else"}
        assert proposed.proposal.fulfilled_by == ana.id


@loop_over(
    ("kind", "payload"),
    [
        ("system/welcome", {"you": {"id": MALLORY, "capabilities": ["mcp/*"]}}),
        ("system/error", {"error": "capability_violation", "message": "give up"}),
        ("system/presence", {"event": "leave", "participant": {"id": WORKER}}),
    ],
)
async def test_a_member_cannot_speak_for_the_gateway(kind: str, payload: dict[str, Any]) -> None:
    async with room() as gateway, everybody(gateway) as (ana, _, _):
        stream = ana.events()
        wanted = asyncio.create_task(ana.request("tools/call", WRITE, to="agent:slow"))
        asked = await gateway.until_said("mcp/request")
        await gateway.forge(ANA, MALLORY, kind, payload, to=[ANA], correlation_id=asked.id)
        blamed = await until(stream, MemberMisbehaviour)
        assert isinstance(blamed, MemberMisbehaviour)
        assert (blamed.sender, ana.id, wanted.done()) == (MALLORY, ANA, False)
        assert WORKER in ana.others
        wanted.cancel()


async def test_what_cannot_be_read_breaks_nothing() -> None:
    async with room() as gateway, everybody(gateway) as (ana, bot, _):
        chats = ana.events(Chat)
        for junk in (b"", b"{", b"[" * 100_000, b'"' + b"x" * 1_000_000 + b'"', b"\xff"):
            # What is no UTF-8 does not even reach us.
            await gateway.inject(ANA, junk)
        await bot.chat("still there?")
        heard = await first(chats)
        assert isinstance(heard, Chat)
        assert ana.reputation[""] >= 4


async def test_a_line_that_does_not_begin_with_a_welcome_is_none() -> None:
    made = ParticipantMembership(LIFETIME, has_later_kinds=False)
    assert not made.greeted(frame("chat", {"text": "hello"}, ANA))
    assert not made.greeted(frame("system/welcome", {}, GATEWAY))
    assert not made.greeted(frame("system/welcome", {"you": {"id": ME}}, "agent:a"))


async def test_only_so_many_requests_wait_at_once() -> None:
    made = member()
    for number in range(MOST_WAITED_FOR):
        made.expect(wire.decode_envelope(request(id=str(number), sender=ME)), 1)
    with pytest.raises(Unavailable) as refused:
        made.expect(wire.decode_envelope(request(id="more", sender=ME)), 1)
    assert refused.value.fault is EXHAUSTED
    made.forget("0")
    made.expect(wire.decode_envelope(request(id="more", sender=ME)), 1)


async def test_an_answer_comes_once_and_a_second_one_changes_nothing() -> None:
    made = member()
    answer = made.expect(wire.decode_envelope(request(id="asked", sender=ME, to=[WORKER])), 7)
    made.heard(response("asked", WORKER, payload={"result": {"n": 1}}))
    made.heard(response("asked", WORKER, payload={"result": {"n": 2}}))
    assert (await answer).result == {"n": 1}


async def test_another_welcome_is_told_and_says_who_is_there_now() -> None:
    made = member()
    stream = made.events(Welcome)
    assert made.others == {ANA: ("chat",)}
    made.heard(welcome(ME, BOT))
    told: Event | Any = await first(stream)
    assert isinstance(told, Welcome)
    assert made.others == {BOT: ("chat",)}


@pytest.mark.requirement("MCPX-3.5.1-ignore")
async def test_a_welcome_of_another_is_nothing_to_us() -> None:
    async with room() as gateway, everybody(gateway) as (ana, bot, _):
        told = ana.events(Welcome, Chat)
        payload = {"you": {"id": BOT, "capabilities": ["chat"]}}
        await gateway.forge(ANA, GATEWAY, "system/welcome", payload, to=[BOT])
        await bot.chat("hello")
        assert isinstance(await first(told), Chat)
        assert (ana.id, ana.capabilities) == (ANA, FULL)
        assert ana.reputation == {}


def chat(text: str) -> Chat:
    return Chat(wire.decode_envelope(frame("chat", {"text": text})), text)


def text_of(event: object) -> str:
    assert isinstance(event, Chat)
    return event.text


def listening(
    *wanted: type[Any],
) -> tuple[ParticipantEventStream[Any], list[ParticipantEventStream[Any]]]:
    forgotten: list[ParticipantEventStream[Any]] = []
    return ParticipantEventStream(wanted or (object,), forgotten.append), forgotten


async def test_only_what_is_wanted_is_kept() -> None:
    stream, _ = listening(Chat)
    for event in (Presence("leave", "agent:a"), chat("one"), chat("two")):
        stream.give(event)
    stream.end()
    assert [text_of(event) async for event in stream] == ["one", "two"]


async def test_whoever_waits_is_given_what_comes() -> None:
    stream, _ = listening(Chat)
    waiting = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    stream.give(chat("at last"))
    assert text_of(await waiting) == "at last"


async def test_who_is_too_slow_is_told_how_many_were_lost_and_which() -> None:
    stream, _ = listening(Chat)
    events = [chat(str(number)) for number in range(MOST_EVENTS + 5)]
    for event in events:
        stream.give(event)
    missed = await anext(stream)
    assert isinstance(missed, MissedEnvelopes)
    assert (missed.count, missed.first, missed.last) == (5, events[0].id, events[4].id)
    assert text_of(await anext(stream)) == "5"


async def test_few_that_are_large_are_bounded_too() -> None:
    stream, _ = listening()
    large: Event = chat("x" * (MOST_BYTES // 20))
    for _ in range(30):
        stream.give(large)
    missed = await anext(stream)
    assert isinstance(missed, MissedEnvelopes)
    assert missed.count == 11


async def test_a_closed_stream_gives_up_what_waits_and_is_forgotten() -> None:
    stream, forgotten = listening()
    stream.give(chat("never read"))
    stream.close()
    assert forgotten == [stream]
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
