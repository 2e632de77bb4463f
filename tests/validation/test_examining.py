"""The examiner: asked off the event loop, and started anew when a question killed it."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from comity.errors import EXHAUSTED, Unavailable
from comity.validation import worker
from comity.validation.python_code import UNDECIDED, combine_policies
from comity.validation.worker import TOO_HARD, ValidationWorker
from comity.validation.worker_main import answer_line

POLICY = combine_policies(UNDECIDED, {})


@asynccontextmanager
async def open_examiner() -> AsyncGenerator[ValidationWorker]:
    examiner = ValidationWorker()
    try:
        yield examiner
    finally:
        await examiner.close()


async def test_code_is_judged_there_as_it_is_here() -> None:
    async with open_examiner() as examiner:
        assert await examiner.violations("x = 1", POLICY) == ()
        assert await examiner.violations("import os", POLICY) == ("Blocked import: 'os'",)
        assert await examiner.violations("x = '\ud800'", POLICY) != ()


async def test_a_question_that_kills_it_is_refused_and_the_next_is_answered() -> None:
    async with open_examiner() as examiner:
        await examiner.violations("x = 1", POLICY)
        for lane in examiner._lanes:  # pyright: ignore[reportPrivateUsage]
            process = lane.process._process  # pyright: ignore[reportPrivateUsage]
            if process is not None:
                os.kill(process.pid, signal.SIGKILL)
        assert await examiner.violations("x = 1", POLICY) == (f"Blocked text: {TOO_HARD}",)
        assert await examiner.violations("x = 1", POLICY) == ()


async def test_many_questions_at_once_are_all_answered() -> None:
    async with open_examiner() as examiner:
        asked = [examiner.violations(f"x = {number}", POLICY) for number in range(50)]
        assert await asyncio.gather(*asked) == [()] * 50


async def test_too_many_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "MOST_WAITING", 0)
    async with open_examiner() as examiner:
        with pytest.raises(Unavailable) as turned:
            await examiner.violations("x = 1", POLICY)
        assert turned.value.fault is EXHAUSTED


async def test_what_is_too_long_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "MOST_BYTES", 100)
    async with open_examiner() as examiner:
        assert await examiner.violations("x" * 200, POLICY) != ()
        assert await examiner.check(b"{}", {"a": "x" * 200}) is not None
        assert not (await examiner.weigh(b"{" + b" " * 200 + b"}")).usable


def test_a_line_of_each_kind_has_its_answer() -> None:
    assert answer_line(b'c[{"type":"object"},{}]') is None
    assert answer_line(b'c[{"type":"object","required":["a"]},{}]') is not None
    assert answer_line(b'c[{"type":"strnig"},{}]') is None
