"""A participant in a topic: joins, speaks, asks, is asked, and is told what happens."""

import asyncio
import json
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from comity.rules.capabilities import FULL, RESPOND
from comity.rules.topics import Mode
from comity.sdk.events import (
    Chat,
    Misbehaviour,
    Presence,
    Refused,
    Request,
    Response,
    Welcome,
)
from comity.sdk.participant import Options, join
from comity.sdk.writing import Draft
from comity.wire.errors import MalformedMessage, Unavailable
from tests.sdk.room import room
from tests.sdk.scene import ANA, BOT, WORKER, WRITE, everybody, first


async def test_the_welcome_says_who_we_are_and_who_else_is_there() -> None:
    async with room({ANA: FULL}) as gateway, join(gateway.url, "ops", token=ANA) as ana:
        assert (ana.id, ana.capabilities, dict(ana.others)) == (ANA, FULL, {})
        presences = ana.events(Presence)
        async with join(gateway.url, "ops", token=BOT) as bot:
            assert bot.others == {ANA: FULL}
            came = await first(presences)
            assert isinstance(came, Presence)
            assert came.has_come
            assert ana.others == {BOT: bot.capabilities}
        gone = await first(presences)
        assert isinstance(gone, Presence)
        assert (gone.event, gone.id, dict(ana.others)) == ("leave", BOT, {})


async def test_what_came_before_anybody_could_listen_is_not_lost_and_frames_are_overheard() -> None:
    frames: list[bytes] = []
    async with (
        room() as gateway,
        join(gateway.url, "ops", token=BOT, options=Options(overhear=frames.append)) as bot,
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
    async with room() as gateway, join(gateway.url, "ops", token=BOT, mode=Mode.DIRECTED):
        (upgrade,) = gateway.upgrades
        assert upgrade.path == "/ws?topic=ops&mode=directed"
        assert upgrade.headers["Authorization"] == f"Bearer {BOT}"


async def test_what_is_sent_is_whole_and_has_its_moment_and_an_id_of_its_own() -> None:
    async with room() as gateway, join(gateway.url, "ops", token=BOT) as bot:
        await bot.chat("hello", form="markdown")
        told = await gateway.until_said("chat")
        assert (told.protocol, told.sender, told.to) == ("mcpx/v0.1", BOT, ())
        assert UUID(told.id).version == 4
        assert datetime.fromisoformat(told.ts).tzinfo is not None
        assert bytes(told.payload) == b'{"text":"hello","format":"markdown"}'


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


async def test_a_request_is_answered_by_the_tool_of_whoever_was_asked() -> None:
    async with room() as gateway, everybody(gateway) as (ana, _, worker):
        result = await ana.request("tools/call", WRITE, to=worker.id)
        assert result == {"content": [{"type": "text", "text": "wrote /srv/a"}]}
        asked = await gateway.until_said("mcp/request")
        answer = await gateway.until_said("mcp/response")
        assert asked.kind == "mcp/request:tools/call:write"
        assert (answer.kind, answer.correlation_id, answer.to) == (
            "mcp/response:tools/call:write",
            asked.id,
            (ANA,),
        )


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


async def test_another_welcome_changes_what_we_may() -> None:
    async with room() as gateway, everybody(gateway) as (_, bot, worker):
        assert not bot.may_send("mcp/request:tools/call")
        welcomes = bot.events(Welcome)
        await gateway.promote(BOT, *FULL)
        await first(welcomes)
        assert bot.may_send("mcp/request:tools/call")
        assert "content" in await bot.request("tools/call", WRITE, to=worker.id)


@pytest.mark.parametrize("kind", ["system/welcome", "system", "presence", "SYSTEM/error"])
async def test_what_is_the_gateways_own_is_never_sent(kind: str) -> None:
    async with room() as gateway, everybody(gateway) as (ana, _, _):
        with pytest.raises(MalformedMessage, match="gateway's own"):
            await ana.say(Draft(kind, {}))
        assert gateway.said == []


async def test_who_does_not_answer_is_waited_for_no_longer_than_said() -> None:
    async with room({ANA: FULL}) as gateway, join(gateway.url, "ops", token=ANA) as ana:
        with pytest.raises(TimeoutError, match="no answer to mcp/request:ping from agent:wk"):
            await ana.request("ping", to=WORKER, within=timedelta(milliseconds=50))


async def test_what_the_gateway_refused_is_told() -> None:
    async with room({ANA: ("chat",)}) as gateway, join(gateway.url, "ops", token=ANA) as ana:
        gateway.allowed[ANA] = ()
        refusals = ana.events(Refused)
        sent = await ana.chat("hello")
        refused = await first(refusals)
        assert isinstance(refused, Refused)
        assert (refused.id, refused.error, refused.attempted_kind) == (
            sent,
            "capability_violation",
            "chat",
        )


async def test_every_participant_answers_as_an_mcp_server() -> None:
    async with room() as gateway, everybody(gateway) as (ana, bot, _):
        assert await ana.request("ping", to=BOT) == {}
        hello = await ana.request("initialize", {"protocolVersion": "2025-06-18"}, to=BOT)
        assert hello["protocolVersion"] == "2025-06-18"
        with pytest.raises(Unavailable, match="there is no tools/list here"):
            await ana.request("tools/list", to=bot.id)


async def test_a_request_can_be_answered_by_hand() -> None:
    async with (
        room({ANA: FULL, WORKER: RESPOND}) as gateway,
        join(gateway.url, "ops", token=WORKER, serves=None) as worker,
        join(gateway.url, "ops", token=ANA) as ana,
    ):
        requests = worker.events(Request)
        wanted = asyncio.create_task(ana.request("x/y", {}, to=WORKER))
        request = await first(requests)
        assert isinstance(request, Request)
        await worker.respond(request, {"result": {"by": "hand"}})
        assert await wanted == {"by": "hand"}


async def test_what_others_do_wrong_can_be_told_to_all() -> None:
    async with room() as gateway, everybody(gateway) as (ana, _, _):
        await ana.report(Misbehaviour(BOT, "its kind is not true", kind="chat", count=3))
        told = await gateway.until_said("chat")
        assert b"Dropped chat from agent:bot: its kind is not true (3 times" in bytes(told.payload)


async def test_a_response_to_somebody_elses_request_is_shown_with_what_was_asked() -> None:
    async with room() as gateway, everybody(gateway) as (ana, bot, worker):
        responses = bot.events(Response)
        await ana.request("tools/call", WRITE, to=worker.id)
        seen = await first(responses)
        assert isinstance(seen, Response)
        assert (str(seen.asked), seen.is_orphan) == ("mcp/request:tools/call:write", False)
