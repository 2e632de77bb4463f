"""One WebSocket connection: its reads, its writes, and its timeouts. (RFC 6455)

The `websockets` library implements the protocol. This module does the reading and writing. A
server does not mask its frames, so one encoded frame serves all members of a topic. Measured, this
halves the cost of a broadcast. Frames for one reader in one turn of the event loop are written
together, because writing costs most.

Rule 1: no write waits for a reader. Frames beyond its queue limit are not kept.
Rule 2: the frames and messages of one client are processed in small portions, so that one sender
        does not delay the others. A client that sends many frames without a message is closed.
Rule 3: messages are not compressed. Compression would be repeated for each reader, and a few bytes
        could expand to many.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, cast

from websockets.exceptions import InvalidHandshake
from websockets.frames import Close, CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from comity.http.connection import UpgradedProtocol
from comity.http.request_turns import PORTION_BYTES, InputTurns
from comity.toolkit.resilience import RateCounter, RateLimit

HELPING: Final = 4_000
"""How many deliveries one client's envelopes may cause before the next client has its turn."""

PIECE_BYTES: Final = 1024
"""How many bytes are decoded at once. They may hold 170 frames, and each costs as much as any."""
FRAME_COST: Final = 512
"""The cost of one frame in a turn of input, in bytes of HTTP. Measured: 30 us."""
TINY_BYTES: Final = 64
"""A fragment with fewer bytes counts as a frame without a message."""
FRAMES_WITHOUT_MESSAGE: Final = RateLimit(100, 1.0, 1_000)
"""The control frames and tiny fragments of one client. No client needs more than a few."""

DISCARDED_BYTES: Final = 16 * 1024 * 1024
"""The bytes that a client may still send after the close frame, whose reason it can read so."""

GATHERED: Final = 32 * 1024
"""The most bytes for one reader that wait for the end of a turn."""

CLOSING_SECONDS: Final = 5.0
"""How long the client may take to answer a close frame."""
HEADROOM: Final = 64 * 1024
REASON_BYTES: Final = 120
"""The limit for the reason in a close frame, which holds up to 123 bytes."""
TOO_SLOW: Final = 4008
"""The close code for a client that reads nothing or sends nothing for too long."""


@dataclass(frozen=True, slots=True)
class WebSocketLimits:
    """The limits for the queue and the silence of one client."""

    message_bytes: int = 1024 * 1024
    queue_bytes: int = 1024 * 1024
    ping_seconds: float = 20.0
    silent_seconds: float = 60.0
    send_seconds: float = 30.0


class Listener(Protocol):
    """Receives the messages of a WebSocket. Called on the event loop, so it must not block."""

    def received(self, data: bytes) -> int:
        """Handle one message. Return how many deliveries it caused."""
        ...

    def resumed(self) -> None:
        """Note that the client reads again."""
        ...

    def closed(self, *, is_clean: bool) -> None: ...


class UpgradableConnection(Protocol):
    """An HTTP connection that was handed over, and that its listener still counts."""

    @property
    def transport(self) -> asyncio.Transport: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def hand_over(self, protocol: UpgradedProtocol) -> None: ...


def encode_text_frame(text: bytes) -> bytes:
    """Return a message as an unmasked final text frame, the same for every client."""
    size = len(text)
    if size < 126:
        return b"\x81%c%b" % (size, text)
    if size < 65_536:
        return b"\x81\x7e" + size.to_bytes(2) + text
    return b"\x81\x7f" + size.to_bytes(8) + text


class WebSocketRegistry:
    """All open WebSockets. `look` closes those that are silent for too long."""

    def __init__(self, limits: WebSocketLimits, now: Callable[[], float]) -> None:
        self.limits = limits
        self.now = now
        self.turns = InputTurns()
        self.open: set[WebSocketConnection] = set()
        self._due: list[WebSocketConnection] = []
        self._loop = asyncio.get_running_loop()

    def send_soon(self, due: "WebSocketConnection") -> None:
        """Send the gathered frames of a connection at the end of this turn of the event loop."""
        if not self._due:
            self._loop.call_soon(self._send_due)
        self._due.append(due)

    def _send_due(self) -> None:
        due, self._due = self._due, []
        for each in due:
            each.send_gathered()

    def look(self) -> None:
        now = self.now()
        for each in list(self.open):
            each.look(now)


