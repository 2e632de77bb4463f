"""A proposal of ours, and what comes of it: an answer, a no, or nothing in its time. (MCPx §3.2)"""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from datetime import UTC, datetime, timedelta

from comity.rules import proposals
from comity.sdk.events import Payload, Response
from comity.wire.errors import DECLINED, TIMEOUT, Unavailable

type Withdraw = Callable[[str, str], Awaitable[str]]
"""How a proposal of this id is withdrawn, for this reason."""


class ProposedHandle:
    """What we proposed. Await it for the result; `response()` gives the whole answer.

    Whoever fulfilled it is in `proposal.fulfilled_by` afterwards.
    """

    def __init__(
        self,
        made: proposals.Proposal,
        look: Callable[[str], proposals.Proposal | None],
        withdraw: Withdraw,
    ) -> None:
        self._made = made
        self._look = look
        self._withdraw = withdraw
        self.answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        # Nobody has to await a proposal; then what came of it is nobody's problem.
        self.answer.add_done_callback(lambda done: done.cancelled() or done.exception())

    def __await__(self) -> Generator[object, None, Payload]:
        return self.result().__await__()

    @property
    def id(self) -> str:
        return self._made.id

    @property
    def proposal(self) -> proposals.Proposal:
        """As it stands now."""
        return self._look(self.id) or self._made

    async def result(self, within: timedelta | None = None) -> Payload:
        """What was answered. Raises Unavailable for an error, a rejection or no answer in time."""
        return result_of(await self.response(within))

    async def response(self, within: timedelta | None = None) -> Response:
        """The answer to whoever fulfilled it; waits for as long as the proposal lives, or less."""
        left = self._made.expires_at - datetime.now(UTC) if within is None else within
        try:
            async with asyncio.timeout(max(left.total_seconds(), 0)):
                return await asyncio.shield(self.answer)
        except TimeoutError:
            state = self.proposal.status
            because = f"the proposal is {state} and has no answer; propose again, or ask somebody"
            raise Unavailable(because, TIMEOUT) from None

    async def withdraw(self, reason: str = "") -> None:
        """Say that it is wanted no more, where the topic has that kind; who awaits it is told.

        Raises PermissionError where it has not. (D-46)
        """
        await self._withdraw(self.id, reason)
        if not self.answer.done():
            self.answer.set_exception(Unavailable("it was withdrawn", DECLINED))


def result_of(response: Response) -> Payload:
    """The result; raises Unavailable with what the answerer said where it is an error."""
    if response.error is not None:
        code, message = response.error.get("code"), str(response.error.get("message"))
        raise Unavailable(f"{response.sender} answered: {message[:1_000]} ({code})")
    assert response.result is not None
    return response.result
