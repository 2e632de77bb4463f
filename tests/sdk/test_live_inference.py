"""What a live server asks of its host's model, and how it hears the answer."""

import asyncio
from typing import Any

import pytest

from comity.sdk.harness import Harness
from comity.sdk.harness_line import Era
from comity.sdk.live_inference import Pieces
from comity.sdk.server import Absent, Feature, Lost, Misconfigured, Refused, Server, Turn
from comity.wire.contents import said
from comity.wire.inference import Message, Usage
from tests.pace import here

ERAS = pytest.mark.parametrize("era", ["handshake", "modern"])


def thinking() -> tuple[Server, Feature]:
    server = Server("memory")
    return server, server.feature("memory.consolidation", "Summarize", uses=["inferenceRequest"])


@pytest.mark.requirement(
    *("MCPL-4.1-inference", "MCPL-6.5-servertag", "MCPL-11.1-request", "MCPL-11.2-featureSet"),
    *("MCPL-11.2-conversationId", "MCPL-11.2-stream", "MCPL-11.2-messages"),
    *("MCPL-11.2-maxTokens", "MCPL-11.2-temperature", "MCPL-11.2-norely"),
)
@ERAS
async def test_a_model_is_asked_in_the_words_of_the_document(era: Era) -> None:
    server, consolidation = thinking()
    async with Harness(server, ["memory.*"], era=era) as host:
        host.models.say("A summary")
        await consolidation.enabled()
        messages = ["One", {"role": "assistant", "content": "Two"}, Message("user", said("Three"))]
        reply = await consolidation.infer(
            messages, conversation="conv_123", max_tokens=500, temperature=0.7
        )
        await consolidation.infer("Short")
        first, second = host.said("inference/request")
    assert (reply.text, reply.model, reply.finish) == ("A summary", "test-model", "end_turn")
    assert reply.usage == Usage(10, 2)
    assert first == {
        "featureSet": "memory.consolidation",
        "conversationId": "conv_123",
        "messages": [
            {"role": "user", "content": "One"},
            {"role": "assistant", "content": "Two"},
            {"role": "user", "content": [{"type": "text", "text": "Three"}]},
        ],
        "preferences": {"maxTokens": 500, "temperature": 0.7},
    }
    assert second.keys() == {"featureSet", "messages"}


@pytest.mark.requirement("MCPL-4.1-chunk", "MCPL-11.2-stream")
@ERAS
async def test_pieces_come_in_their_order_and_the_whole_at_the_end(era: Era) -> None:
    server, consolidation = thinking()
    async with Harness(server, ["memory.*"], era=era) as host:
        host.models.say("Consolidated memory summary")
        await consolidation.enabled()
        pieces: list[str] = []

        async def hear(piece: str) -> None:
            await asyncio.sleep(0)
            pieces.append(piece)

        reply = await consolidation.infer("Summarize", on_piece=hear)
        (asked,) = host.said("inference/request")
    assert asked["stream"] is True
    assert "".join(pieces) == reply.text == "Consolidated memory summary"


async def test_pieces_that_are_late_lost_or_strange_do_no_harm() -> None:
    heard: list[str] = []
    pieces = Pieces(heard.append)
    for index, delta in ((1, "b"), (1, "B"), (0, "a"), (0, "x"), ("2", "c"), (-1, "y"), (3, "d")):
        await pieces.take(index, delta)
    assert heard == ["a", "B"]
    await pieces.finish("aBcd")
    await pieces.take(2, "c")
    assert heard == ["a", "B", "cd"]


@ERAS
async def test_two_answers_at_once_do_not_mix(era: Era) -> None:
    server, consolidation = thinking()
    async with Harness(server, ["memory.*"], era=era) as host:
        host.models.say("one two three", "four five six")
        await consolidation.enabled()
        first, second = list[str](), list[str]()
        replies = await asyncio.gather(
            consolidation.infer("A", on_piece=first.append),
            consolidation.infer("B", on_piece=second.append),
        )
    assert ["".join(first), "".join(second)] == [each.text for each in replies]


@pytest.mark.parametrize(
    ("messages", "more"),
    [
        ([], {}),
        ([{"role": "system", "content": "Obey"}], {}),
        (["Hi"], {"max_tokens": 0}),
        (["Hi"], {"temperature": 3}),
        ([{"role": "user", "content": {"type": "video"}}], {}),
    ],
)
async def test_what_no_model_could_be_asked_is_refused_before_it_is_sent(
    messages: Any, more: dict[str, Any]
) -> None:
    server, consolidation = thinking()
    async with Harness(server, ["memory.*"]) as host:
        await consolidation.enabled()
        with pytest.raises(Misconfigured):
            await consolidation.infer(messages, **more)
        assert host.said("inference/request") == []


async def test_why_there_is_no_answer_is_told_apart() -> None:
    server, consolidation = thinking()
    async with Harness(server) as host:
        with pytest.raises(Absent):
            await consolidation.infer("Hi")
        await host.enable("memory.*")
        await consolidation.enabled()
        host.policy = host.policy.__class__()
        with pytest.raises(Refused) as refused:
            await consolidation.infer("Hi")
        assert refused.value.code == -32001
        await host.enable("memory.*")
        host.models.say("never")
        stuck, answer = asyncio.Event(), host.line.answer

        async def silent(method: str, params: Any, id: Any) -> Any:
            await stuck.wait()
            return await answer(method, params, id)

        host.line.answer = silent
        asking = asyncio.ensure_future(consolidation.infer("Hi"))
        await host.until(lambda: len(host.said("inference/request")) == 1, here(30))
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        stuck.set()
    with pytest.raises(Absent):
        await consolidation.infer("Hi")


async def test_a_host_that_leaves_amid_a_question_is_lost() -> None:
    server, consolidation = thinking()
    async with Harness(server, ["memory.*"]) as host:
        await consolidation.enabled()
        asked = asyncio.Event()

        async def silent(method: str, params: Any, id: Any) -> Any:
            asked.set()
            await asyncio.Event().wait()

        host.line.answer = silent
        asking = asyncio.ensure_future(consolidation.infer("Hi"))
        await asyncio.wait_for(asked.wait(), here(30))
    with pytest.raises(Lost):
        await asking


async def test_what_is_asked_while_a_hook_runs_waits_for_its_end() -> None:
    server, consolidation = thinking()
    retrieval = server.feature("memory.retrieval", "Retrieve")
    begun, may_end = asyncio.Event(), asyncio.Event()

    @retrieval.before_inference
    async def recall(turn: Turn) -> None:
        begun.set()
        await may_end.wait()

    async with Harness(server, ["memory.*"]) as host:
        host.models.say("Yes")
        await consolidation.enabled()
        hook = asyncio.ensure_future(host.before("Hm?"))
        await begun.wait()
        asking = asyncio.ensure_future(consolidation.infer("Hi"))
        await host.tools()
        assert host.said("inference/request") == []
        may_end.set()
        assert (await asking).text == "Yes"
        await hook
        assert host.refused == []


@pytest.mark.requirement("MCPL-4.1-model")
@ERAS
async def test_the_model_of_the_host_is_known(era: Era) -> None:
    server, consolidation = thinking()
    async with Harness(server, ["memory.*"], era=era):
        await consolidation.enabled()
        model = await server.model()
    assert (model.id, model.vendor, model.context_window) == ("test-model", "harness", 200_000)
    assert model.capabilities == ("tools",)
