"""Being an MCP server in a topic: whoever addresses us is answered, once for each proposal. (D-56)

Rule 1: only what is addressed to us by name is answered; what is for all might be done by all.
Rule 2: what fulfils a proposal is done once, whoever fulfils it, and however often.
Rule 3: so many at a time, each in its time, and an answer that is too large is told as that.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Final, NamedTuple, Protocol

from comity.sdk.bounded import Bounded
from comity.sdk.events import Payload, Request
from comity.wire.errors import (
    EXHAUSTED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    TIMEOUT,
    Fault,
    MalformedMessage,
    Unavailable,
)

log = logging.getLogger(__name__)

MOST_AT_ONCE: Final = 32
MOST_OF_ONE: Final = 8
MOST_REMEMBERED: Final = 10_000
LONGEST: Final = timedelta(minutes=5)


class Failure(NamedTuple):
    """Why there is no result, as JSON-RPC says it."""

    code: int
    message: str
    data: object = None

    def body(self) -> dict[str, object]:
        more = {} if self.data is None else {"data": self.data}
        return {"error": {"code": self.code, "message": self.message, **more}}


class Answers(Protocol):
    """What stands behind a participant: it is asked with MCP's own methods and parameters."""

    async def answer(self, method: str, params: Payload) -> Payload | Failure: ...


type Respond = Callable[[Request, Mapping[str, object]], Awaitable[object]]
"""How an answer is sent; raises MalformedMessage for one that cannot be."""


class Serving:
    """The requests that one participant answers, each in a task of its own."""

    def __init__(self, answers: Answers, respond: Respond, longest: timedelta = LONGEST) -> None:
        self._answers = answers
        self._respond = respond
        self._longest = longest
        self._done: Bounded[str] = Bounded(MOST_REMEMBERED, MOST_REMEMBERED * 1_000)
        self._tasks: dict[asyncio.Task[None], str] = {}

    def take(self, request: Request, proposal: str) -> None:
        """Begin to answer; `proposal` is what it may fulfil, empty for none."""
        if request.is_notification:
            return
        failure = self._why_not(request, proposal)
        if failure is None and proposal:
            self._done.put(proposal, request.id, len(request.id))
        working = self._answer(request) if failure is None else self._say(request, failure.body())
        task = asyncio.create_task(working)
        self._tasks[task] = request.sender
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def close(self) -> None:
        """Give up what is still being done."""
        for task in (waiting := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    def _why_not(self, request: Request, proposal: str) -> Failure | None:
        before = self._done.get(proposal) if proposal else None
        if before is not None:
            because = f"this proposal was fulfilled before, by {before}; it is done once"
            return Failure(INVALID_REQUEST.code, because)
        theirs = sum(sender == request.sender for sender in self._tasks.values())
        if len(self._tasks) >= MOST_AT_ONCE or theirs >= MOST_OF_ONE:
            return Failure(EXHAUSTED.code, "too much is being done at once; ask again later")
        return None

    async def _answer(self, request: Request) -> None:
        try:
            async with asyncio.timeout(self._longest.total_seconds()):
                said = await self._answers.answer(request.method, request.params)
        except TimeoutError:
            said = _failure(TIMEOUT, "it was not done in time")
        except (MalformedMessage, Unavailable) as problem:
            said = _failure(problem.fault, str(problem))
        except Exception:
            log.exception("%s could not be answered", request.method)
            said = _failure(INTERNAL_ERROR, "it failed; the log of whoever was asked says why")
        await self._say(request, said.body() if isinstance(said, Failure) else {"result": said})

    async def _say(self, request: Request, body: Mapping[str, object]) -> None:
        try:
            try:
                await self._respond(request, body)
            except MalformedMessage as problem:
                because = f"the answer cannot be sent: {problem}"
                await self._respond(request, _failure(INTERNAL_ERROR, because).body())
        except (Unavailable, MalformedMessage, PermissionError) as problem:
            log.warning("an answer to %s was not sent: %s", request.method, problem)


def _failure(fault: Fault, message: str) -> Failure:
    return Failure(fault.code, message[:1_000])
