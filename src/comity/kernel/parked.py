"""A modern client's call at a handshake server, parked while the client is asked.

Rule 1: what the server asks ends the client's request with `input_required`; the next request that
        brings the sealed state takes the call up again, and its answers go to the server.
Rule 2: the server's answer, or its end, waits for that next request where nobody stands in front.
Rule 3: a question is never left open: it is answered, or refused when its call ends.
"""

from collections.abc import Callable
from typing import Final

from msgspec import Raw

from comity.kernel.across import Across, Way
from comity.kernel.call import Call
from comity.kernel.outbox import Outbox
from comity.kernel.parking import Parking
from comity.kernel.question import Question
from comity.rules import eras, rounds, tasks
from comity.rules.eras import Said
from comity.wire import jsonrpc, mcp
from comity.wire.errors import (
    EXHAUSTED,
    INVALID_PARAMS,
    MalformedMessage,
    Unavailable,
)
from comity.wire.jsonrpc import LIMITS, UNSET, Frame

NOBODY_ANSWERED: Final = "nobody answered in time"
MOST_BYTES: Final = LIMITS.frame_bytes
"""How much may be asked at once: all of it stands in one answer to the client."""


class ParkedCall(Across):
    """Ours goes on at the server; the client's own comes and goes."""

    def __init__(self, frame: Frame, front: Call, way: Way, said: Said, parking: Parking) -> None:
        super().__init__(frame, front, way)
        self._said = said
        self._party = front.outbox.actor.party
        self._parking = parking
        self._open: dict[str, tuple[Question, Raw]] = {}
        self._asked = 0
        self._outcome: Callable[[Call], None] | None = None
        self._task: str | None = None
        self._demand: Frame | None = None

    def stand(self, front: Call) -> None:
        super().stand(front)
        # A stream of the server's makes none of the client's: an error has its HTTP status only
        # where the answer is all there is.
        self.outbox = Outbox()
        self.outbox.trace, self.outbox.actor = front.outbox.trace, front.outbox.actor
        front.outbox.throttle = lambda paused: self.throttle(0, paused)

    def answered(self, frame: Frame, status: int = 200) -> None:
        """The answer, for whoever asks just now, or for the next who does."""
        self._refuse_open("the call was answered already")
        task = tasks.task_in(frame) if self._task is None else None
        if task is not None:
            self._task = task
            self.again(jsonrpc.request(self.asker_id, tasks.RESULT, {"taskId": task}))
        elif not self._ask_for_pages(frame):
            said = eras.modern_error(frame, self.method)
            self._conclude(lambda call: call.answered(jsonrpc.with_id(said, call.asker_id)))

    def failed(self, error: Unavailable | MalformedMessage) -> None:
        self._refuse_open("the call has failed")
        self._conclude(lambda call: call.failed(error))

    def asked(self, question: Question, frame: Frame) -> None:
        params = jsonrpc.to_raw({}) if frame.params is UNSET else frame.params
        try:
            reason = rounds.unaskable(self._said.capabilities, question.method, params)
            asked = jsonrpc.to_raw(rounds.embedded(frame))
        except MalformedMessage as error:
            question.refuse(INVALID_PARAMS, str(error))
            return
        held = self._held()
        if reason is not None:
            question.amid = self
            question.decline(frame, reason)
        elif len(self._open) >= rounds.MOST_REQUESTS or held + len(asked) > MOST_BYTES:
            question.refuse(EXHAUSTED, "too much is asked at once")
        else:
            self._put(question, asked)
            self._park()

    def resume(self, call: Call, frame: Frame) -> None:
        """The client came back: what it answers goes to the server, and the call goes on."""
        said, (responses, _) = eras.said_in(frame), rounds.round_in(frame)
        answers = [
            (key, rounds.answer_to(self._open[key][0].asker_id, response))
            for key, response in responses.items()
            if key in self._open
        ]
        if call.outbox.final:
            # Withdrawn on its way here: whoever waits goes on waiting.
            return
        self._parking.leave(self)
        self._said = said
        self.stand(call)
        # Nobody may have read the stream before this one to its end.
        self.throttle(0, False)
        if self._outcome is not None:
            self._outcome(call)
            return
        for key, answer in answers:
            # The answer before this one may have settled this question too.
            question, _ = self._open.pop(key, (None, None))
            if question is not None:
                question.answered(answer)
        if self._open:
            self._park()
        elif self._demand is not None:
            self._demand = None
            self.again(self.frame)

    def lapse(self) -> None:
        self._refuse_open(NOBODY_ANSWERED)
        self.end(jsonrpc.to_raw(NOBODY_ANSWERED))

    def end(self, reason: Raw | None) -> None:
        self._parking.leave(self)
        self._refuse_open("the client withdrew its call")
        if self._task is not None and self.link is not None:
            self._cancel_task(self._task)
        super().end(reason)

    def _conclude(self, tell: Callable[[Call], None]) -> None:
        if self.front is not None:
            tell(self.front)
        else:
            self._outcome = tell

    def _put(self, question: Question, asked: Raw) -> None:
        self._asked += 1
        key = str(self._asked)
        question.settled = lambda: self._open.pop(key, None)
        self._open[key] = (question, asked)

    def _park(self) -> None:
        """End the client's request with what the server wants to know; ours waits."""
        front = self.front
        if front is None:
            return
        try:
            digest = rounds.digest(self._way.server, self.frame, self._party)
            state = self._parking.park(self, self.size + self._held(), digest, self._party)
        except (Unavailable, MalformedMessage) as error:
            self._refuse_open(str(error))
            return
        self.front = None
        body = rounds.input_required({key: asked for key, (_, asked) in self._open.items()}, state)
        front.adapt = None
        front.answered(jsonrpc.result(front.asker_id, body))

    def _held(self) -> int:
        return sum(len(asked) for _, asked in self._open.values())

    def _refuse_open(self, because: str) -> None:
        questions, self._open = self._open, {}
        for question, _ in questions.values():
            question.refuse(EXHAUSTED, because)

    # What a handshake server can say instead of an answer.

    def _ask_for_pages(self, frame: Frame) -> bool:
        """Have a person visit the pages without which the server does nothing, then ask again."""
        pages = rounds.pages_in(frame)
        terms = self._said.capabilities
        if not pages or any(rounds.unaskable(terms, mcp.ELICIT, page) for page in pages):
            return False
        self._demand = frame
        for page in pages:
            asked = jsonrpc.request("page", mcp.ELICIT, page)
            question = Question(asked, self, self._hear_of_page)
            self._put(question, jsonrpc.to_raw(rounds.embedded(asked)))
        self._park()
        return True

    def _hear_of_page(self, answer: Frame) -> None:
        demand = self._demand
        if demand is not None and not rounds.is_accepted(answer):
            self._demand = None
            self._refuse_open("another page was not visited")
            self._conclude(lambda call: call.answered(jsonrpc.with_id(demand, call.asker_id)))

    def _cancel_task(self, task: str) -> None:
        frame = jsonrpc.request(self.asker_id, tasks.CANCEL, {"taskId": task})
        try:
            self._way.send(Call(frame, Outbox(), None, 0), frame)
        except (Unavailable, MalformedMessage):
            # Then its server is gone, and the task with it.
            return
