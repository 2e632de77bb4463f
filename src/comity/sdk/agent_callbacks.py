"""Questions that a tool asks amid an agent's call, answered by a function of the agent's. (§13.4)

Rule 1: a question is answered once; asked again, it gets the answer that it got. (D-28)
Rule 2: a function that fails or takes too long answers as silence does: no to a confirmation, and
        nothing to all else.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from comity.sdk.bounded import Bounded
from comity.wire.callbacks import CANCEL, Callback, Type, callback_in
from comity.wire.errors import MalformedMessage
from comity.wire.jsonrpc import Frame

log = logging.getLogger(__name__)

MOST_AT_ONCE: Final = 32
MOST_REMEMBERED: Final = 1_000

type Answer = Callable[[Callback], Awaitable[object]]
type Respond = Callable[[str, object], Awaitable[None]]


class Callbacks:
    """The questions of one session, each in a task of its own."""

    def __init__(self, answer: Answer | None, respond: Respond) -> None:
        self._answer = answer
        self._respond = respond
        self._asked: Bounded[asyncio.Task[object]] = Bounded(
            MOST_REMEMBERED, MOST_REMEMBERED * 1_000
        )
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, frame: Frame) -> None:
        """Without a function the people at the gateway's inbox answer."""
        if self._answer is None or len(self._tasks) >= MOST_AT_ONCE:
            return
        try:
            question = callback_in(frame.params)
        except MalformedMessage as problem:
            log.info("a callback was left aside: %s", problem)
            return
        task = asyncio.create_task(self._reply(question, self._answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in (waiting := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    async def _reply(self, question: Callback, answer: Answer) -> None:
        thinking = self._asked.get(question.id)
        if thinking is None:
            thinking = asyncio.create_task(_said(question, answer))
            self._asked.put(question.id, thinking)
        said = await asyncio.shield(thinking)
        if question.type is not Type.NOTIFICATION:
            await self._respond(question.id, said)


async def _said(question: Callback, answer: Answer) -> object:
    try:
        async with asyncio.timeout(question.within.total_seconds()):
            return await answer(question)
    except Exception:
        log.exception("a callback was not answered by the agent's function")
        return CANCEL if question.type is Type.CONFIRMATION else None
