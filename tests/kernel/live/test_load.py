"""How much of one server's is under way at once, and in which order it is heard."""

import asyncio
import logging

import pytest

from comity.kernel.live import load as under_test
from comity.kernel.live.load import Load
from tests.kernel.live.live_link import breath


async def test_what_is_begun_runs_up_to_its_first_wait_and_what_ends_makes_room() -> None:
    load, done = Load(most_asked=1), list[int]()

    async def at_once() -> None:
        done.append(1)

    assert load.answer("a", at_once) is not None
    assert (done, load.asked("a")) == ([1], 0)
    gate = asyncio.Event()

    async def waits() -> None:
        await gate.wait()

    assert load.answer("a", waits) is not None
    assert load.answer("a", waits) is None
    assert load.answer("b", waits) is not None
    gate.set()
    await breath()
    assert (load.asked("a"), load.asked("b")) == (0, 0)


async def test_notices_are_heard_in_their_order_and_those_too_many_are_not() -> None:
    load, heard, gate = Load(most_told=2), list[int](), asyncio.Event()

    def notice(number: int) -> under_test.Work:
        async def hear() -> None:
            await gate.wait()
            heard.append(number)

        return hear

    taken = [load.hear("a", notice(number)) for number in range(5)]
    # The first is being heard, two wait.
    assert taken == [True, True, True, False, False]
    gate.set()
    await breath()
    assert heard == [0, 1, 2]
    assert load.hear("a", notice(5))
    await breath()
    assert heard[-1] == 5


async def test_one_that_fails_or_takes_too_long_keeps_no_other_from_being_heard(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(under_test, "HEAR_SECONDS", 0.01)
    load, heard = Load(), asyncio.Event()

    async def fails() -> None:
        raise RuntimeError

    async def waits() -> None:
        await asyncio.Event().wait()

    async def hears() -> None:
        heard.set()

    with caplog.at_level(logging.WARNING):
        for work in (fails, waits, hears):
            load.hear("a", work)
        await asyncio.wait_for(heard.wait(), 30)
    assert "ended in a bug" in caplog.text
    assert "took too long" in caplog.text


async def test_a_bug_in_an_answer_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise RuntimeError

    with caplog.at_level(logging.ERROR):
        Load().answer("a", fails)
        await breath()
    assert "answering server 'a' ended in a bug" in caplog.text


async def test_what_is_under_way_ends_with_its_server() -> None:
    load, ended = Load(), list[str]()

    def waiting(name: str) -> under_test.Work:
        async def wait() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(name)

        return wait

    load.answer("a", waiting("answer a"))
    load.hear("a", waiting("hear a"))
    load.answer("b", waiting("answer b"))
    load.forget("a")
    await breath()
    assert sorted(ended) == ["answer a", "hear a"]
    load.stop()
    await breath()
    assert ended[-1] == "answer b"
