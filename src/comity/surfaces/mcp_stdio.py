"""MCP over stdin and stdout: a desktop client starts Comity as its one server. (MCP §3.1)

The first request fixes the era. Everything to the client goes through one queue in order; a client
that stops reading stops only itself.
"""

import asyncio
import sys
from typing import Final

from msgspec import Raw

from comity.kernel.call import Call
from comity.kernel.chores import Chores
from comity.kernel.forwarding import Desk
from comity.kernel.outbox import Outbox
from comity.kernel.sessions import Session, Sessions
from comity.rules.envelopes import envelope_of, refuse_envelope
from comity.surfaces.auth_member import AuthMember
from comity.surfaces.doorway import worded
from comity.wire import jsonrpc, mcp
from comity.wire.errors import INVALID_REQUEST, UNSUPPORTED_VERSION, MalformedMessage
from comity.wire.jsonrpc import UNSET, Frame, Id
from comity.wire.lines import LineSplitter, Overlong
from comity.wire.mcp import Era
from comity.wire.parties import LOCAL, Actor

READ_BYTES: Final = 256 * 1024
LAST_WORDS_SECONDS: Final = 2.0
BEFORE_THE_HANDSHAKE: Final = frozenset({mcp.INITIALIZE, mcp.PING})


async def converse(desk: Desk, sessions: Sessions, auth: AuthMember | None = None) -> None:
    """Serve the one client at stdin until it closes it."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=READ_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, sys.stdout
    )
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    await Conversing(desk, sessions, auth).run(reader, writer)


class Conversing:
    """One client on one pair of pipes: whoever started this program."""

    def __init__(self, desk: Desk, sessions: Sessions, auth: AuthMember | None = None) -> None:
        self._desk = desk
        self._auth = auth or AuthMember()
        self._session: Session = sessions.begin("", LOCAL.party)
        self._sessions = sessions
        self._era: Era | None = None
        # None while the way of a call is still being found.
        self._modern: dict[Id, Call | None] = {}
        self._out: asyncio.Queue[bytes | None] = asyncio.Queue(4096)
        self._asking = Chores("the client on the pipes")

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        splitter = LineSplitter()
        writing = asyncio.ensure_future(self._write(writer))
        standing = asyncio.ensure_future(self._stand())
        try:
            while chunk := await reader.read(READ_BYTES):
                for line in splitter.feed(chunk):
                    await self._read(line)
        finally:
            standing.cancel()
            self._asking.cancel()
            await self._sessions.end(self._session)
            await self._finish(writing)

    async def _finish(self, writing: asyncio.Task[None]) -> None:
        """Say what is still to be said, but not to a client that no longer reads."""
        if not self._out.full():
            self._out.put_nowait(None)
            await asyncio.wait([writing], timeout=LAST_WORDS_SECONDS)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)

    async def _read(self, line: bytes | Overlong) -> None:
        if isinstance(line, Overlong):
            await self._refuse(None, MalformedMessage("the message is too long", INVALID_REQUEST))
            return
        try:
            frame, actor = jsonrpc.decode(line), LOCAL
            if type(frame) is not Frame:
                frame, actor = await self._auth.take(frame, actor)
            if frame.method is UNSET or frame.id is UNSET:
                self._hear(frame)
            else:
                # Begun at once, so that a cancellation in the same breath finds what it cancels.
                self._asking.start(self._ask(frame, actor), at_once=True)
        except MalformedMessage as error:
            await self._refuse(None, error)

    def _hear(self, frame: Frame) -> None:
        if self._era is Era.MODERN:
            self._withdraw(frame)
        else:
            self._desk.hear(self._session, frame)

    def _withdraw(self, frame: Frame) -> None:
        """In the modern era a cancellation is all that a client may tell."""
        if frame.method != mcp.CANCELLED or frame.params is UNSET:
            return
        named = jsonrpc.value(jsonrpc.members(frame.params).get("requestId", Raw(b"null")))
        if not isinstance(named, int | str) or isinstance(named, bool):
            return
        call = self._modern.pop(named, None)
        if call is not None:
            call.withdraw(None)

    async def _ask(self, frame: Frame, actor: Actor) -> None:
        request_id = frame.id
        assert isinstance(request_id, int | str)
        outbox = Outbox()
        outbox.actor = actor
        try:
            call = await self._begin(frame, outbox, request_id)
        except MalformedMessage as error:
            await self._refuse(request_id, error)
            return
        if call is not None:
            await self._pass_on(outbox)
        self._modern.pop(request_id, None)

    async def _begin(self, frame: Frame, outbox: Outbox, request_id: Id) -> Call | None:
        if self._era is None:
            self._era = Era.HANDSHAKE if envelope_of(frame) is None else Era.MODERN
        if self._era is Era.HANDSHAKE:
            if not self._session.greeted and frame.method not in BEFORE_THE_HANDSHAKE:
                raise MalformedMessage("begin with initialize", INVALID_REQUEST)
            return await self._desk.ask(self._session, frame, outbox)
        if frame.method == mcp.INITIALIZE:
            raise MalformedMessage("this connection speaks 2026-07-28", UNSUPPORTED_VERSION)
        refusal = refuse_envelope(frame, None)
        if refusal is not None:
            told = worded(request_id, refusal.fault, refusal.because, refusal.data)
            await self._out.put(told)
            return None
        if request_id in self._modern:
            raise MalformedMessage(f"id {request_id!r} is already in use", INVALID_REQUEST)
        headers = ((mcp.METHOD_HEADER, str(frame.method).encode()),)
        self._modern[request_id] = None
        call = await self._desk.ask_modern(frame, outbox, headers)
        if request_id not in self._modern:
            call.withdraw(None)
        else:
            self._modern[request_id] = call
        return call

    async def _stand(self) -> None:
        """What belongs to no call."""
        while True:
            outbox = self._session.standalone
            await self._pass_on(outbox)

    async def _pass_on(self, outbox: Outbox) -> None:
        while not outbox.final or outbox.frames:
            await outbox.wait()
            outbox.nudged = False
            outbox.suspended = False
            for data in outbox.take():
                await self._out.put(data)

    async def _refuse(self, request_id: Id | None, error: MalformedMessage) -> None:
        await self._out.put(worded(request_id, error.fault, str(error)))

    async def _write(self, writer: asyncio.StreamWriter) -> None:
        while (data := await self._out.get()) is not None:
            writer.write(data + b"\n")
            await writer.drain()
