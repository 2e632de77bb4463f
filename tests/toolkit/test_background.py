"""Background tasks, shared resources, pausable timeouts and waiting for a change."""

import asyncio
from datetime import timedelta

import pytest

from comity.errors import Unavailable
from comity.toolkit.background import (
    BREATH_BYTES,
    ENTRY_BYTES,
    BackgroundTasks,
    LoopYielder,
    PausableTimeout,
    SharedResource,
    aligned_time,
    wait_for_change,
)
from tests.support.carriers import settled, until


async def test_what_is_begun_is_held_until_it_is_done() -> None:
    chores, go_on, done = BackgroundTasks("nobody"), asyncio.Event(), list[str]()

    async def work() -> None:
        await go_on.wait()
        done.append("done")

    chores.start(work())
    await settled()
    assert (len(chores), done) == (1, [])
    go_on.set()
    async with asyncio.timeout(10):
        await chores.finish()
    await settled()
    assert (len(chores), done) == (0, ["done"])
    await chores.finish()


async def test_what_is_begun_at_once_has_run_up_to_its_first_wait() -> None:
    begun = list[str]()

    async def work() -> None:
        begun.append("begun")
        await asyncio.sleep(0)

    chores = BackgroundTasks("nobody")
    chores.start(work(), at_once=True)
    assert begun == ["begun"]
    await until(lambda: not len(chores))


async def test_all_of_it_ends_when_told() -> None:
    chores = BackgroundTasks("nobody")
    for _ in range(3):
        chores.start(asyncio.Event().wait())  # type: ignore[arg-type]
    await settled()
    chores.cancel()
    await until(lambda: not len(chores))


async def test_a_bug_in_one_is_told_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise RuntimeError("a bug of ours")

    chores = BackgroundTasks("the tests")
    chores.start(fail())
    await until(lambda: not len(chores))
    assert "A background task of the tests failed" in caplog.text
    assert "a bug of ours" in caplog.text


class Opener:
    """Opens things when the test says so."""

    def __init__(self) -> None:
        self.opened = 0
        self.may_end = asyncio.Event()
        self.fails = False

    async def __call__(self) -> int:
        self.opened += 1
        number = self.opened
        await self.may_end.wait()
        if self.fails:
            raise Unavailable("no")
        return number


async def test_those_who_come_while_it_opens_share_what_is_opened() -> None:
    once, opener = SharedResource[str, int](), Opener()
    waiting = [asyncio.ensure_future(once.get("a", opener)) for _ in range(3)]
    await settled()
    opener.may_end.set()
    assert await asyncio.gather(*waiting) == [1, 1, 1]
    assert await once.get("a", opener) == 1
    assert await once.get("b", opener) == 2


async def test_what_was_forgotten_is_opened_again() -> None:
    once, opener = SharedResource[str, int](), Opener()
    opener.may_end.set()
    await once.get("a", opener)
    once.forget("a")
    once.forget("a")
    assert await once.get("a", opener) == 2


async def test_an_opening_that_failed_fails_for_all_who_waited_and_is_tried_again() -> None:
    once, opener = SharedResource[str, int](), Opener()
    opener.fails = True
    waiting = [asyncio.ensure_future(once.get("a", opener)) for _ in range(2)]
    await settled()
    opener.may_end.set()
    for each in waiting:
        with pytest.raises(Unavailable):
            await each
    opener.fails = False
    assert await once.get("a", opener) == 2


async def test_one_who_stops_waiting_stops_nobody_else() -> None:
    once, opener = SharedResource[str, int](), Opener()
    first = asyncio.ensure_future(once.get("a", opener))
    second = asyncio.ensure_future(once.get("a", opener))
    await settled()
    first.cancel()
    await settled()
    opener.may_end.set()
    assert await second == 1
    assert opener.opened == 1


async def test_what_nobody_waits_for_any_more_fails_without_a_word() -> None:
    once, opener = SharedResource[str, int](), Opener()
    opener.fails = True
    waiting = asyncio.ensure_future(once.get("a", opener))
    await settled()
    waiting.cancel()
    opener.may_end.set()
    await settled()
    assert once.clear() == []


async def test_all_that_is_held_is_given_back_and_all_that_opens_is_stopped() -> None:
    once, opener, slow = SharedResource[str, int](), Opener(), Opener()
    opener.may_end.set()
    await once.get("a", opener)
    waiting = asyncio.ensure_future(once.get("b", slow))
    await settled()
    assert once.clear() == [1]
    with pytest.raises(Unavailable):
        await waiting
    assert once.clear() == []


