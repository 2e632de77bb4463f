"""A handshake client's call at a modern server, made again with each of the client's answers.

Rule 1: what the server wants to know is asked on the stream of the client's call, all at once; with
        the last answer the call is made again. Until then no deadline runs. (D-94)
Rule 2: a client is asked only what it declared; a server that wants more is refused in its name.
"""

import asyncio
import secrets
from datetime import timedelta
from typing import Final

from msgspec import Raw

from comity.kernel.across import Across, Way
from comity.kernel.call import Call
from comity.kernel.parked import NOBODY_ANSWERED
from comity.kernel.parking import Parking
from comity.kernel.question import Question
from comity.kernel.sessions import Session
from comity.rules import rounds
from comity.rules.backoff import Backoff
from comity.rules.rounds import Wanted
from comity.wire import jsonrpc
from comity.wire.errors import (
    MISSING_CAPABILITY,
    TIMEOUT,
    UPSTREAM_FAILED,
    MalformedMessage,
    Unavailable,
)
from comity.wire.jsonrpc import Frame

MOST_ROUNDS: Final = 64
PAUSES: Final = Backoff(timedelta(milliseconds=100), timedelta(seconds=5))
"""Between rounds in which nobody is asked anything: the server wants time."""


class RepeatedCall(Across):
    """The client's own call stands; ours is made anew in every round."""

    def __init__(
        self, frame: Frame, front: Call, way: Way, session: Session, parking: Parking
    ) -> None:
        super().__init__(frame, front, way)
        self._session = session
        self._parking = parking
        self._rounds = 0
        self._open: dict[str, Question] = {}
        self._responses: dict[str, object] = {}
        self._later: asyncio.TimerHandle | None = None

    def answered(self, frame: Frame, status: int = 200) -> None:
        try:
            wanted = rounds.wanted_in(frame)
            if wanted is None:
                super().answered(frame)
            elif self.front is not None:
                self._go_round(wanted, self.front)
        except MalformedMessage as error:
            self.failed(Unavailable(f"the server sent a broken answer: {error}", UPSTREAM_FAILED))
        except Unavailable as error:
            self.failed(error)

    def resume(self, call: Call, frame: Frame) -> None:
        """Nobody comes back for this: the client's own call still stands here."""

    def lapse(self) -> None:
        front = self.front
        self.end(None)
        if front is not None:
            front.refuse(TIMEOUT, NOBODY_ANSWERED)

    def end(self, reason: Raw | None) -> None:
        self._parking.leave(self)
        if self._later is not None:
            self._later.cancel()
        questions, self._open = self._open, {}
        for question in questions.values():
            question.withdraw(None)
        super().end(reason)

    def _go_round(self, wanted: Wanted, front: Call) -> None:
        self._rounds += 1
        if self._rounds > MOST_ROUNDS:
            raise Unavailable("the server asks without end")
        lacking = rounds.lacking(self._session.capabilities, wanted)
        if lacking is not None:
            front.refuse(MISSING_CAPABILITY, f"the server asks in vain: {lacking}")
        elif wanted.requests:
            self._ask(wanted, front)
        else:
            pause = PAUSES.delay(self._rounds, 0.5).total_seconds()
            self._later = asyncio.get_running_loop().call_later(pause, self._repeat, wanted)

    def _ask(self, wanted: Wanted, front: Call) -> None:
        """Put the server's questions to the client, on the stream of its call."""
        self._parking.park(self, self.size, principal=front.outbox.actor.party)
        front.hold()
        self._responses = {}
        asked: dict[str, Frame] = {}
        for key, (method, params) in wanted.requests.items():
            named = secrets.token_hex(16)
            frame = asked[key] = rounds.handshake_question(key, method, params, named)
            self._open[key] = Question(frame, self, lambda answer: self._hear(wanted, answer))
        for key, frame in asked.items():
            # What was refused at once may have ended the call.
            question = self._open.get(key)
            if question is not None:
                question.put_to(self._session, frame, front.outbox)

    def _hear(self, wanted: Wanted, answer: Frame) -> None:
        """One answer of the client's; with the last one the call is made again."""
        key, front = str(answer.id), self.front
        if self._session.closed or self._open.pop(key, None) is None or front is None:
            # A client that went away has not answered, and its call ends in the same breath.
            return
        response = rounds.response_to(wanted.requests[key][0], answer)
        if response is None:
            self.end(None)
            error = jsonrpc.error_of(answer)
            said = "" if error is None else f": {error.message:.200}"
            front.refuse(MISSING_CAPABILITY, f"the client did not answer the server{said}")
            return
        self._responses[key] = response
        if not self._open:
            self._parking.leave(self)
            front.release()
            self._repeat(wanted)

    def _repeat(self, wanted: Wanted) -> None:
        responses, self._responses = self._responses, {}
        self.again(rounds.repeated(self.frame, responses, wanted.state))
