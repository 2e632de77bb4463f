"""Vectors of tools: made behind everybody's back, kept, and never shown to the wrong one."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from comity.catalog.search.tool_index import SearchDocument
from comity.catalog.semantic import index
from comity.catalog.semantic.index import (
    MAX_TEXT_LENGTH,
    MAX_WAITING_QUERIES,
    EmbeddingIndex,
    document_texts,
)
from comity.catalog.semantic.vectors import VectorFile
from comity.errors import Unavailable
from comity.toolkit.resilience import RetrySchedule
from tests.support.cases import loop_over
from tests.support.embedder import MemoryEmbedder


def tool(
    name: str, description: str = "", server: str = "files", about: str = ""
) -> SearchDocument:
    return SearchDocument(server, name, "", description, (("path", "where"),), "", about)


async def settle(made: EmbeddingIndex) -> None:
    async with asyncio.timeout(20):
        while not made.is_complete:
            await made.wait_until_complete()


async def found(made: EmbeddingIndex, query: str, seen: bytes | None = None) -> list[int]:
    return [slot for slot, _ in (await made.find_nearest(query, seen, 5)).best]


async def test_tools_are_found_by_their_vectors_and_gone_when_they_are_dropped() -> None:
    made = EmbeddingIndex(MemoryEmbedder())
    made.put(0, tool("readFile", "opens documents"))
    made.put(1, tool("book_flight", "reserves seats"))
    assert not made.is_complete
    await settle(made)
    assert (await found(made, "read a file"))[0] == 0
    assert (await found(made, "book a flight"))[0] == 1
    assert await found(made, "book a flight", b"\1\0") == [0]
    made.remove(1)
    assert await found(made, "book a flight") == [0]
    made.put(1, tool("send_mail"))
    await settle(made)
    assert (await found(made, "send mail"))[0] == 1
    await made.close()


async def test_a_request_of_two_sentences_is_near_to_what_each_of_them_asks() -> None:
    made = EmbeddingIndex(MemoryEmbedder(size=512))
    made.put(0, tool("read_file"))
    made.put(1, tool("book_flight"))
    await settle(made)
    alone = (await made.find_nearest("please read my file", None, 1)).best[0][1]
    both = "please read my file. then kindly book some nice and early flight to the sea for us"
    assert (await made.find_nearest(both, None, 2)).best[0] == (0, pytest.approx(alone, abs=0.1))
    await made.close()


async def test_servers_are_near_by_what_they_say_if_they_say_enough() -> None:
    made = EmbeddingIndex(MemoryEmbedder())
    talks = "everything about files on your own disk"
    made.put(0, tool("a", about=talks))
    made.put(1, tool("b", server="mail", about="mail"))
    await settle(made)
    assert (await made.find_nearest("files on disk", None, 1)).servers.keys() == {"files"}
    made.remove(0)
    assert (await made.find_nearest("files on disk", None, 1)).servers == {}
    await made.close()


async def test_a_restart_makes_no_vector_anew(tmp_path: Path) -> None:
    for embedded in (9, 0):
        embedder = MemoryEmbedder()
        made = EmbeddingIndex(embedder, VectorFile(tmp_path, embedder.name, embedder.size))
        for slot in range(3):
            made.put(slot, tool(f"tool_{slot}"))
        await settle(made)
        assert embedder.embedded == embedded
        assert (await found(made, "tool 2"))[0] == 2
        await made.close()


class Slow(MemoryEmbedder):
    """Takes as long over a catalog as the test wants; questions it answers at once."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = asyncio.Event()
        self.asked: list[str] = []

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        if len(texts) > 1:
            await self.may_go_on.wait()
        else:
            self.asked.append(texts[0])
            await asyncio.sleep(0)
        return await super().embed(texts)


async def test_a_search_waits_for_no_catalog() -> None:
    slow = Slow()
    made = EmbeddingIndex(slow)
    for slot in range(1_000):
        made.put(slot, tool(f"tool_{slot}"))
    async with asyncio.timeout(5):
        assert await found(made, "tool 3") == []
    assert not made.is_complete
    slow.may_go_on.set()
    await settle(made)
    assert (await found(made, "tool 3"))[0] == 3
    await made.close()


async def test_the_newest_question_is_answered_first_and_each_once() -> None:
    slow = Slow()
    made = EmbeddingIndex(slow)
    await asyncio.gather(*(made.find_nearest(f"question {n}", None, 1) for n in (1, 2, 3, 3)))
    assert slow.asked == ["question 3", "question 2", "question 1"]
    await made.find_nearest("question 1", None, 1)
    assert len(slow.asked) == 3
    await made.close()