class WebSocketConnection(UpgradedProtocol):
    """One connection after its upgrade to WebSocket."""

    def __init__(
        self, connection: UpgradableConnection, sockets: WebSocketRegistry, protocol: ServerProtocol
    ) -> None:
        self._connection = connection
        self._sockets = sockets
        self._protocol = protocol
        self._transport = connection.transport
        self._listener: Listener | None = None
        self._waiting: deque[bytes] = deque()
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        # Input for later turns of the event loop. The transport does not read meanwhile.
        self._undecoded = b""
        self._awaits_turn = False
        # The fragments of a message, in one buffer.
        self._parts = bytearray()
        self._without_message = RateCounter(FRAMES_WITHOUT_MESSAGE)
        self._is_busy = False
        self._is_full = False
        self._is_clean = False
        # A copy of the protocol's state, updated when it may change and not for each frame.
        self._is_ending = False
        self._discarded_bytes = 0
        self._heard_at = self._pinged_at = sockets.now()
        self._full_since = 0.0
        self._unread = 0
        self._ends_at = 0.0
        self._loop = asyncio.get_running_loop()

    def begin(self, listener: Listener) -> None:
        """Deliver messages to the listener from now on."""
        self._listener = listener
        self._take_turn()

    @property
    def is_open(self) -> bool:
        return self._protocol.state is State.OPEN and not self._transport.is_closing()

    # Writing

    def write(self, frame: bytes) -> bool:
        """Queue an encoded frame. Return False if the queue is full or the connection ends."""
        if self._is_full or self._is_ending:
            return False
        gathered = self._gathered
        if not gathered:
            self._sockets.send_soon(self)
        gathered.append(frame)
        self._gathered_bytes += len(frame)
        if self._gathered_bytes > GATHERED:
            # Only a write shows whether the client reads.
            self.send_gathered()
        return True

    def send_gathered(self) -> None:
        gathered = self._gathered
        if gathered:
            self._gathered, self._gathered_bytes = [], 0
        if gathered and not self._transport.is_closing():
            self._transport.write(gathered[0] if len(gathered) == 1 else b"".join(gathered))

    def close(self, code: int, reason: str) -> None:
        if self._protocol.state is State.OPEN:
            self._ends_at = self._sockets.now() + CLOSING_SECONDS
            # Messages that are still queued are not delivered after a close.
            self._waiting.clear()
            self._protocol.send_close(
                code, reason.encode()[:REASON_BYTES].decode("utf-8", "ignore")
            )
            self._flush()
            if not self._transport.is_closing():
                # Reading continues only to receive the close frame of the client.
                self._read_on()

    def abort(self) -> None:
        self._transport.abort()

    def pause_writing(self) -> None:
        self._is_full = True
        self._full_since = self._sockets.now()
        self._unread = self._transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        self._is_full = False
        if self._listener is not None:
            self._listener.resumed()

    # Reading

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        given = cast("asyncio.Transport", transport)
        most = self._sockets.limits.queue_bytes
        given.set_write_buffer_limits(high=most, low=most - most // 8)
        # Until a listener is set, messages wait at the sender.
        given.pause_reading()
        self._sockets.open.add(self)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._sockets.now()
        if self._is_ending:
            self._discarded_bytes += len(data)
            if self._discarded_bytes > DISCARDED_BYTES:
                self.abort()
                return
        self._undecoded = self._undecoded + data if self._undecoded else data
        if self._sockets.turns.has_room and not self._awaits_turn and not self._is_busy:
            self._read_portion()
        else:
            self._read_on()

    def _read_on(self) -> None:
        """Wait for a turn to decode what has arrived, or read more from the transport."""
        reads = self._transport.is_reading()
        if not self._undecoded:
            if not reads:
                self._transport.resume_reading()
            return
        if reads:
            self._transport.pause_reading()
        if not self._awaits_turn:
            self._awaits_turn = True
            self._sockets.turns.wait(self._read_in_turn)

    def _read_in_turn(self) -> None:
        self._awaits_turn = False
        # While messages wait for their delivery, no more of them are decoded.
        if not self._is_busy and not self._transport.is_closing():
            self._read_portion()

    def _read_portion(self) -> None:
        """Decode frames until they have cost a portion of this turn."""
        data, position, cost = self._undecoded, 0, 0
        while position < len(data) and cost < PORTION_BYTES:
            piece = data[position : position + PIECE_BYTES]
            self._protocol.receive_data(piece)
            events = self._protocol.events_received()
            for event in events:
                self._see(event)
            position += len(piece)
            cost += len(piece) + FRAME_COST * len(events)
        self._undecoded = data[position:]
        self._sockets.turns.spend(cost)
        self._flush()
        self._take_turn()

    def eof_received(self) -> None:
        self._undecoded = b""
        self._protocol.receive_eof()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._sockets.open.discard(self)
        self._undecoded = b""
        self._waiting.clear()
        listener, self._listener = self._listener, None
        self._connection.connection_lost(exc)
        if listener is not None:
            listener.closed(is_clean=self._is_clean)

    def _see(self, event: object) -> None:
        if not isinstance(event, Frame) or self._ends_at:
            # After a close was sent, no message counts, not even the answer to the close.
            return
        if event.opcode is Opcode.CLOSE:
            code = Close.parse(event.data).code
            self._is_clean = code in (CloseCode.NORMAL_CLOSURE, CloseCode.GOING_AWAY)
        elif event.opcode is Opcode.BINARY:
            self._ends_at = self._sockets.now() + CLOSING_SECONDS
            self._protocol.fail(CloseCode.UNSUPPORTED_DATA, "envelopes are text")
        elif event.opcode in (Opcode.PING, Opcode.PONG):
            self._count_without_message()
        else:
            if not event.fin and len(event.data) < TINY_BYTES:
                self._count_without_message()
            if event.fin and not self._parts:
                self._waiting.append(bytes(event.data))
                return
            self._parts += event.data
            if event.fin:
                self._waiting.append(bytes(self._parts))
                self._parts.clear()

    def _count_without_message(self) -> None:
        now = self._sockets.now()
        if not self._without_message.wait(now):
            self._without_message.take(now)
            return
        self._ends_at = now + CLOSING_SECONDS
        self._protocol.fail(
            CloseCode.POLICY_VIOLATION, "too many pings, pongs or tiny fragments; send fewer"
        )

    def _take_turn(self) -> None:
        """Deliver some of the queued messages, and the rest after other clients had their turn."""
        self._is_busy = False
        helping = HELPING
        while self._waiting and helping > 0 and self._listener is not None:
            helping -= 1 + self._listener.received(self._waiting.popleft())
        if self._transport.is_closing():
            return
        if self._waiting and self._listener is not None:
            self._is_busy = True
            if self._transport.is_reading():
                self._transport.pause_reading()
            self._loop.call_soon(self._take_turn)
        elif self._listener is not None:
            self._read_on()

    def _flush(self) -> None:
        self._is_ending = self._protocol.state is not State.OPEN
        if self._is_ending and not self._ends_at:
            self._ends_at = self._sockets.now() + CLOSING_SECONDS
        said = self._protocol.data_to_send()
        if said:
            # Earlier frames go first, especially before a close frame.
            self.send_gathered()
        for data in said:
            if data:
                self._transport.write(data)
            elif self._protocol.close_rcvd is not None or not self._transport.can_write_eof():
                self._transport.close()
            else:
                # The client may still be sending. Cut off now, it would never read the reason.
                self._transport.write_eof()
        # A client that sends pings without end and reads no pong exceeds the queue limit.
        most = 2 * self._sockets.limits.queue_bytes + HEADROOM
        if self._transport.get_write_buffer_size() > most:
            self.abort()

    def look(self, now: float) -> None:
        """Send a ping when it is due. Close a client that reads or sends nothing for too long."""
        limits = self._sockets.limits
        if self._ends_at:
            if now >= self._ends_at:
                self.abort()
        elif self._is_full:
            self._look_at_queue(now)
        elif now - self._heard_at >= limits.silent_seconds:
            self.close(TOO_SLOW, "nothing was heard of you for too long")
        elif now - max(self._heard_at, self._pinged_at) >= limits.ping_seconds:
            self._pinged_at = now
            self._protocol.send_ping(b"")
            self._flush()

    def _look_at_queue(self, now: float) -> None:
        unread = self._transport.get_write_buffer_size()
        if unread < self._unread:
            self._unread, self._full_since = unread, now
        elif now - self._full_since >= self._sockets.limits.send_seconds:
            self.close(TOO_SLOW, "the client does not read its messages")

    def shutdown(self) -> None:
        self.close(CloseCode.GOING_AWAY, "the gateway is going away")


def upgrade_connection(
    connection: UpgradableConnection, head: bytes, sockets: WebSocketRegistry, subprotocol: str
) -> tuple[WebSocketConnection | None, bytes]:
    """Upgrade a connection if its request is valid. Return the WebSocket and the response.

    If the request is not valid, the WebSocket is None and the response is an HTTP error.
    """
    protocol = ServerProtocol(max_size=sockets.limits.message_bytes)
    protocol.receive_data(head)
    (request,) = protocol.events_received() or [None]
    if not isinstance(request, Request):
        return None, _refusal(protocol.handshake_exc)
    response = protocol.accept(request)
    if response.status_code != 101:
        return None, _refusal(protocol.handshake_exc)
    if subprotocol:
        response.headers["Sec-WebSocket-Protocol"] = subprotocol
    protocol.send_response(response)
    sent = socket_of(connection.transport)
    if sent is not None:
        # The system's buffer delays messages beyond their use, and no limit counts it.
        sent.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDBUF, max(65_536, sockets.limits.queue_bytes)
        )
    made = WebSocketConnection(connection, sockets, protocol)
    return made, b"".join(protocol.data_to_send())


def socket_of(transport: asyncio.Transport) -> socket.socket | None:
    return cast("socket.socket | None", transport.get_extra_info("socket"))


def _refusal(problem: Exception | None) -> bytes:
    reason = str(problem) if isinstance(problem, InvalidHandshake) else "not a WebSocket handshake"
    return reason.encode("ascii", "replace")