async def test_beyond_a_number_what_is_idle_and_longest_unused_is_let_go() -> None:
    once, opener = SharedResource[str, int](), Opener()
    opener.may_end.set()
    for key in ("a", "b", "c"):
        await once.get(key, opener)
    assert await once.get("a", opener) == 1
    assert once.take_excess_idle(3, lambda _: True) == []
    assert once.take_excess_idle(1, lambda number: number != 2) == [3, 1]
    assert once.take_excess_idle(0, lambda _: False) == []
    assert once.clear() == [2]


async def test_a_deadline_stands_still_while_we_are_at_work() -> None:
    loop, turn = asyncio.get_running_loop(), asyncio.Event()
    async with asyncio.timeout(0.05) as limit:
        with PausableTimeout(limit).paused():
            loop.call_later(0.2, turn.set)
            await turn.wait()
            assert limit.when() is None
        assert limit.when() is not None


async def test_a_deadline_goes_on_where_it_stopped() -> None:
    async def wait() -> None:
        async with asyncio.timeout(0.05) as limit:
            with PausableTimeout(limit).paused():
                await asyncio.sleep(0)
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await wait()


async def test_what_fails_at_work_leaves_the_deadline_running() -> None:
    async def fail() -> None:
        raise RuntimeError

    async with asyncio.timeout(60) as limit:
        with pytest.raises(RuntimeError), PausableTimeout(limit).paused():
            await fail()
        assert limit.when() is not None


async def test_without_a_deadline_there_is_nothing_to_stop() -> None:
    with PausableTimeout().paused():
        await asyncio.sleep(0)


async def test_change_that_has_happened_ends_the_wait_once() -> None:
    changed = asyncio.Event()
    changed.set()
    async with asyncio.timeout(5):
        await wait_for_change(changed, timedelta(hours=1))
        assert not changed.is_set()
        await wait_for_change(changed, timedelta(milliseconds=1))


async def test_waits_that_begin_at_different_times_end_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    ends: dict[float, float] = {}
    for now in (100.0, 100.4, 100.7, 100.8, 100.999, 101.001):
        monkeypatch.setattr(loop, "time", lambda now=now: now)
        ends[now] = aligned_time(1.0)
    monkeypatch.undo()
    # What wakes up a little early waits a whole interval all the same.
    assert list(ends.values()) == [101, 101, 101, 102, 102, 102]


async def test_many_lists_at_once_hold_up_the_loop_no_longer_than_one() -> None:
    work_of_turns, ended = [0], set[str]()

    def count_turn() -> None:
        work_of_turns.append(0)
        if len(ended) < 41:
            loop.call_soon(count_turn)

    async def process(name: str, entries: int) -> None:
        yielder = LoopYielder()
        for _ in range(entries):
            await yielder.count(1024)
            work_of_turns[-1] += ENTRY_BYTES + 1024
        ended.add(name)

    loop = asyncio.get_running_loop()
    loop.call_soon(count_turn)
    async with asyncio.timeout(60):
        await asyncio.gather(*(process(f"list {number}", 200) for number in range(41)))
    assert max(work_of_turns) <= BREATH_BYTES + ENTRY_BYTES + 1024
    assert sum(work_of_turns) == 41 * 200 * (ENTRY_BYTES + 1024)


async def test_a_short_list_does_not_wait_for_the_end_of_a_long_one() -> None:
    ended = list[str]()

    async def process(name: str, entries: int) -> None:
        yielder = LoopYielder()
        for _ in range(entries):
            await yielder.count(1024)
        ended.append(name)

    async with asyncio.timeout(60):
        await asyncio.gather(process("long", 5_000), process("short", 10), process("other", 100))
    assert ended == ["short", "other", "long"]


async def test_a_list_that_is_given_up_while_it_waits_stops_no_other() -> None:
    ended = list[int]()

    async def process(number: int) -> None:
        yielder = LoopYielder()
        for _ in range(1_000):
            await yielder.count(1024)
        ended.append(number)

    tasks = [asyncio.ensure_future(process(number)) for number in range(4)]
    await settled()
    tasks[1].cancel()
    tasks[2].cancel()
    async with asyncio.timeout(60):
        await asyncio.gather(*tasks, return_exceptions=True)
    assert ended == [0, 3]
