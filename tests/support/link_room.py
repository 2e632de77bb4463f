"""A link over a scripted carrier, with an audience that remembers and a session that calls."""

from comity.mcp import jsonrpc
from comity.mcp.jsonrpc import LIMITS, Frame
from comity.mcp.protocol import Era
from comity.sessions.calls import ActiveCalls, Call, ServerRequest
from comity.sessions.client_streams import ClientStream
from comity.sessions.sessions import Session
from comity.sessions.upstream import UpstreamConnection
from tests.support.carriers import Clock, Script, ScriptedCarrier
from tests.support.refused import refusal_in


class Room:
    """A link with those who listen to what belongs to no call, and a session that calls."""

    def __init__(self, process: bool = False) -> None:
        self.script = Script(starts_process=process)
        self.carrier: ScriptedCarrier = self.script.create_transport(Era.HANDSHAKE)
        self.heard: list[Frame] = []
        self.questions: list[ServerRequest] = []
        self.ends: list[str] = []
        self.renewals = 0
        self.link = UpstreamConnection("srv", self.carrier, self, LIMITS)
        self.session = Session("", 0)
        self.underway = ActiveCalls(Clock(), 60, 300, 600)
        self._next = 0

    def on_notification(self, connection: UpstreamConnection, frame: Frame) -> None:
        self.heard.append(frame)

    def on_request(
        self, connection: UpstreamConnection, server_request: ServerRequest, frame: Frame
    ) -> None:
        self.questions.append(server_request)

    def on_session_renewed(self, connection: UpstreamConnection) -> None:
        self.renewals += 1

    def on_connection_lost(self, connection: UpstreamConnection, reason: str) -> None:
        self.ends.append(reason)

    def call(self, method: str = "tools/call", **params: object) -> tuple[Call, Frame]:
        """A call on its way, and the request as the server saw it."""
        self._next += 1
        frame = jsonrpc.make_request(f"own-{self._next}", method, params)
        call = self.underway.begin(frame, ClientStream(), self.session)
        self.link.send_call(call, frame)
        return call, self.carrier.sent[-1].frame


async def opened(process: bool = False) -> Room:
    room = Room(process)
    await room.link.open()
    return room


def frames_in(call: Call) -> list[Frame]:
    return [jsonrpc.decode_frame(data) for data in call.client_stream.take()]


def is_error(frame: Frame) -> bool:
    return refusal_in(frame) is not None
