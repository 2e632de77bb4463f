"""WebSocket endpoint of topics: `GET /ws?topic=NAME&mode=all|directed`. (MCPx §6.2, D-49 to D-53)

Rule 1: a client authenticates as at any other endpoint. A browser cannot send the header here, so
        it may send its token as a subprotocol: `["mcpx.v0.1", "bearer.TOKEN"]`. (D-53)
Rule 2: a refusal before the upgrade is an HTTP response with a status and a reason.
Rule 3: a frame is encoded once for all members that receive the same envelope.
"""

import logging
import re
from dataclasses import replace
from typing import Final
from urllib.parse import parse_qs

from websockets.frames import CloseCode

from comity.errors import INVALID_PARAMS, MalformedMessage, Unavailable
from comity.http.asgi import SOCKETS, Receive, Scope, Send, send_empty, send_json
from comity.http.connection import HANDED
from comity.http.websocket import (
    UpgradableConnection,
    WebSocketConnection,
    WebSocketRegistry,
    encode_text_frame,
    upgrade_connection,
)
from comity.mcp import jsonrpc
from comity.mcp.actors import Actor
from comity.topics.rules import ALIAS_PREFIX, DeliveryMode
from comity.topics.service import TopicService
from comity.topics.topic import TopicMember as Seat
from comity.topics.topic import TopicMessage

log = logging.getLogger(__name__)

PATH: Final = SOCKETS
SUBPROTOCOL: Final = "mcpx.v0.1"

_ALIAS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")


class SocketMember:
    """A member that is connected through a WebSocket."""

    def __init__(self, topics: TopicService, topic: str, socket: WebSocketConnection) -> None:
        self._topics = topics
        self.topic = topic
        self._socket = socket
        self.member: Seat | None = None

    # From the topic

    def deliver(self, message: TopicMessage) -> bool:
        frame = message.frame
        if not frame:
            frame = message.frame = encode_text_frame(message.text)
        return self._socket.write(frame)

    def end(self, code: int, reason: str) -> None:
        self._socket.close(code, reason)

    # From the socket

    def received(self, data: bytes) -> int:
        if self.member is None:
            return 0
        return self._topics.receive(self.topic, self.member, data)

    def resumed(self) -> None:
        if self.member is not None:
            self._topics.on_resumed(self.topic, self.member)

    def closed(self, *, is_clean: bool) -> None:
        if self.member is not None:
            self._topics.on_disconnected(self.topic, self.member, is_clean=is_clean)


class TopicSocket:
    """The HTTP endpoint that upgrades a request to a WebSocket and joins the topic."""

    def __init__(self, topics: TopicService, sockets: WebSocketRegistry) -> None:
        self._topics = topics
        self._sockets = sockets

    async def __call__(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        handed: UpgradableConnection | None = scope.get(HANDED)
        if scope["method"] != "GET":
            await send_empty(send, 405, ((b"allow", b"GET"),))
            return
        topic, mode, alias = _read_query(scope)
        actor = _with_alias(scope["actor"], alias)
        self._topics.check(topic, actor)
        if handed is None:
            told = jsonrpc.to_json(
                {"error": "this is a WebSocket: connect with a WebSocket client"}
            )
            await send_json(send, 426, told, ((b"upgrade", b"websocket"),))
            return
        chosen = SUBPROTOCOL if SUBPROTOCOL in _offered_subprotocols(headers) else ""
        socket, said = upgrade_connection(handed, _request_head(scope), self._sockets, chosen)
        if socket is None:
            await send_json(send, 400, jsonrpc.to_json({"error": said.decode()}))
            return
        handed.hand_over(socket)
        handed.transport.write(said)
        await self._join(SocketMember(self._topics, topic, socket), socket, actor, mode)

    async def _join(
        self, member: SocketMember, socket: WebSocketConnection, actor: Actor, mode: DeliveryMode
    ) -> None:
        """Join the topic. After the upgrade, an error is reported with a close frame."""
        try:
            member.member = await self._topics.join(member.topic, actor, mode, member)
        except (MalformedMessage, Unavailable) as error:
            socket.close(CloseCode.TRY_AGAIN_LATER, str(error))
            return
        except Exception:
            log.exception("Joining topic %r failed because of an internal error", member.topic)
            socket.close(CloseCode.INTERNAL_ERROR, "something went wrong here")
            return
        if socket.is_open:
            socket.begin(member)
        else:
            self._topics.on_disconnected(member.topic, member.member, is_clean=False)


def _read_query(scope: Scope) -> tuple[str, DeliveryMode, str]:
    """Read the query: topic, mode and alias. Raises MalformedMessage if a parameter is repeated."""
    try:
        query = parse_qs(scope["query_string"].decode("ascii"), max_num_fields=8)
    except (UnicodeDecodeError, ValueError):
        raise MalformedMessage("the query cannot be read", INVALID_PARAMS) from None
    if any(len(values) > 1 for values in query.values()):
        raise MalformedMessage("each query parameter may appear once", INVALID_PARAMS)
    told = {name: values[0] for name, values in query.items()}
    try:
        mode = DeliveryMode(told.get("mode", DeliveryMode.ALL))
    except ValueError:
        raise MalformedMessage("?mode= is all or directed", INVALID_PARAMS) from None
    return told.get("topic", ""), mode, told.get("as", "")


def _with_alias(actor: Actor, alias: str) -> Actor:
    """Return the actor under its alias.

    Only the local user of a gateway may be several members, each with a name of its own.
    """
    if not alias:
        return actor
    if not actor.is_local or not _ALIAS.fullmatch(alias):
        raise MalformedMessage(
            "?as= names a member where a gateway is used by one person without credentials; "
            "otherwise your credentials name you",
            INVALID_PARAMS,
        )
    return replace(actor, party=f"{ALIAS_PREFIX}{alias}")


def _offered_subprotocols(headers: dict[bytes, bytes]) -> list[str]:
    given = headers.get(b"sec-websocket-protocol", b"").decode("latin-1")
    return [each.strip() for each in given.split(",")]


def _request_head(scope: Scope) -> bytes:
    """Rebuild the request head for the WebSocket library, without credentials and cookies."""
    lines = [b"GET /ws HTTP/1.1"]
    for name, value in scope["headers"]:
        if name not in (b"authorization", b"sec-websocket-protocol", b"cookie"):
            lines.append(name + b": " + value)
    return b"\r\n".join((*lines, b"", b""))
