"""Work beside the way of a call: held while it lasts, ended when told, its bugs not hidden."""

import asyncio

import pytest

from comity.kernel.chores import Chores
from tests.kernel.carriers import settled, until


async def test_what_is_begun_is_held_until_it_is_done() -> None:
    chores, go_on, done = Chores("nobody"), asyncio.Event(), list[str]()

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

    chores = Chores("nobody")
    chores.start(work(), at_once=True)
    assert begun == ["begun"]
    await until(lambda: not len(chores))


async def test_all_of_it_ends_when_told() -> None:
    chores = Chores("nobody")
    for _ in range(3):
        chores.start(asyncio.Event().wait())  # type: ignore[arg-type]
    await settled()
    chores.cancel()
    await until(lambda: not len(chores))


async def test_a_bug_in_one_is_told_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise RuntimeError("a bug of ours")

    chores = Chores("the tests")
    chores.start(fail())
    await until(lambda: not len(chores))
    assert "a chore of the tests ended in a bug" in caplog.text
    assert "a bug of ours" in caplog.text
