"""One WebSocket: what is read from it, what is written to it, and when it is given up. (RFC 6455)

The protocol is the `websockets` library's; reading and writing is done here, because a frame that
goes to many members need be made only once: towards a client nothing is masked, so that it is the
same for all. Measured, that halves the cost of a broadcast. And what one reader is given in one
turn of the loop goes out in one piece: writing is what costs most.

Rule 1: nothing waits for a reader. What it does not take within its bound is not kept for it.
Rule 2: what one client sends is taken in small helpings: one who sends much holds up nobody.
Rule 3: nothing is compressed: it would be done for each reader anew, and a few bytes could become
        many.
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

from comity.surfaces.guard import Upgraded

HELPING: Final = 4_000
"""How many deliveries one client's envelopes may cause before others have their turn."""

GATHERED: Final = 32 * 1024
"""So many bytes for one reader wait at most for the end of a turn."""

CLOSING_SECONDS: Final = 5.0
HEADROOM: Final = 64 * 1024
REASON_BYTES: Final = 120
"""A close frame has room for 123 bytes of words."""
TOO_SLOW: Final = 4008
"""The code with which a reader is given up that takes nothing, or says nothing."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long and how much one reader is waited for."""

    message_bytes: int = 1024 * 1024
    queue_bytes: int = 1024 * 1024
    ping_seconds: float = 20.0
    silent_seconds: float = 60.0
    send_seconds: float = 30.0


class Listener(Protocol):
    """Who hears what comes over a socket. Called on the event loop; must not block."""

    def received(self, data: bytes) -> int:
        """One message; gives how many deliveries it caused."""
        ...

    def resumed(self) -> None:
        """The reader takes things again."""
        ...

    def closed(self, *, is_clean: bool) -> None: ...


class Handed(Protocol):
    """A connection that was handed over, and is still counted where it came from."""

    @property
    def transport(self) -> asyncio.Transport: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def hand_over(self, protocol: Upgraded) -> None: ...


def framed(text: bytes) -> bytes:
    """A message as it goes over every socket: final, text, its length, and not masked."""
    size = len(text)
    if size < 126:
        return b"\x81%c%b" % (size, text)
    if size < 65_536:
        return b"\x81\x7e" + size.to_bytes(2) + text
    return b"\x81\x7f" + size.to_bytes(8) + text


class Sockets:
    """Every open socket, and the one look that finds those who are silent."""

    def __init__(self, limits: Limits, now: Callable[[], float]) -> None:
        self.limits = limits
        self.now = now
        self.open: set[Socket] = set()
        self._due: list[Socket] = []
        self._loop = asyncio.get_running_loop()

    def send_soon(self, due: "Socket") -> None:
        """Have what was gathered for a socket sent when this turn of the loop is over."""
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


