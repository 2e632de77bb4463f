"""Words in and out of channels, with a real model: once, moderated, answered where asked. (§14)"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.live.channel_scene import ALLOWED, PATIENCE, Error, Puppet, Scene, message, scene
from tests.live.model_server import ModelServer, Said, serving

METHOD_NOT_FOUND = -32601
SECRET = "ghp_" + "a1B2c3D4e5F6g7H8i9J0" * 2


def models(server: ModelServer) -> str:
    return f"""
[[models]]
id = "main"
api = "openai"
url = "{server.url}/v1"
model = "m"
"""


ROW = """
[[channels]]
server = "chat"
"""


@asynccontextmanager
async def talking(
    folder: Path,
    *puppets: Puppet,
    says: tuple[Said, ...] = (),
    rows: str = ROW,
    live: str | Mapping[str, str] = ALLOWED,
) -> AsyncGenerator[tuple[Scene, ModelServer]]:
    async with (
        serving(*says) as model,
        scene(folder, *puppets, rows=models(model) + rows, live=live) as stage,
    ):
        yield stage, model


@pytest.mark.requirement("MCPL-4.1-chincoming", "MCPL-4.1-chpublish", "MCPL-14.3-publish")
@pytest.mark.requirement("MCPL-14.3-incomingresult", "MCPL-14.3-mapping")
async def test_a_message_is_answered_by_the_model_in_its_channel_once(tmp_path: Path) -> None:
    server = Puppet("chat")
    server.plays["channels/publish"] = lambda _: {"delivered": True, "messageId": "out1"}
    async with talking(tmp_path, server, says=(Said("All is well."),)) as (_, model):
        await server.register("room")
        asked = message("What's the status?", threadId="t1")
        (result,) = await server.hears(asked)
        assert result == {
            "messageId": asked["messageId"],
            "accepted": True,
            "conversationId": "channel:chat/room",
        }
        (published,) = await server.until("channels/publish")
        assert published["channelId"] == "room"
        assert published["conversationId"] == "channel:chat/room"
        assert published["content"] == [{"type": "text", "text": "All is well."}]
        assert published["stream"] in (True, False)
        # Sent once more it is known, and what comes back of our own words too.
        (again,) = await server.hears(asked)
        assert (again["accepted"], again["reason"]) == (False, "duplicate")
        (echo,) = await server.hears(message("something else", id="out1"))
        assert (echo["accepted"], echo["reason"]) == (False, "own_words")
        assert "as chat/room says" in str(model.requests[0].body)
        assert len(model.requests) == 1
        assert len(server.said("channels/publish")) == 1


@pytest.mark.requirement("MCPL-14.3-incomingresult")
async def test_each_message_of_a_batch_has_a_result_of_its_own(tmp_path: Path) -> None:
    server = Puppet("chat")
    async with talking(tmp_path, server) as (_, model):
        await server.register("room")
        await server.register("out", direction="outbound")
        twice = message("hello", id="m")
        broken = {**message("x", id="b"), "content": {"type": "hologram"}}
        results = await server.hears(
            twice, message("x", "nowhere", id="n"), twice, broken, message("x", "out", id="o")
        )
        assert [each["messageId"] for each in results] == ["m", "n", "m", "b", "o"]
        assert [each["accepted"] for each in results] == [True, False, False, False, False]
        assert [each.get("code") for each in results] == [None, -32023, None, -32602, -32017]
        assert results[2]["reason"] == "duplicate"
        await server.until("channels/publish")
        assert len(model.requests) == 1


@pytest.mark.requirement("MCPL-14.3-mapping")
@pytest.mark.parametrize(
    ("by", "conversations"),
    [
        ("channel", ["channel:chat/room"] * 3),
        ("thread", ["channel:chat/room#thread:t1", "channel:chat/room#thread:t2"] * 2),
        ("author", ["channel:chat/room#author:u1"] * 3),
    ],
)
async def test_messages_are_one_conversation_by_channel_or_thread_or_author(
    tmp_path: Path, by: str, conversations: list[str]
) -> None:
    server = Puppet("chat")
    async with talking(tmp_path, server, rows=f'{ROW}conversation = "{by}"\n'):
        await server.register("room")
        results = await server.hears(*(message("x", threadId=each) for each in ("t1", "t2", "t1")))
        assert [each["conversationId"] for each in results] == conversations[:3]
        await server.until("channels/publish", 3)


async def test_a_message_is_taken_once_also_after_a_restart(tmp_path: Path) -> None:
    server = Puppet("chat")
    asked = message("hello", id="m1")
    async with talking(tmp_path, server) as (_, _):
        await server.register("room")
        (result,) = await server.hears(asked)
        assert result["accepted"]
        await server.until("channels/publish")
    again = Puppet("chat")
    async with talking(tmp_path, again) as (_, model):
        await again.register("room")
        (result,) = await again.hears(asked)
        assert (result["accepted"], result["reason"]) == (False, "duplicate")
        assert result["conversationId"] == "channel:chat/room"
        assert model.requests == []
        assert again.said("channels/publish") == []


@pytest.mark.requirement("MCPL-14-hostrouting")
async def test_a_server_has_no_say_in_where_an_answer_goes(tmp_path: Path) -> None:
    chat, other = Puppet("chat"), Puppet("other")
    async with talking(tmp_path, chat, other) as (_, _):
        await chat.register("room", "elsewhere", metadata={"default": True})
        await other.register("room")
        for method in ("channels/setDefault", "channels/default", "channels/route"):
            assert await other.code(method, {"channelId": "room"}) == METHOD_NOT_FOUND
        wish: dict[str, Any] = {
            "defaultOutgoing": {"channelId": "elsewhere"},
            "replyTo": "elsewhere",
        }
        await chat.hears(message("hello", metadata=wish, **wish))
        (published,) = await chat.until("channels/publish")
        assert published["channelId"] == "room"
        assert other.said("channels/publish") == []


async def test_what_nobody_routed_starts_nothing(tmp_path: Path) -> None:
    server = Puppet("chat")
    rows = '[[channels]]\nserver = "chat"\nchannel = "other"\n'
    async with talking(tmp_path, server, rows=rows) as (_, model):
        await server.register("room")
        (result,) = await server.hears(message("hello"))
        assert (result["accepted"], result["reason"]) == (False, "no_turn")
        assert model.requests == []


@pytest.mark.requirement("MCPL-14.5-moderate", "MCPL-14.5-views")
@pytest.mark.requirement("MCPL-4.1-choutchunk", "MCPL-14.3-outchunk")
@pytest.mark.requirement("MCPL-4.1-choutcomplete", "MCPL-14.3-outcomplete")
async def test_what_goes_out_and_is_watched_holds_no_secret_though_it_comes_in_pieces(
    tmp_path: Path,
) -> None:
    text = " ".join(f"word{number}" for number in range(200)) + f" the key is {SECRET} ok?"
    cut = text.index(SECRET) + 10
    says = Said(text, pieces=(text[:700], text[700:cut], text[cut:]))
    server = Puppet("chat")
    async with talking(tmp_path, server, says=(says,)):
        await server.register("room")
        await server.hears(message("tell me"))
        (published,) = await server.until("channels/publish")
        (complete,) = await server.until("channels/outgoing/complete")
        chunks = server.said("channels/outgoing/chunk")
        told = published["content"][0]["text"]
        assert SECRET not in str([published, complete, chunks])
        assert "[secret:" in told
        assert complete["content"] == published["content"]
        assert "".join(each["delta"] for each in chunks) == told
        assert [each["index"] for each in chunks] == list(range(len(chunks)))
        assert len(chunks) > 1
        for each in (*chunks, complete):
            assert each["channelId"] == "room"
            assert each["conversationId"] == "channel:chat/room"
            assert each["inferenceId"].startswith("inf_")
        assert published["stream"] is True


async def test_others_watch_only_what_they_were_told_of_by_name(tmp_path: Path) -> None:
    """D-71: the server of a channel is told, and others only with a grant to observe it."""
    server, nosy, trusted = Puppet("chat"), Puppet("nosy"), Puppet("trusted")
    named = f'{ALLOWED}\n[servers.live.scopes."channels.observe"]\nwhitelist = ["chat/room"]\n'
    live = {"trusted": named}
    async with talking(tmp_path, server, nosy, trusted, live=live):
        await server.register("room", "private")
        await server.hears(message("one"), message("two", "private"))
        await server.until("channels/outgoing/complete", 2)
        (seen,) = await trusted.until("channels/outgoing/complete")
        assert seen["channelId"] == "chat/room"
        assert trusted.said("channels/publish") == []
        await nosy.asked("channels/list", {})
        assert nosy.said("channels/outgoing/complete") == []
        assert nosy.said("channels/outgoing/chunk") == []


@pytest.mark.requirement("MCPL-14.5-thinking", "MCPL-14.1-gate")
async def test_thoughts_are_seen_by_whom_that_was_granted_by_name_alone(tmp_path: Path) -> None:
    chat, wild, granted = Puppet("chat"), Puppet("wild"), Puppet("granted")
    live = {
        "wild": 'enabled = ["*"]',
        "granted": 'enabled = ["channels.thinking"]',
    }
    says = Said("yes", thinking=f"they would like a yes, not {SECRET}")
    async with talking(tmp_path, chat, wild, granted, says=(says,), live=live):
        await chat.register("room")
        await chat.hears(message("yes?"))
        (seen,) = await granted.until("channels/outgoing/complete")
        assert seen["channelId"] == "thinking"
        assert "they would like a yes" in seen["content"][0]["text"]
        assert SECRET not in str(seen)
        await chat.until("channels/outgoing/complete")
        for each in (chat, wild):
            await each.asked("channels/list", {})
            assert "thinking" not in str(each.said("channels/outgoing/complete"))


async def test_a_publication_that_surely_failed_is_tried_again_a_few_times(
    tmp_path: Path,
) -> None:
    answers = iter([Error(-32000, "busy"), {"delivered": False}, {"delivered": True}])

    def publish(_: Mapping[str, Any]) -> Mapping[str, Any]:
        answer = next(answers)
        if isinstance(answer, Error):
            raise answer
        return answer

    server = Puppet("chat")
    server.plays["channels/publish"] = publish
    async with talking(tmp_path, server, says=(Said("hello"),)):
        await server.register("room")
        await server.hears(message("hi"))
        found = await server.until("channels/publish", 3)
        assert len({each["publishId"] for each in found}) == 1
        await server.until("channels/outgoing/complete")
        assert len(server.said("channels/publish")) == 3


async def test_a_publication_that_is_never_acknowledged_is_made_once(tmp_path: Path) -> None:
    server = Puppet("chat")
    server.plays["channels/publish"] = lambda _: None
    async with talking(tmp_path, server, says=(Said("hello there"),)) as (stage, model):
        await server.register("room")
        await server.hears(message("hi"))
        await server.until("channels/publish")
        # Its process ends: nobody knows whether it was delivered.
        server.cut()
        await server.until("featureSets/update", 2)
        await server.register("room")
        server.plays["channels/publish"] = lambda _: {"delivered": True}
        async with asyncio.timeout(60):
            while "failed" not in str(await _turns(stage)):
                await asyncio.sleep(0.05)
        assert len(server.said("channels/publish")) == 1
        # Should it come back, it is known by its words.
        (echo,) = await server.hears(message("hello there", id="late"))
        assert echo["reason"] == "own_words"
        assert len(model.requests) == 1


async def _turns(stage: Scene) -> list[str]:
    found = await stage.parts.snapshot.records.conversations.page(conversation="channel:chat/room")
    return [str(each.state) for each in found]


@pytest.mark.requirement("MCPL-4.1-chpublish")
async def test_a_connector_that_acknowledges_nothing_is_only_told(tmp_path: Path) -> None:
    server = Puppet("chat")
    async with talking(tmp_path, server, rows=f"{ROW}acknowledges = false\n"):
        await server.register("room")
        await server.hears(message("hi"))
        await server.until("channels/publish")
        (frame,) = [each for each in server.heard if each["method"] == "channels/publish"]
        assert "id" not in frame


@pytest.mark.parametrize("answer", ["ok", "A longer answer of a model to what came in."])
@pytest.mark.parametrize("is_acknowledged", [True, False])
async def test_a_connector_that_echoes_what_it_publishes_starts_no_loop(
    tmp_path: Path, answer: str, is_acknowledged: bool
) -> None:
    """It says all of it again, twice, with ids that it tells nobody."""
    server = Puppet("chat")
    echoes: list[asyncio.Task[list[dict[str, Any]]]] = []

    def publish(params: Mapping[str, Any]) -> Mapping[str, Any]:
        text = params["content"][0]["text"]
        for _ in range(2):
            back = server.hears(message(text, id=f"echo{len(echoes)}"))
            echoes.append(asyncio.ensure_future(back))
        return {"delivered": True, **({"messageId": "real"} if is_acknowledged else {})}

    server.plays["channels/publish"] = publish
    says = Said(answer, when=".")
    async with talking(tmp_path, server, says=(says,)) as (_, model):
        await server.register("room")
        await server.hears(message("hi"))
        await server.until("channels/publish")
        async with asyncio.timeout(PATIENCE):
            # Until nothing more comes of it: each that was taken is answered, and echoed twice.
            while True:
                results = [(await each)[0] for each in list(echoes)]
                published = len(server.said("channels/publish"))
                taken = sum(each["accepted"] for each in results)
                if published == taken + 1 and len(results) == 2 * published:
                    break
                await asyncio.sleep(0.05)
        assert results[-1]["reason"] == "own_words"
        assert len(model.requests) <= 5


async def test_a_flood_of_messages_is_held_back_and_can_be_sent_again(tmp_path: Path) -> None:
    server = Puppet("chat")
    rows = f'{ROW}to = "topic:flood"\nper_minute = 20\n'
    async with talking(tmp_path, server, rows=rows) as (stage, _):
        await server.register("room", "calm")
        results = await server.hears(*(message("x") for _ in range(500)))
        taken = [each for each in results if each["accepted"]]
        assert len(taken) == 20
        assert {each.get("reason") for each in results} == {None, "rate_limited"}
        (calm,) = await server.hears(message("x", "calm"))
        assert calm["accepted"]
        assert await server.code("channels/incoming", {"messages": [message("x")] * 501}) == -32602
        # Several at once are no way around it.
        floods = [server.ask("channels/incoming", {"messages": [message("y")]}) for _ in range(300)]
        answers = await asyncio.gather(*floods)
        accepted = [
            each
            for each in answers
            if "result" in each and each["result"]["results"][0]["accepted"]
        ]
        assert len(accepted) < 100
        assert ("chat", "calm") in await stage.shown()
        # And so are new channels, again and again.
        ids = [f"new{number}" for number in range(500)]
        await server.register(*ids)
        results = await server.hears(*(message("z", id) for id in ids))
        assert 0 < sum(each["accepted"] for each in results) <= 250


@pytest.mark.requirement("MCPL-14.4-context", "MCPL-14.4-inject")
async def test_servers_know_before_the_model_where_it_was_asked_and_where_it_answers(
    tmp_path: Path,
) -> None:
    sets = {"m": {"description": "m", "uses": ["contextHooks.beforeInference"]}}
    hook = Puppet("memory", sets, declares={"contextHooks": {"beforeInference": True}})
    chat = Puppet("chat")

    def inject(params: Mapping[str, Any]) -> Mapping[str, Any]:
        thread = params["channels"]["incoming"]["threadId"]
        found = [{"type": "text", "text": f"thread {thread} is about tents"}]
        one = {"namespace": "threads", "position": "beforeUser", "content": found}
        return {"featureSet": "m", "contextInjections": [one]}

    hook.plays["context/beforeInference"] = inject
    async with talking(tmp_path, hook, chat, live={"memory": 'enabled = ["m"]'}) as (_, model):
        await chat.register("room")
        await chat.hears(message("hi", id="m1", threadId="t_42"))
        (before,) = await hook.until("context/beforeInference")
        assert before["channels"] == {
            "incoming": {"channelId": "room", "messageId": "m1", "threadId": "t_42"},
            "defaultOutgoing": {"channelId": "room"},
            "candidates": ["chat/room"],
        }
        await chat.until("channels/publish")
        assert "thread t_42 is about tents" in str(model.requests[0].body)
