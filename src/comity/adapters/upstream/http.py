"""MCP over streamable HTTP as a client: one POST a message, one stream a question. (MCP §3.2)

Stream identity is kept: what comes on the response to a POST is heard as that question's stream,
and what comes on the GET stream as nobody's. A stream that ends early is taken up again by its last
event id; a session the server forgot is opened again and the refused question, which the server did
not run, is sent once more.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from typing import Final

from comity.adapters.upstream.origin import Origin, header_line, request_head
from comity.adapters.upstream.pool import Pool
from comity.adapters.upstream.replies import Discard, Reply, Standing
from comity.ports import Carrier, Headers, Receiver
from comity.wire import jsonrpc, mcp
from comity.wire.errors import Unavailable
from comity.wire.jsonrpc import LIMITS, Frame, Limits
from comity.wire.mcp import Era, Stream

log = logging.getLogger(__name__)

FAREWELL_SECONDS: Final = 1.0
LISTEN_SECONDS: Final = 1.0
FLUSH_SECONDS: Final = 0.001
LONGEST_WAIT_SECONDS: Final = 30.0

_COMMON: Final = (
    ("accept", "application/json, text/event-stream"),
    ("content-type", "application/json"),
)


class HttpReach:
    """A server at a URL."""

    costs_a_process = False

    def __init__(
        self,
        pool: Pool,
        url: str,
        headers: Mapping[str, str],
        limits: Limits = LIMITS,
        standing: Pool | None = None,
    ) -> None:
        self._pool = pool
        # Streams that stay open take no connection from the calls.
        self.standing = standing or pool
        self._limits = limits
        self.origin, self.target = Origin.of(url)
        self._headers = tuple(headers.items())

    def carrier(self, era: Era) -> Carrier:
        return HttpCarrier(self, self._pool, era, self._limits)

    def head(self, method: str) -> bytes:
        """The constant part of every request."""
        lines = _COMMON if method == "POST" else (("accept", "text/event-stream"),)
        return request_head(method, self.target, self.origin, (*lines, *self._headers))


class HttpCarrier:
    """One session with a server (handshake), or requests that need none (modern)."""

    tells_streams_apart = True
    ended_well = False

    def __init__(self, reach: HttpReach, pool: Pool, era: Era, limits: Limits) -> None:
        self.limits = limits
        self.resumes = era is Era.HANDSHAKE
        self._reach = reach
        self._pool = pool
        self._era = era
        self._session = b""
        self._post = reach.head("POST")
        if era is Era.MODERN:
            self._post += header_line("mcp-protocol-version", mcp.LATEST_MODERN)
        self._post_in_session = self._post
        self._version = ""
        self._greeting: bytes | None = None
        self._open: dict[int, Reply] = {}
        self._standing: Standing | None = None
        self._renewal: asyncio.Task[bool] | None = None
        self._tasks: set[asyncio.Task[object]] = set()
        self._closed = False
        self._held: list[tuple[Frame, Stream, Headers]] | None = None
        self._telling: set[asyncio.Future[None]] = set()
        self.receiver: Receiver

    async def open(self, receiver: Receiver) -> None:
        self.receiver = receiver

    def send(self, frame: Frame, stream: Stream, headers: Headers = ()) -> None:
        if self._held is not None:
            self._held.append((frame, stream, headers))
            return
        if frame.method == mcp.INITIALIZED and self._awaits_standing():
            # The server may push as soon as it hears this: its stream has to be open by then.
            self._held = [(frame, stream, headers)]
            asyncio.get_running_loop().call_later(LISTEN_SECONDS, self.release)
            return
        body = jsonrpc.encode(frame)
        head = self._post_in_session
        for name, value in headers:
            head += b"%b: %b\r\n" % (name, value)
        if not stream:
            if self._era is Era.HANDSHAKE or frame.method != mcp.CANCELLED:
                # In the modern era the end of the stream is the cancellation.
                told = Discard()
                self._telling.add(told.done)
                told.done.add_done_callback(self._telling.discard)
                self._pool.send(self._reach.origin, head, body, told)
            return
        if frame.method == mcp.INITIALIZE:
            self._greeting = body
        reply = self._open[stream] = Reply(self, stream, body, headers)
        # Who listens keeps its connection for ever: it may not take one from those who call.
        pool = self._reach.standing if frame.method == mcp.LISTEN else self._pool
        reply.sending = pool.send(self._reach.origin, head, body, reply)

    def _awaits_standing(self) -> bool:
        return self._standing is not None and not self._standing.is_answered

    def release(self) -> None:
        """Send what was held back, less what nobody waits for any more."""
        if self._standing is not None:
            self._standing.is_answered = True
        held, self._held = self._held or [], None
        for frame, stream, headers in held:
            if not self._closed and (not stream or self.receiver.awaits(stream)):
                self.send(frame, stream, headers)

    def speaks(self, version: str) -> None:
        if self._era is Era.HANDSHAKE:
            self._version = version
            self._write_head()

    def listen(self) -> None:
        if self._era is Era.HANDSHAKE and self._standing is None and not self._closed:
            self._standing = Standing(self)
            self._send_get(self._standing, b"")

    def pause(self, stream: Stream) -> None:
        reply = self._open.get(stream) if stream else None
        if reply is not None and reply.sending is not None:
            reply.sending.pause()

    def resume(self, stream: Stream) -> None:
        reply = self._open.get(stream) if stream else None
        if reply is not None and reply.sending is not None:
            reply.sending.resume()

    def abandon(self, stream: Stream) -> None:
        reply = self._open.pop(stream, None) if stream else None
        if reply is not None:
            reply.abort()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for reply in list(self._open.values()):
            reply.abort()
        self._open.clear()
        if self._standing is not None:
            self._standing.abort()
        for task in list(self._tasks):
            task.cancel()
        if self._telling:
            # A server may stumble over words for a session that it is just ending, and then hang
            # up on whoever uses that connection next.
            await asyncio.wait(list(self._telling), timeout=FAREWELL_SECONDS)
        if self._session:
            farewell = Discard()
            head = self._reach.head("DELETE") + self._session_lines()
            self._pool.send(self._reach.origin, head, b"", farewell)
            await asyncio.wait([farewell.done], timeout=FAREWELL_SECONDS)

    def hints(self) -> Sequence[str]:
        return ()

    async def flushed(self) -> None:
        """Return once the server has taken every notice, and every question is on its way.

        Whoever relays the words of somebody else keeps their order by this.
        """
        async with asyncio.timeout(LONGEST_WAIT_SECONDS):
            # A connection tells nobody that it has taken a request: it does so for every call.
            while self._held is not None or any(each.is_unsent for each in self._open.values()):  # noqa: ASYNC110
                await asyncio.sleep(FLUSH_SECONDS)
            if self._telling:
                await asyncio.wait(list(self._telling))

    # What the replies tell.

    def begun(self, session: bytes) -> None:
        """The server named a session."""
        self._session = session
        self._write_head()

    def finished(self, stream: int) -> None:
        self._open.pop(stream, None)

    def may_be_forgotten(self, status: int) -> bool:
        """Whether a refusal means that the server no longer knows this session."""
        return status == 404 and bool(self._session) and self._greeting is not None

    def ask_again(self, reply: Reply) -> None:
        """Open the session anew, once for all who were refused, then send the question again."""
        if self._renewal is None or self._renewal.done():
            self._renewal = self._spawn(self._renew())
        self._spawn(self._repeat(reply, self._renewal))

    def take_up(self, reply: Reply) -> None:
        """Resume a broken stream after the wait the server asked for."""
        self._spawn(self._resume(reply))

    def listen_again(self, standing: Standing, status: int) -> None:
        """The standing stream ended: 405 means there is none; all else is worth another try."""
        if self._closed or status == 405:
            return
        if self.may_be_forgotten(status) and (self._renewal is None or self._renewal.done()):
            self._renewal = self._spawn(self._renew())
        self._spawn(self._listen_later(standing))

    async def _listen_later(self, standing: Standing) -> None:
        if self._renewal is not None:
            await asyncio.wait([self._renewal])
        await asyncio.sleep(min(standing.wait_seconds(), LONGEST_WAIT_SECONDS))
        self._send_get(standing, _last_event(standing.last_event_id))

    async def _resume(self, reply: Reply) -> None:
        await asyncio.sleep(min(reply.retry_seconds, LONGEST_WAIT_SECONDS))
        if self.receiver.awaits(reply.stream):
            self._send_get(reply, _last_event(reply.last_event_id))

    async def _renew(self) -> bool:
        """Whether the server opened another session."""
        assert self._greeting is not None
        greeting = Discard(self)
        self._pool.send(self._reach.origin, self._post, self._greeting, greeting)
        await asyncio.wait([greeting.done], timeout=LONGEST_WAIT_SECONDS)
        if not greeting.named_a_session:
            # The next question is refused under the old name, and that is the next try.
            return False
        hello = jsonrpc.encode(jsonrpc.notification(mcp.INITIALIZED))
        initialized = Discard()
        self._pool.send(self._reach.origin, self._post_in_session, hello, initialized)
        await asyncio.wait([initialized.done], timeout=LONGEST_WAIT_SECONDS)
        log.info("a session that %s had forgotten was opened again", self._reach.origin)
        self.receiver.renewed()
        return True

    async def _repeat(self, reply: Reply, renewal: asyncio.Task[bool]) -> None:
        if not await renewal:
            self.finished(reply.stream)
            because = Unavailable("the server forgot the session and would not open another")
            self.receiver.stream_ended(reply.stream, because)
            return
        head = self._post_in_session
        for name, value in reply.headers:
            head += b"%b: %b\r\n" % (name, value)
        reply.sending = self._pool.send(self._reach.origin, head, reply.body, reply)

    def _send_get(self, reader: Reply | Standing, extra: bytes) -> None:
        head = self._reach.head("GET") + self._session_lines() + extra
        reader.sending = self._reach.standing.send(
            self._reach.origin, head, b"", reader, may_repeat=True
        )

    def _session_lines(self) -> bytes:
        lines = b"mcp-session-id: %b\r\n" % self._session if self._session else b""
        return lines + (
            header_line("mcp-protocol-version", self._version) if self._version else b""
        )

    def _write_head(self) -> None:
        self._post_in_session = self._post + self._session_lines()

    def _spawn[Outcome](self, work: Coroutine[None, None, Outcome]) -> asyncio.Task[Outcome]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _last_event(event_id: str) -> bytes:
    return b"last-event-id: %b\r\n" % event_id.encode() if event_id else b""