class Socket(Upgraded):
    """One connection after its upgrade."""

    def __init__(self, handed: Handed, sockets: Sockets, protocol: ServerProtocol) -> None:
        self._handed = handed
        self._sockets = sockets
        self._protocol = protocol
        self._transport = handed.transport
        self._listener: Listener | None = None
        self._waiting: deque[bytes] = deque()
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        # Of a message in fragments; one buffer, since there may be any number of empty ones.
        self._parts = bytearray()
        self._is_busy = False
        self._is_full = False
        self._is_clean = False
        # Asked of the protocol whenever it may have become so, and not for each frame.
        self._is_ending = False
        self._heard_at = self._pinged_at = sockets.now()
        self._full_since = 0.0
        self._unread = 0
        self._ends_at = 0.0
        self._loop = asyncio.get_running_loop()

    def begin(self, listener: Listener) -> None:
        """Hear what comes from now on."""
        self._listener = listener
        if not self._transport.is_closing():
            self._transport.resume_reading()
        self._take_turn()

    @property
    def is_open(self) -> bool:
        return self._protocol.state is State.OPEN and not self._transport.is_closing()

    # What goes out

    def write(self, frame: bytes) -> bool:
        """Send a frame that was made before; whether there was room for it."""
        if self._is_full or self._is_ending:
            return False
        gathered = self._gathered
        if not gathered:
            self._sockets.send_soon(self)
        gathered.append(frame)
        self._gathered_bytes += len(frame)
        if self._gathered_bytes > GATHERED:
            # Whether its reader takes that is known only once it was written.
            self.send_gathered()
        return True

    def send_gathered(self) -> None:
        gathered = self._gathered
        if gathered:
            self._gathered, self._gathered_bytes = [], 0
        if gathered and not self._transport.is_closing():
            self._transport.write(gathered[0] if len(gathered) == 1 else b"".join(gathered))

    def close(self, code: int, because: str) -> None:
        if self._protocol.state is State.OPEN:
            self._ends_at = self._sockets.now() + CLOSING_SECONDS
            # What came before was not heard yet, and is not heard any more.
            self._waiting.clear()
            self._protocol.send_close(
                code, because.encode()[:REASON_BYTES].decode("utf-8", "ignore")
            )
            self._flush()
            if not self._transport.is_closing() and not self._transport.is_reading():
                # There is nothing to hear any more but that it closes as well.
                self._transport.resume_reading()

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

    # What comes in

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        given = cast("asyncio.Transport", transport)
        most = self._sockets.limits.queue_bytes
        given.set_write_buffer_limits(high=most, low=most - most // 8)
        # Until somebody listens, what is sent waits at the sender.
        given.pause_reading()
        self._sockets.open.add(self)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._sockets.now()
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            self._see(event)
        self._flush()
        if self._waiting and not self._is_busy:
            self._take_turn()

    def eof_received(self) -> None:
        self._protocol.receive_eof()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._sockets.open.discard(self)
        self._waiting.clear()
        listener, self._listener = self._listener, None
        self._handed.connection_lost(exc)
        if listener is not None:
            listener.closed(is_clean=self._is_clean)

    def _see(self, event: object) -> None:
        if not isinstance(event, Frame) or self._ends_at:
            # Who has been told to go is not heard any more; nor is its answer to that a word.
            return
        if event.opcode is Opcode.CLOSE:
            code = Close.parse(event.data).code
            self._is_clean = code in (CloseCode.NORMAL_CLOSURE, CloseCode.GOING_AWAY)
        elif event.opcode is Opcode.BINARY:
            self._ends_at = self._sockets.now() + CLOSING_SECONDS
            self._protocol.fail(CloseCode.UNSUPPORTED_DATA, "envelopes are text")
        elif event.opcode in (Opcode.TEXT, Opcode.CONT):
            if event.fin and not self._parts:
                self._waiting.append(bytes(event.data))
                return
            self._parts += event.data
            if event.fin:
                self._waiting.append(bytes(self._parts))
                self._parts.clear()

    def _take_turn(self) -> None:
        """Hear some of what waits; the rest after the others have had their turn."""
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
        elif self._listener is not None and not self._transport.is_reading():
            self._transport.resume_reading()

    def _flush(self) -> None:
        self._is_ending = self._protocol.state is not State.OPEN
        if self._is_ending and not self._ends_at:
            self._ends_at = self._sockets.now() + CLOSING_SECONDS
        said = self._protocol.data_to_send()
        if said:
            # What was given before goes before, above all before a close.
            self.send_gathered()
        for data in said:
            if data:
                self._transport.write(data)
            elif self._protocol.close_rcvd is not None or not self._transport.can_write_eof():
                self._transport.close()
            else:
                # It may still be sending; cut off now, it would never read why it has to go.
                self._transport.write_eof()
        # Who asks for signs of life without end, and takes none of them, fills more than its queue.
        most = 2 * self._sockets.limits.queue_bytes + HEADROOM
        if self._transport.get_write_buffer_size() > most:
            self.abort()

    def look(self, now: float) -> None:
        """Ask for a sign of life in time; give up who takes or says nothing for too long."""
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
            self.close(TOO_SLOW, "you took nothing of what is said here")

    def shutdown(self) -> None:
        self.close(CloseCode.GOING_AWAY, "the gateway is going away")


def upgraded(
    handed: Handed, head: bytes, sockets: Sockets, subprotocol: str
) -> tuple[Socket | None, bytes]:
    """Switch a connection over, if its head asks for that well; and what to answer.

    Without a socket the answer is a refusal as HTTP has it.
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
    sent = socket_of(handed.transport)
    if sent is not None:
        # What the system would buffer beyond this is read by nobody in time, and counted by nobody.
        sent.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDBUF, max(65_536, sockets.limits.queue_bytes)
        )
    made = Socket(handed, sockets, protocol)
    return made, b"".join(protocol.data_to_send())


def socket_of(transport: asyncio.Transport) -> socket.socket | None:
    return cast("socket.socket | None", transport.get_extra_info("socket"))


def _refusal(problem: Exception | None) -> bytes:
    because = str(problem) if isinstance(problem, InvalidHandshake) else "no WebSocket handshake"
    return because.encode("ascii", "replace")
