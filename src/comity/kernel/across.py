"""A call across the eras: the client speaks of one, the server of the other.

At the server waits a call of ours; in front of it stands the client's own. A modern client's call
may come and go while ours goes on (`kernel.parked`); a handshake client's stays, and ours is made
again and again (`kernel.repeated`).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from msgspec import Raw

from comity.kernel.call import Call
from comity.kernel.question import Errand, Question
from comity.rules.conversation import Conversation
from comity.rules.negotiation import Terms
from comity.wire import jsonrpc
from comity.wire.errors import METHOD_NOT_FOUND, MalformedMessage, Unavailable
from comity.wire.jsonrpc import UNSET, Frame

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Way:
    """How a call of ours reaches its server, each time that it is made."""

    server: str
    send: Callable[[Call, Frame], None]


class Across(Call):
    """A call of ours at a server, in front of which a client's stands, or for now none."""

    is_bridged = True

    def __init__(self, frame: Frame, front: Call, way: Way) -> None:
        super().__init__(frame, front.outbox, front.client, 0)
        self.front: Call | None = None
        self.is_for_all_servers = front.is_for_all_servers
        self.conversation: Conversation[Errand] = Conversation()
        self.frame = frame
        self._way = way
        self._turn = 0
        self.stand(front)

    @property
    def client_call(self) -> Call | None:
        return self.front

    @property
    def mgp(self) -> Terms | None:
        return None if self.link is None else self.link.mgp

    @property
    def size(self) -> int:
        """How much of its client's it holds."""
        return 0 if self.frame.params is UNSET else len(self.frame.params)

    def traced(self) -> str:
        """Its client's trace: of whoever stood in front first."""
        if not self.trace and self.front is not None:
            self.trace = self.front.traced()
        return super().traced()

    def stand(self, front: Call) -> None:
        """Have this call of the client's stand in front, and no other one any more."""
        self._turn += 1
        self.front, self.outbox = front, front.outbox
        front.link, front.minted = self, self._turn

    def begin(self) -> None:
        """Send it for the first time. Raises where it cannot be sent."""
        front = self.front
        if front is None or front.outbox.final:
            # Withdrawn, or past its deadline, while its way was being found.
            return
        try:
            self._way.send(self, self.frame)
        except (Unavailable, MalformedMessage):
            # It was never sent, so nobody need doubt whether it was done.
            front.link = None
            raise

    def answered(self, frame: Frame, status: int = 200) -> None:
        """The answer. Its HTTP status stays behind: in the other era it would say another thing."""
        if self.front is not None:
            self.front.answered(jsonrpc.with_id(frame, self.front.asker_id))

    def told(self, frame: Frame) -> None:
        if self.front is not None:
            try:
                self.front.told(frame)
            except MalformedMessage as error:
                log.info("server %r: a notice is lost: %s", self._way.server, error)

    def asked(self, question: Question, frame: Frame) -> None:
        question.refuse(METHOD_NOT_FOUND, "there are no requests to clients in this era")

    def failed(self, error: Unavailable | MalformedMessage) -> None:
        if self.front is not None:
            self.front.failed(error)

    def withdraw(self, reason: Raw | None) -> None:
        self.forsake(self._turn, reason)

    def again(self, frame: Frame) -> None:
        """Send it once more, or ask for the next part of it; one that cannot be sent has failed."""
        try:
            self._way.send(self, frame)
        except (Unavailable, MalformedMessage) as error:
            self.failed(error)

    # What the client's call does with its link, which is this.

    def tell(self, frame: Frame) -> None:
        """Nothing is said to a server amid a call in one era that the other could say."""

    def forsake(self, minted: int, reason: Raw | None) -> None:
        """The client's call has ended without an answer: so does ours.

        One that another has taken the place of has nothing to say any more.
        """
        if minted == self._turn:
            self.end(reason)

    def end(self, reason: Raw | None) -> None:
        """Nobody waits for it any more, and its server is told."""
        self.front = None
        if self.link is not None:
            self.link.forsake(self.minted, reason)

    def throttle(self, minted: int, paused: bool) -> None:
        if self.link is not None:
            self.link.throttle(self.minted, paused)
