"""A link over a scripted carrier, with an audience that remembers and a session that calls."""

from comity.kernel.call import Call
from comity.kernel.links import Link
from comity.kernel.outbox import Outbox
from comity.kernel.question import Question
from comity.kernel.sessions import Session
from comity.kernel.underway import Underway
from comity.wire import jsonrpc
from comity.wire.jsonrpc import LIMITS, Frame
from comity.wire.mcp import Era
from tests.kernel.carriers import (
    Clock,
    Script,
    ScriptedCarrier,
)
from tests.kernel.refused import refusal_in


class Room:
    """A link with those who listen to what belongs to no call, and a session that calls."""

    def __init__(self, process: bool = False) -> None:
        self.script = Script(costs_a_process=process)
        self.carrier: ScriptedCarrier = self.script.carrier(Era.HANDSHAKE)
        self.heard: list[Frame] = []
        self.questions: list[Question] = []
        self.ends: list[str] = []
        self.renewals = 0
        self.link = Link("srv", self.carrier, self, LIMITS)
        self.session = Session("", 0)
        self.underway = Underway(Clock(), 60, 300)
        self._next = 0

    def told(self, link: Link, frame: Frame) -> None:
        self.heard.append(frame)

    def asked(self, link: Link, question: Question, frame: Frame) -> None:
        self.questions.append(question)

    def renewed(self, link: Link) -> None:
        self.renewals += 1

    def gone(self, link: Link, because: str) -> None:
        self.ends.append(because)

    def call(self, method: str = "tools/call", **params: object) -> tuple[Call, Frame]:
        """A call on its way, and the request as the server saw it."""
        self._next += 1
        frame = jsonrpc.request(f"own-{self._next}", method, params)
        call = self.underway.begin(frame, Outbox(), self.session)
        self.link.ask(call, frame)
        return call, self.carrier.sent[-1].frame


async def opened(process: bool = False) -> Room:
    room = Room(process)
    await room.link.open()
    return room


def frames_in(call: Call) -> list[Frame]:
    return [jsonrpc.decode(data) for data in call.outbox.take()]


def is_error(frame: Frame) -> bool:
    return refusal_in(frame) is not None
