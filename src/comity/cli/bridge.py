"""What one client says on its pipes, passed on to a gateway over streamable HTTP, and back.

The first request says which version of MCP the client speaks: 2026-07-28, where each request stands
alone, or an older one with a session. A client that only asked `server/discover` may still greet as
in the older versions: it did not like the answer, or did not wait for it. Nothing is answered here
but what cannot be passed on. Where another gateway runs in the place of the first, the session is
opened there again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw

from comity.adapters.upstream.http import HttpCarrier, HttpReach
from comity.adapters.upstream.pool import Pool
from comity.rules import mirrored
from comity.rules.envelopes import envelope_of, refuse_envelope
from comity.wire import jsonrpc, mcp
from comity.wire.errors import (
    HEADER_MISMATCH,
    INVALID_REQUEST,
    UNSUPPORTED_VERSION,
    UPSTREAM_DOWN,
    MalformedMessage,
    Misconfigured,
    Unavailable,
)
from comity.wire.headers import wrap
from comity.wire.jsonrpc import UNSET, Frame, Id, Limits
from comity.wire.lines import NEWLINE, RETURN, LineSplitter, Overlong
from comity.wire.mcp import Era, Stream

log = logging.getLogger(__name__)

PATH: Final = "/mcp"
READ_BYTES: Final = 256 * 1024
LAST_WORDS_SECONDS: Final = 2.0
GREETING_SECONDS: Final = 30.0
MOST_UNREAD_BYTES: Final = 8 * 1024 * 1024
MOST_PAGES: Final = 100
_TOOLS: Final = msgspec.json.Decoder(list[Raw])


class Place(NamedTuple):
    """A gateway's address, the credential for it, when it started, and where its log may be."""

    url: str
    credential: str
    started: str
    log: str = ""


type Find = Callable[[], Awaitable[Place]]
"""Where the gateway is now. Raises Unavailable or Misconfigured where there is none."""


@dataclass(eq=False, slots=True)
class Asked:
    """One request on its way; one of the bridge's own has somebody who waits for the answer."""

    frame: Frame
    own: asyncio.Future[Frame] | None = None
    is_repeated: bool = False
    stream: int = 0
    has_begun: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def id(self) -> Id:
        found = self.frame.id
        assert isinstance(found, int | str)
        return found


