"""Where parties join a topic: `GET /ws?topic=NAME&mode=all|directed`. (MCPx §6.2, D-49 to D-53)

Rule 1: who comes is asked at the door like anybody else; a browser, which cannot send a header
        here, may show its token as a subprotocol: `["mcpx.v0.1", "bearer.TOKEN"]`. (D-53)
Rule 2: what is refused before the upgrade is refused as HTTP, with a status and words.
Rule 3: a frame is made once for all who are given the same envelope.
"""

import logging
import re
from dataclasses import replace
from typing import Final
from urllib.parse import parse_qs

from websockets.frames import CloseCode

from comity.kernel.seats import Said, Seat
from comity.kernel.topics import Topics
from comity.rules.topics import Mode
from comity.surfaces.doorway import Receive, Scope, Send, answer, empty
from comity.surfaces.guard import HANDED
from comity.surfaces.reception import SOCKETS
from comity.surfaces.websocket import Handed, Socket, Sockets, framed, upgraded
from comity.wire import jsonrpc
from comity.wire.errors import INVALID_PARAMS, MalformedMessage, Unavailable
from comity.wire.parties import Actor

log = logging.getLogger(__name__)

PATH: Final = SOCKETS
SUBPROTOCOL: Final = "mcpx.v0.1"

_ALIAS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
_ALIASES: Final = "local:"


class Member:
    """One member at a socket: between what it says and the topic, and back."""

    def __init__(self, topics: Topics, topic: str, socket: Socket) -> None:
        self._topics = topics
        self.topic = topic
        self._socket = socket
        self.seat: Seat | None = None

    # What the topic gives

    def give(self, said: Said) -> bool:
        frame = said.frame
        if not frame:
            frame = said.frame = framed(said.text)
        return self._socket.write(frame)

    def end(self, code: int, because: str) -> None:
        self._socket.close(code, because)

    # What the socket brings

    def received(self, data: bytes) -> int:
        if self.seat is None:
            return 0
        return self._topics.say(self.topic, self.seat, data)

    def resumed(self) -> None:
        if self.seat is not None:
            self._topics.resumed(self.topic, self.seat)

    def closed(self, *, is_clean: bool) -> None:
        if self.seat is not None:
            self._topics.gone(self.topic, self.seat, is_clean=is_clean)


class TopicSocket:
    """The door."""

    def __init__(self, topics: Topics, sockets: Sockets) -> None:
        self._topics = topics
        self._sockets = sockets

    async def __call__(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        handed: Handed | None = scope.get(HANDED)
        if scope["method"] != "GET":
            await empty(send, 405, ((b"allow", b"GET"),))
            return
        topic, mode, alias = _asked(scope)
        actor = _known_as(scope["actor"], alias)
        self._topics.check(topic, actor)
        if handed is None:
            told = jsonrpc.to_json(
                {"error": "this is a WebSocket: connect with a WebSocket client"}
            )
            await answer(send, 426, told, ((b"upgrade", b"websocket"),))
            return
        chosen = SUBPROTOCOL if SUBPROTOCOL in _offered(headers) else ""
        socket, said = upgraded(handed, _head(scope), self._sockets, chosen)
        if socket is None:
            await answer(send, 400, jsonrpc.to_json({"error": said.decode()}))
            return
        handed.hand_over(socket)
        handed.transport.write(said)
        await self._sit(Member(self._topics, topic, socket), socket, actor, mode)

    async def _sit(self, member: Member, socket: Socket, actor: Actor, mode: Mode) -> None:
        """From here on there is no HTTP any more: what goes wrong is told by a close."""
        try:
            member.seat = await self._topics.join(member.topic, actor, mode, member)
        except (MalformedMessage, Unavailable) as error:
            socket.close(CloseCode.TRY_AGAIN_LATER, str(error))
            return
        except Exception:
            log.exception("joining topic %r ended in a bug of ours", member.topic)
            socket.close(CloseCode.INTERNAL_ERROR, "something went wrong here")
            return
        if socket.is_open:
            socket.begin(member)
        else:
            self._topics.gone(member.topic, member.seat, is_clean=False)


def _asked(scope: Scope) -> tuple[str, Mode, str]:
    """What the query asks for; each only once."""
    try:
        query = parse_qs(scope["query_string"].decode("ascii"), max_num_fields=8)
    except (UnicodeDecodeError, ValueError):
        raise MalformedMessage("the query cannot be read", INVALID_PARAMS) from None
    if any(len(values) > 1 for values in query.values()):
        raise MalformedMessage("each part of the query stands once", INVALID_PARAMS)
    told = {name: values[0] for name, values in query.items()}
    try:
        mode = Mode(told.get("mode", Mode.ALL))
    except ValueError:
        raise MalformedMessage("?mode= is all or directed", INVALID_PARAMS) from None
    return told.get("topic", ""), mode, told.get("as", "")


def _known_as(actor: Actor, alias: str) -> Actor:
    """Whoever runs the gateway for itself may be several members, each by a name of its own."""
    if not alias:
        return actor
    if not actor.is_local or not _ALIAS.fullmatch(alias):
        raise MalformedMessage(
            "?as= names a member where a gateway is used by one person without credentials; "
            "elsewhere credentials say who you are",
            INVALID_PARAMS,
        )
    return replace(actor, party=f"{_ALIASES}{alias}")


def _offered(headers: dict[bytes, bytes]) -> list[str]:
    given = headers.get(b"sec-websocket-protocol", b"").decode("latin-1")
    return [each.strip() for each in given.split(",")]


def _head(scope: Scope) -> bytes:
    """The request's head again, for the protocol to check; without what is nobody's business."""
    lines = [b"GET /ws HTTP/1.1"]
    for name, value in scope["headers"]:
        if name not in (b"authorization", b"sec-websocket-protocol", b"cookie"):
            lines.append(name + b": " + value)
    return b"\r\n".join((*lines, b"", b""))