async def test_of_too_many_questions_the_oldest_hears_so() -> None:
    made = EmbeddingIndex(Slow())
    asked = [made.find_nearest(f"question {n}", None, 1) for n in range(MAX_WAITING_QUERIES + 5)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    refused = [at for at, answer in enumerate(answers) if isinstance(answer, Unavailable)]
    assert refused
    assert refused == list(range(len(refused)))
    await made.close()


async def test_nothing_is_made_before_somebody_searches_unless_it_was_wished_for() -> None:
    embedder = MemoryEmbedder()
    made = EmbeddingIndex(embedder, at_once=False)
    made.put(0, tool("read_file"))
    await asyncio.sleep(0)
    assert embedder.embedded == 0
    assert await found(made, "read file") == [0]
    await made.close()


async def test_a_slot_that_changed_during_a_search_is_not_in_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(index, "THREAD_MIN_ROWS", 0)
    made = EmbeddingIndex(MemoryEmbedder())
    for slot in range(3):
        made.put(slot, tool(f"secret_{slot}"))
    await settle(made)
    await made.find_nearest("secret", None, 3)  # Its vector is known from now on.
    has_found, has_changed = asyncio.Event(), asyncio.Event()

    async def find_and_wait(find: Callable[..., object], *arguments: object) -> object:
        nearest = find(*arguments)
        has_found.set()
        await has_changed.wait()
        return nearest

    monkeypatch.setattr(asyncio, "to_thread", find_and_wait)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        searching = tasks.create_task(made.find_nearest("secret", None, 3, (0, 1)))
        await has_found.wait()
        made.put(1, tool("another_tool"))
        has_changed.set()
    answer = searching.result()
    assert {slot for slot, _ in answer.best} == {0, 2}
    assert answer.also[1] is None
    await made.close()


class Choosy(MemoryEmbedder):
    """Fails for one text, as services do for some."""

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        if any("poison" in text for text in texts):
            raise Unavailable("not that one")
        return await super().embed(texts)


async def test_a_text_that_a_model_does_not_bear_holds_up_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick = RetrySchedule(timedelta(milliseconds=1), timedelta(milliseconds=2))
    monkeypatch.setattr(index, "RETRY_SCHEDULE", quick)
    made = EmbeddingIndex(Choosy())
    for slot in range(9):
        made.put(slot, tool("poison" if slot == 1 else f"tool_{slot}"))
    async with asyncio.timeout(20):
        while len(await found(made, "tool 8")) < 5:
            await asyncio.sleep(0.001)
    assert not made.is_complete
    made.remove(1)
    await settle(made)
    await made.close()


class Odd(MemoryEmbedder):
    def __init__(self, said: object) -> None:
        super().__init__(size=2)
        self._said = said

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        return self._said  # type: ignore[return-value]


@loop_over(
    "said", [None, [], [[1.0]], [[0.0, 0.0]], [[float("nan"), 1.0]], [["a", "b"]], [[1e999, 1]]]
)
async def test_what_is_no_vector_is_not_taken_for_one(said: object) -> None:
    made = EmbeddingIndex(Odd(said))
    with pytest.raises(Unavailable, match="the embedder gave"):
        await made.find_nearest("anything", None, 1)
    await made.close()


async def test_an_empty_query_is_near_to_nothing() -> None:
    made = EmbeddingIndex(MemoryEmbedder())
    assert (await made.find_nearest("  ", None, 5, (1, 2))).also == [None, None]
    await made.close()


class Stuck(MemoryEmbedder):
    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        await asyncio.Event().wait()
        raise AssertionError


async def test_whoever_waits_at_the_end_is_told() -> None:
    made = EmbeddingIndex(Stuck())
    made.put(0, tool("read_file"))
    asking = [
        asyncio.ensure_future(made.find_nearest(query, None, 1)) for query in ("read", "write")
    ]
    for _ in range(3):
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await made.close()
        for each in asking:
            with pytest.raises(Unavailable):
                await each


def test_texts_are_three_in_words_and_cut() -> None:
    texts = document_texts(tool("readFile_v2", "x" * 50_000))
    assert texts[0].startswith("read file v2: xxx")
    assert texts[2].startswith("files - read file v2: ")
    assert max(map(len, texts)) == MAX_TEXT_LENGTH
    assert document_texts(tool("readFile"))[1] == "read file:  path: where"