class Bridge:
    """One client on one pair of pipes, and its link to the gateway."""

    def __init__(self, find: Find, writer: asyncio.StreamWriter, limits: Limits) -> None:
        self._find = find
        self._limits = limits
        self._out = _Out(writer, self._pace)
        self._pool = Pool()
        self._era: Era | None = None
        self._is_era_certain = False
        self._place: Place | None = None
        self._carrier: HttpCarrier | None = None
        self._is_doubtful = False
        self._greeting: Frame | None = None
        self._is_greeted = False
        self._numbers = count(1)
        self._open: dict[int, Asked] = {}
        self._asked: dict[Id, Asked] = {}
        self._marks: dict[str, tuple[mirrored.Mark, ...]] = {}
        self._repeating: set[asyncio.Task[None]] = set()

    async def run(self, reader: asyncio.StreamReader, splitter: LineSplitter) -> None:
        """Serve the client until it closes its input, or reads no more."""
        reading = asyncio.ensure_future(self._read(reader, splitter))
        writing = asyncio.ensure_future(self._out.run())
        try:
            await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
        finally:
            reading.cancel()
            for task in self._repeating:
                task.cancel()
            await self._leave()
            await self._pool.close()
            await self._out.finish(writing)

    async def _leave(self) -> None:
        self._open.clear()
        self._asked.clear()
        carrier, self._carrier = self._carrier, None
        if carrier is not None:
            await carrier.close()

    # What the client says.

    async def _read(self, reader: asyncio.StreamReader, splitter: LineSplitter) -> None:
        while chunk := await reader.read(READ_BYTES):
            for line in splitter.feed(chunk):
                await self._take(line)

    async def _take(self, line: bytes | Overlong) -> None:
        if isinstance(line, Overlong):
            self._refuse(None, MalformedMessage("the message is too long", INVALID_REQUEST))
            return
        asked: Id | None = None
        try:
            frame = jsonrpc.decode(line, self._limits)
            if frame.method is UNSET or frame.id is UNSET:
                await self._tell(frame)
            else:
                asked = Asked(frame).id
                await self._ask(frame, asked)
        except (MalformedMessage, Unavailable) as error:
            self._refuse(asked, error)
        except Misconfigured as error:
            self._refuse(asked, Unavailable(str(error), UPSTREAM_DOWN))

    async def _tell(self, frame: Frame) -> None:
        """Pass on a notice, or the answer to a question of the gateway."""
        cancelled = self._cancelled(frame) if frame.method == mcp.CANCELLED else None
        if self._era is Era.MODERN:
            # In this version of MCP a cancellation is all that a client may tell: the end of the
            # stream says it.
            if cancelled is not None and self._carrier is not None:
                self._carrier.abandon(cancelled.stream)
        elif self._is_greeted:
            carrier = await self._connected(Era.HANDSHAKE)
            carrier.send(frame, mcp.UNKNOWN)
            await self._flush(carrier)

    def _cancelled(self, frame: Frame) -> Asked | None:
        """The request that the client wants no answer to any more; none comes from now on."""
        named = jsonrpc.value(jsonrpc.params_of(frame).get("requestId", Raw(b"null")))
        if not isinstance(named, int | str) or isinstance(named, bool):
            return None
        return self._settle(self._asked.get(named))

    async def _ask(self, frame: Frame, id: Id) -> None:
        if id in self._asked:
            raise MalformedMessage(f"id {id!r} is already in use", INVALID_REQUEST)
        era = await self._era_of(frame)
        if self._is_answered_here(frame, id, era):
            return
        carrier = await self._connected(era)
        asked = self._send(carrier, Asked(frame))
        if frame.method == mcp.INITIALIZE:
            # What follows belongs to the session that the answer names.
            with suppress(TimeoutError):
                async with asyncio.timeout(GREETING_SECONDS):
                    await asked.over.wait()
        else:
            await self._flush(carrier)

    async def _era_of(self, frame: Frame) -> Era:
        """Which versions the client speaks, by its requests up to this one."""
        if self._era is Era.MODERN and not self._is_era_certain and frame.method == mcp.INITIALIZE:
            await self._leave()
            self._era = None
        if self._era is None:
            self._era = Era.HANDSHAKE if envelope_of(frame) is None else Era.MODERN
        self._is_era_certain = self._is_era_certain or frame.method != mcp.DISCOVER
        return self._era

    def _is_answered_here(self, frame: Frame, id: Id, era: Era) -> bool:
        """Whether a request cannot be passed on; then it was answered."""
        if era is Era.HANDSHAKE:
            if self._is_greeted or frame.method == mcp.INITIALIZE:
                return False
            if frame.method != mcp.PING:
                raise MalformedMessage("begin with initialize", INVALID_REQUEST)
            self._out.put(jsonrpc.encode(jsonrpc.result(id, {})))
            return True
        if frame.method == mcp.INITIALIZE:
            raise MalformedMessage("this connection speaks 2026-07-28", UNSUPPORTED_VERSION)
        refusal = refuse_envelope(frame, None)
        if refusal is not None:
            told = jsonrpc.failure(id, refusal.fault, refusal.because, refusal.data or {})
            self._out.put(jsonrpc.encode(told))
        return refusal is not None

    # The way to the gateway.

    async def _connected(self, era: Era) -> HttpCarrier:
        """The link to the gateway; another one where another gateway runs by now. Raises."""
        if self._carrier is not None and not self._is_doubtful:
            return self._carrier
        place = await self._find()
        self._is_doubtful = False
        if self._carrier is None or place != self._place:
            await self._leave()
            headers = {"authorization": f"Bearer {place.credential}"} if place.credential else {}
            reach = HttpReach(self._pool, f"{place.url}{PATH}", headers, self._limits)
            carrier = HttpCarrier(reach, self._pool, era, self._limits)
            await carrier.open(self)
            self._place, self._carrier = place, carrier
            if self._greeting is not None:
                await self._greet_again(carrier, self._greeting)
        return self._carrier

    async def _greet_again(self, carrier: HttpCarrier, greeting: Frame) -> None:
        answer = await self._own(carrier, greeting)
        if answer.result is UNSET:
            raise Unavailable("the gateway that runs now does not open a session for this client")
        carrier.send(jsonrpc.notification(mcp.INITIALIZED), mcp.UNKNOWN)
        await self._flush(carrier)

    async def _own(self, carrier: HttpCarrier, frame: Frame) -> Frame:
        """What the gateway answers to a request of the bridge's own. Raises Unavailable."""
        answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._send(carrier, Asked(frame, answer))
        async with asyncio.timeout(GREETING_SECONDS):
            return await answer

    def _send(self, carrier: HttpCarrier, asked: Asked) -> Asked:
        asked.stream = next(self._numbers)
        self._open[asked.stream] = asked
        if asked.own is None:
            self._asked[asked.id] = asked
        try:
            carrier.send(asked.frame, asked.stream, tuple(self._headers(asked.frame)))
        except Unavailable:
            self._settle(asked)
            raise
        if self._out.is_full:
            carrier.pause(asked.stream)
        return asked

    def _headers(self, frame: Frame) -> Iterator[tuple[bytes, bytes]]:
        """What a request of the modern era repeats of its body."""
        if self._era is not Era.MODERN:
            return
        method, params = str(frame.method), jsonrpc.params_of(frame)
        yield mcp.METHOD_HEADER, method.encode()
        named = jsonrpc.text(params.get(mcp.NAMED_BY.get(method, "")))
        if named is not None:
            yield mcp.NAME_HEADER, wrap(named)
        marks = self._marks.get(named or "", ()) if method == mcp.CALL_TOOL else ()
        if marks and "arguments" in params:
            yield from mirrored.headers_for(marks, jsonrpc.value(params["arguments"]))

    async def _flush(self, carrier: HttpCarrier) -> None:
        with suppress(TimeoutError):
            await carrier.flushed()

    # What the gateway says.

    def heard(self, data: bytes, stream: Stream, status: int) -> bool:
        asked = self._open.get(stream) if stream else None
        try:
            frame = jsonrpc.decode(data, self._limits)
        except MalformedMessage as error:
            log.warning("the gateway sent what is no message: %s", error)
            return True
        if frame.method is not UNSET:
            if asked is not None or not stream:
                self._out.put(data)
        elif asked is not None:
            self._answered(asked, frame, data)
        return True

    def _answered(self, asked: Asked, frame: Frame, data: bytes) -> None:
        self._settle(asked)
        if asked.frame.method == mcp.INITIALIZE and frame.result is not UNSET:
            self._begin(asked.frame, frame)
        elif asked.frame.method == mcp.LIST_TOOLS and frame.result is not UNSET:
            self._learn(frame.result)
        if asked.own is not None:
            if not asked.own.done():
                asked.own.set_result(frame)
        elif self._lacks_headers(asked, frame):
            task = asyncio.ensure_future(self._repeat(asked, data))
            self._repeating.add(task)
            task.add_done_callback(self._repeating.discard)
        else:
            same = frame.id == asked.id and type(frame.id) is type(asked.id)
            self._out.put(data if same else jsonrpc.encode(jsonrpc.with_id(frame, asked.id)))

    def _begin(self, greeting: Frame, answer: Frame) -> None:
        """A session is open."""
        self._greeting, self._is_greeted = greeting, True
        assert isinstance(answer.result, Raw)
        version = jsonrpc.text(jsonrpc.members(answer.result).get("protocolVersion"))
        if self._carrier is not None:
            self._carrier.speaks(version or mcp.LATEST_HANDSHAKE)
            self._carrier.listen()

    def stream_ended(self, stream: Stream, because: Unavailable | None) -> None:
        asked = self._settle(self._open.get(stream) if stream else None)
        if asked is None:
            return
        said = "the gateway went away before it had answered; whether it did this is unknown"
        if because is not None and not asked.has_begun:
            said = str(because)
        if self._place is not None and self._place.log:
            said += f" (the log of a gateway that was started for clients is {self._place.log})"
        error = Unavailable(said, UPSTREAM_DOWN if because is None else because.fault)
        if asked.own is None:
            self._refuse(asked.id, error)
        elif not asked.own.done():
            asked.own.set_exception(error)

    def awaits(self, stream: Stream) -> bool:
        return stream in self._open

    def faltered(self, because: str, in_a_call: bool) -> None:
        """The gateway may have ended: before the next message it is looked for again."""
        self._is_doubtful = True

    def stream_opened(self, stream: Stream) -> None:
        if stream in self._open:
            self._open[stream].has_begun = True

    def stream_suspended(self, stream: Stream) -> None:
        """The rest comes by itself."""

    def renewed(self) -> None:
        """The gateway had forgotten the session; what it knew of it is lost."""

    def closed(self, because: str) -> None:
        """A link over HTTP has no end of its own."""

    def _settle(self, asked: Asked | None) -> Asked | None:
        if asked is not None:
            asked.over.set()
            self._open.pop(asked.stream, None)
            if self._asked.get(asked.id) is asked:
                del self._asked[asked.id]
        return asked

    def _refuse(self, id: Id | None, error: MalformedMessage | Unavailable) -> None:
        self._out.put(jsonrpc.encode(jsonrpc.failure(id, error.fault, str(error))))

    def _pace(self, is_full: bool) -> None:
        """The client reads slowly, or has caught up: so does the bridge."""
        carrier = self._carrier
        if carrier is not None:
            for stream in self._open:
                (carrier.pause if is_full else carrier.resume)(stream)

    # Arguments that HTTP wants in headers, and pipes do not.

    def _learn(self, result: Raw) -> None:
        """Remember which arguments of these tools have to be repeated in headers."""
        if mirrored.MARK.encode() not in bytes(result):
            return
        with suppress(MalformedMessage, msgspec.DecodeError):
            for definition in _TOOLS.decode(jsonrpc.members(result).get("tools", b"[]")):
                name = jsonrpc.text(jsonrpc.members(definition).get("name"))
                if name is not None:
                    self._marks[name] = mirrored.marks_in(bytes(definition))

    def _lacks_headers(self, asked: Asked, answer: Frame) -> bool:
        """Whether a call was refused, and not made, for want of headers."""
        if self._era is not Era.MODERN or answer.error is UNSET or asked.is_repeated:
            return False
        if asked.frame.method != mcp.CALL_TOOL:
            return False
        assert isinstance(answer.error, Raw)
        code = jsonrpc.value(jsonrpc.members(answer.error).get("code", Raw(b"0")))
        return code == HEADER_MISMATCH.code

    async def _repeat(self, asked: Asked, refusal: bytes) -> None:
        """Look up the tools, and make the call again with the headers that it needs."""
        carrier = self._carrier
        again = Asked(asked.frame, is_repeated=True)
        self._asked[asked.id] = again
        try:
            if carrier is None or not await self._look_up(carrier, asked.frame):
                self._settle(again)
                self._out.put(refusal)
            elif self._asked.get(asked.id) is again:
                self._send(carrier, again)
        except (Unavailable, TimeoutError) as error:
            self._settle(again)
            self._refuse(asked.id, Unavailable(str(error)))

    async def _look_up(self, carrier: HttpCarrier, frame: Frame) -> bool:
        """Whether a tool of this name is there, and is known now."""
        params = jsonrpc.params_of(frame)
        wanted, cursor = jsonrpc.text(params.get("name")) or "", {}
        for page in range(MOST_PAGES):
            said = {"_meta": params["_meta"], **cursor}
            listed = await self._own(carrier, jsonrpc.request(page, mcp.LIST_TOOLS, said))
            if wanted in self._marks or listed.result is UNSET:
                break
            assert isinstance(listed.result, Raw)
            following = jsonrpc.members(listed.result).get("nextCursor")
            if following is None:
                break
            cursor = {"cursor": following}
        return wanted in self._marks


class _Out:
    """What waits to be written to the client, in order."""

    def __init__(self, writer: asyncio.StreamWriter, pace: Callable[[bool], None]) -> None:
        self._writer = writer
        self._pace = pace
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._unread = 0
        self.is_full = False

    def put(self, data: bytes) -> None:
        """One message, on one line: a line end in it is but white space between its words."""
        if NEWLINE in data or RETURN in data:
            data = data.replace(b"\n", b" ").replace(b"\r", b" ")
        self._unread += len(data)
        self._waiting.put_nowait(data)
        if self._unread > MOST_UNREAD_BYTES and not self.is_full:
            self.is_full = True
            self._pace(True)

    async def run(self) -> None:
        """Write until told to end, or until nobody reads any more."""
        with suppress(ConnectionError):
            while (data := await self._waiting.get()) is not None:
                self._writer.write(data + b"\n")
                await self._writer.drain()
                self._unread -= len(data)
                if self.is_full and self._unread < MOST_UNREAD_BYTES // 2:
                    self.is_full = False
                    self._pace(False)

    async def finish(self, writing: "asyncio.Task[None]") -> None:
        """Say what is still to be said, but not to a client that no longer reads."""
        self._waiting.put_nowait(None)
        await asyncio.wait((writing,), timeout=LAST_WORDS_SECONDS)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
