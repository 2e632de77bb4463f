"""Streams of requests and answers between nodes, with flow control."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import timedelta
from enum import IntEnum
from functools import partial
from typing import Final, Protocol, Self, cast

import msgspec

from comity import errors
from comity.cluster.bus import Bus, BusMessage, BusSubscription
from comity.cluster.nodes import ClusterMembers
from comity.errors import (
    CUT_OFF,
    EXHAUSTED,
    METHOD_NOT_FOUND,
    TIMEOUT,
    UPSTREAM_FAILED,
    Fault,
    MalformedMessage,
    Unavailable,
)
from comity.mcp.actors import Actor

PIECE_BYTES: Final = 256 * 1024
"""A quarter of the usual NATS limit. Smaller pieces give other streams their turn sooner."""

_MAX_WORDS: Final = 2000
_FAULTS: Final = {
    fault.error_type: fault for fault in vars(errors).values() if isinstance(fault, Fault)
}


class StreamAction(IntEnum):
    """The action of a frame."""

    OPEN = 0
    """Opens a stream: the request, and as much of its body as fits."""
    SAY = 1
    """A piece of the body or of the answer."""
    END = 2
    """The answer is complete."""
    FAIL = 3
    """There is no answer, or no more of it. `data` has the reason."""
    CANCEL = 4
    """The node that opened the stream wants no more of it."""
    CREDIT = 5
    """How many bytes of the answer were read so far, which lets the other node send more."""
    SUMS = 6
    """How many frames were sent on each open stream. A node that counted otherwise lost some."""


class StreamFrame(msgspec.Struct, array_like=True, frozen=True):
    """One frame between two nodes."""

    act: StreamAction
    sender: str
    stream: int = 0
    # Whether the sender of this frame opened the stream.
    is_own: bool = False
    number: int = 0
    # Whether more frames belong to the same message.
    has_more: bool = False
    data: bytes = b""


class StreamOpen(msgspec.Struct, array_like=True, frozen=True):
    """The request of a stream: its kind, its head and its time limit."""

    what: str
    head: bytes
    seconds: float | None
    body: bytes


class StreamFailure(msgspec.Struct, array_like=True, frozen=True):
    """The reason why there is no answer."""

    error_type: str
    because: str
    retry_after: float | None = None


class StreamCount(msgspec.Struct, array_like=True, frozen=True):
    """How many frames the sender sent on one stream."""

    stream: int
    is_own: bool
    sent: int


class RemoteCallHeader(msgspec.Struct, array_like=True, frozen=True):
    """A call to a server that another node runs. The node that received it has authorized it."""

    server: str
    headers: tuple[tuple[bytes, bytes], ...]
    party: str
    kind: str
    # By these the node of the server chooses the account of the call, and who may answer what the
    # server asks during it.
    credential: str
    groups: tuple[str, ...]
    permissions: tuple[tuple[str, str], ...] | None
    excluded: tuple[str, ...]


class ForwardedRequest(msgspec.Struct, array_like=True, frozen=True):
    """A client's request that reached the wrong node, without its body and its credentials."""

    method: str
    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    client: tuple[str, int] | None
    # The sender, as authenticated by the node that received the request.
    actor: Actor
    scheme: str = "http"


class ForwardedResponse(msgspec.Struct, array_like=True, frozen=True):
    """The head of the answer to a forwarded request. The body follows in pieces."""

    status: int
    headers: list[tuple[bytes, bytes]]


def _plain(value: object) -> object:
    """Return the claims of an actor, which are read-only, as plain types for encoding."""
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, object]", value))
    raise NotImplementedError


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_piece = msgspec.msgpack.Decoder(StreamFrame)
_opening = msgspec.msgpack.Decoder(StreamOpen)
_failure = msgspec.msgpack.Decoder(StreamFailure)
_sums = msgspec.msgpack.Decoder(list[StreamCount])
_relay_head = msgspec.msgpack.Decoder(RemoteCallHeader)
_request_head = msgspec.msgpack.Decoder(ForwardedRequest)
_response_head = msgspec.msgpack.Decoder(ForwardedResponse)


def encode_message(
    said: StreamFrame
    | StreamOpen
    | list[StreamCount]
    | RemoteCallHeader
    | ForwardedRequest
    | ForwardedResponse,
) -> bytes:
    return _encoder.encode(said)


def decode_frame(data: bytes) -> StreamFrame:
    return _read(_piece, data)


def decode_opening(data: bytes) -> StreamOpen:
    return _read(_opening, data)


def decode_counts(data: bytes) -> list[StreamCount]:
    return _read(_sums, data)


def relay_head(data: bytes) -> RemoteCallHeader:
    return _read(_relay_head, data)


def request_head(data: bytes) -> ForwardedRequest:
    return _read(_request_head, data)


def response_head(data: bytes) -> ForwardedResponse:
    return _read(_response_head, data)


def encode_failure(error: Unavailable | MalformedMessage) -> bytes:
    after = error.retry_after if isinstance(error, Unavailable) else None
    seconds = None if after is None else after.total_seconds()
    return _encoder.encode(StreamFailure(error.fault.error_type, str(error)[:_MAX_WORDS], seconds))


def decode_failure(data: bytes) -> Unavailable:
    """Return the failure that the other node reported. Unknown kinds become plain ones."""
    told = _read(_failure, data)
    after = None if told.retry_after is None else timedelta(seconds=told.retry_after)
    return Unavailable(told.because, _FAULTS.get(told.error_type, UPSTREAM_FAILED), after)


def split_message(data: bytes) -> Iterator[tuple[bytes, bool]]:
    """Yield the pieces of a message, and whether more follow. An empty message has one piece."""
    if len(data) <= PIECE_BYTES:
        yield data, False
        return
    whole = memoryview(data)
    for start in range(0, len(data), PIECE_BYTES):
        yield bytes(whole[start : start + PIECE_BYTES]), start + PIECE_BYTES < len(data)


def _read[T](decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, OverflowError) as error:
        raise MalformedMessage(f"another node sent something else: {error}") from None


WINDOW: Final = 1024 * 1024
"""How many bytes of an answer may be unread by the other node."""

type Say = Callable[[StreamAction, int], None]
"""Sends an action with a number to the other end of one stream."""


class StreamCounters:
    """Counts the frames of a stream in both directions, to detect a loss."""

    __slots__ = ("heard", "peer", "said")

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.said = 0
        self.heard = 0

    def takes(self, chunk: StreamFrame) -> bool:
        """Whether this is the next frame. If not, a frame was lost."""
        if chunk.number != self.heard:
            return False
        self.heard += 1
        return True

    def next(self) -> int:
        self.said += 1
        return self.said - 1


class ClusterStreamReader(StreamCounters):
    """The reading end of a stream. It yields whole messages, in order."""

    __slots__ = (
        *("_credited", "_error", "_final", "_forget", "_most", "_queue", "_say", "_taken"),
        *("_until", "_waiter"),
    )

    def __init__(
        self,
        peer: str,
        say: Say,
        forget: Callable[[], object],
        most_bytes: int,
        until: float | None,
    ) -> None:
        super().__init__(peer)
        self._say = say
        self._forget = forget
        self._most = most_bytes
        self._until = until
        self._queue: deque[tuple[bytes, bool]] = deque()
        self._taken = 0
        self._credited = 0
        self._final = False
        self._error: Unavailable | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, data: bytes, has_more: bool) -> None:
        if not self._final:
            self._queue.append((data, has_more))
            self._wake()

    def end(self, error: Unavailable | None = None) -> None:
        """End the stream. Messages that arrived before are still read."""
        if not self._final:
            self._final, self._error = True, error
            self._forget()
            self._wake()

    def close(self, error: Unavailable | None = None) -> None:
        """Stop reading, and cancel the other end unless it has already ended."""
        if not self._final:
            self._say(StreamAction.CANCEL, 0)
            self.end(error or Unavailable("its reader is gone"))
        if error is None:
            self._queue.clear()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Return the next message. Raise Unavailable if the stream ends early or times out."""
        whole: list[bytes] = []
        size, has_more = 0, True
        while has_more:
            while not self._queue:
                if self._final:
                    raise self._error or self._premature(whole)
                await self._wait()
            data, has_more = self._queue.popleft()
            size += len(data)
            self._take(len(data))
            if size > self._most:
                self.close()
                raise Unavailable("the other node sent more than a message may hold", EXHAUSTED)
            whole.append(data)
        return whole[0] if len(whole) == 1 else b"".join(whole)

    def _premature(self, whole: list[bytes]) -> Exception:
        if whole:
            return Unavailable("the other node stopped during a message", CUT_OFF)
        return StopAsyncIteration()

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        try:
            async with asyncio.timeout_at(self._until):
                await self._waiter
        except TimeoutError:
            self.close()
            raise Unavailable("the other node did not answer in time", TIMEOUT) from None
        finally:
            self._waiter = None

    def _take(self, size: int) -> None:
        self._taken += size
        if self._taken - self._credited >= WINDOW // 4 and not self._final:
            self._credited = self._taken
            self._say(StreamAction.CREDIT, self._taken)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class ClusterStreamWriter(StreamCounters):
    """The answering end of a stream. It waits for a slow reader."""

    __slots__ = ("_credit", "_is_unread", "_sent", "_waiter", "body", "size", "work")

    def __init__(self, peer: str) -> None:
        super().__init__(peer)
        # The request until it is complete, then the task that answers it.
        self.body: list[bytes] = []
        self.size = 0
        self.work: asyncio.Task[None] | None = None
        self._sent = 0
        self._credit = 0
        self._is_unread = False
        self._waiter: asyncio.Future[None] | None = None

    def credit(self, taken: int) -> None:
        self._credit = max(self._credit, min(taken, self._sent))
        self._wake()

    def stop(self) -> None:
        """Stop the answer, because the reader cancelled or is gone."""
        self._is_unread = True
        self._wake()
        if self.work is not None:
            self.work.cancel()

    async def room_for(self, size: int) -> None:
        """Wait for free space in the window. A larger piece goes alone. Raises Unavailable."""
        while self._sent > self._credit and self._sent - self._credit + size > WINDOW:
            if self._is_unread:
                break
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._is_unread:
            raise Unavailable("its reader is gone")
        self._sent += size

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


log = logging.getLogger(__name__)

MOST_STREAMS: Final = 20_000
"""How many streams a node opens, and how many it answers, at the same time."""
SOON: Final = timedelta(seconds=1)
SUMS_AT_ONCE: Final = 5_000
"""How many streams one frame of counts describes."""


class StreamReplyWriter(Protocol):
    """Writes the answer to a request of another node."""

    @property
    def peer(self) -> str: ...

    async def send(self, data: bytes) -> None:
        """Send one message of any length. Wait while the reader is slow."""
        ...


type Answer = Callable[[bytes, bytes, StreamReplyWriter], Awaitable[None]]
"""Answers one kind of request. It gets the head, the body and the writer of the answer."""


class ClusterStreams:
    """All streams between this node and the others."""

    def __init__(self, bus: Bus, peers: ClusterMembers, most_bytes: int) -> None:
        self._bus = bus
        self._peers = peers
        self._most_bytes = most_bytes
        self._answers: dict[str, Answer] = {}
        self._opened: dict[int, ClusterStreamReader] = {}
        self._served: dict[tuple[str, int], ClusterStreamWriter] = {}
        self._next = 0
        self._interest: BusSubscription | None = None
        peers.watch(self._peer_changed)

    def __len__(self) -> int:
        return len(self._opened) + len(self._served)

    def answer(self, what: str, how: Answer) -> None:
        """Register the function that answers requests of one kind."""
        self._answers[what] = how

    async def start(self) -> None:
        self._bus.watch(self._bus_changed)
        mine = self._subject(self._peers.me.id)
        self._interest = await self._bus.subscribe(mine, self._hear)

    async def close(self) -> None:
        self.let_go("the gateway is about to end")
        if self._interest is not None:
            await self._interest.close()

    async def open(
        self, node: str, what: str, head: bytes, body: bytes = b"", timeout: timedelta | None = None
    ) -> ClusterStreamReader:
        """Send a request to another node. Return the stream of answers. Raises Unavailable."""
        self.require(node)
        self._next += 1
        number, seconds = self._next, None if timeout is None else timeout.total_seconds()
        until = None if seconds is None else asyncio.get_running_loop().time() + seconds
        forget = partial(self._opened.pop, number, None)
        say = partial(self._say, node, number, True)
        stream = ClusterStreamReader(node, say, forget, self._most_bytes, until)
        self._opened[number] = stream
        free = max(0, PIECE_BYTES - len(head))
        first = encode_message(StreamOpen(what, head, seconds, body[:free]))
        try:
            await self._send(stream, number, StreamAction.OPEN, first, len(body) > free)
            for data, has_more in split_message(body[free:]) if len(body) > free else ():
                await self._send(stream, number, StreamAction.SAY, data, has_more)
        except BaseException:
            stream.close()
            raise
        return stream

    def require(self, node: str) -> None:
        """Raise Unavailable unless that node can be reached now."""
        self._peers.require()
        if not self._peers.is_alive(node):
            raise Unavailable(f"node {node} is gone", CUT_OFF, SOON)
        if len(self._opened) >= MOST_STREAMS:
            raise Unavailable("too much is asked of other nodes at once", EXHAUSTED, SOON)

    def look(self) -> None:
        """Send every peer the number of frames on each stream, so that it can detect a loss."""
        if self._peers.cut_off:
            self.let_go(f"this node cannot reach the other nodes: {self._peers.cut_off}")
        by_peer: dict[str, list[StreamCount]] = {}
        for number, stream in self._opened.items():
            by_peer.setdefault(stream.peer, []).append(StreamCount(number, True, stream.said))
        for (peer, number), stream in self._served.items():
            by_peer.setdefault(peer, []).append(StreamCount(number, False, stream.said))
        for peer, sums in by_peer.items():
            for start in range(0, len(sums), SUMS_AT_ONCE):
                told = encode_message(sums[start : start + SUMS_AT_ONCE])
                self._say(peer, 0, True, StreamAction.SUMS, 0, told)

    def let_go(self, reason: str) -> None:
        """End all streams, because their outcome can no longer be known."""
        for stream in list(self._opened.values()):
            stream.end(Unavailable(reason, CUT_OFF, SOON))
        for key in list(self._served):
            self._drop(key)

    def _bus_changed(self, is_there: bool) -> None:
        if is_there:
            self.look()

    def _peer_changed(self, node: str, is_alive: bool) -> None:
        if is_alive:
            return
        for stream in [each for each in self._opened.values() if each.peer == node]:
            stream.end(Unavailable(f"node {node} is gone", CUT_OFF, SOON))
        for key in [key for key in self._served if key[0] == node]:
            self._drop(key)

    def _subject(self, node: str) -> str:
        return f"{self._peers.prefix}.to.{node}"

    def _publish(self, peer: str, chunk: StreamFrame) -> None:
        self._bus.publish(self._subject(peer), encode_message(chunk))

    def _say(
        self,
        peer: str,
        number: int,
        own: bool,
        action: StreamAction,
        count: int = 0,
        data: bytes = b"",
    ) -> None:
        """Send a frame that may be lost. The counts, or the death of a node, repair a loss."""
        try:
            self._publish(
                peer, StreamFrame(action, self._peers.me.id, number, own, count, False, data)
            )
        except (Unavailable, MalformedMessage) as error:
            log.debug("Node %s could not be notified: %s", peer, error)

    async def _send(
        self,
        stream: ClusterStreamReader | ClusterStreamWriter,
        number: int,
        action: StreamAction,
        data: bytes,
        more: bool,
    ) -> None:
        """Send a frame that must not be lost. Raises Unavailable."""
        await self._bus.wait_until_drained()
        own, me = isinstance(stream, ClusterStreamReader), self._peers.me.id
        self._publish(stream.peer, StreamFrame(action, me, number, own, stream.next(), more, data))

    def _hear(self, message: BusMessage) -> None:
        try:
            piece = decode_frame(message.data)
            if piece.act is StreamAction.SUMS:
                self._compare(piece.sender, decode_counts(piece.data))
            elif piece.is_own:
                self._hear_asker(piece)
            else:
                self._hear_answerer(piece)
        except MalformedMessage as error:
            log.warning("%s", error)

    def _hear_answerer(self, chunk: StreamFrame) -> None:
        stream = self._opened.get(chunk.stream)
        if stream is None or stream.peer != chunk.sender:
            return
        if chunk.act is StreamAction.FAIL:
            stream.end(decode_failure(chunk.data))
        elif not stream.takes(chunk):
            stream.close(_lost())
        elif chunk.act is StreamAction.SAY:
            stream.put(chunk.data, chunk.has_more)
        else:
            stream.end()

    def _hear_asker(self, chunk: StreamFrame) -> None:
        key = (chunk.sender, chunk.stream)
        served = self._served.get(key)
        if chunk.act is StreamAction.OPEN:
            if served is None and chunk.number == 0:
                self._begin(key, chunk)
        elif served is None:
            return
        elif chunk.act is StreamAction.CREDIT:
            served.credit(chunk.number)
        elif chunk.act is StreamAction.CANCEL:
            self._drop(key)
        elif not served.takes(chunk) or served.work is not None:
            self._refuse(key, _lost())
        else:
            self._gather(key, served, chunk.data, chunk.has_more)

    def _begin(self, key: tuple[str, int], chunk: StreamFrame) -> None:
        served = self._served[key] = ClusterStreamWriter(key[0])
        served.takes(chunk)
        if len(self._served) > MOST_STREAMS:
            self._refuse(key, Unavailable("this node has too much to answer", EXHAUSTED, SOON))
            return
        self._gather(key, served, chunk.data, chunk.has_more)

    def _gather(
        self, key: tuple[str, int], writer: ClusterStreamWriter, data: bytes, has_more: bool
    ) -> None:
        writer.body.append(data)
        writer.size += len(data)
        if writer.size > self._most_bytes + PIECE_BYTES:
            self._refuse(key, Unavailable("more is asked than a message may hold", EXHAUSTED))
        elif not has_more:
            writer.work = asyncio.ensure_future(self._work(key, writer))

    async def _work(self, key: tuple[str, int], writer: ClusterStreamWriter) -> None:
        try:
            asked = decode_opening(writer.body[0])
            body = b"".join([asked.body, *writer.body[1:]])
            writer.body.clear()
            how = self._answers.get(asked.what, _unknown)
            send = partial(self._send, writer, key[1], StreamAction.SAY)
            async with asyncio.timeout(asked.seconds):
                await how(asked.head, body, _ClusterReplyWriter(writer, send))
            await self._send(writer, key[1], StreamAction.END, b"", False)
        except (Unavailable, MalformedMessage) as error:
            self._refuse(key, error)
        except TimeoutError:
            self._refuse(key, Unavailable("the time for it is over", TIMEOUT))
        except Exception:
            log.exception("Answering another node failed")
            self._refuse(key, Unavailable("the other node failed; see its log"))
        finally:
            self._served.pop(key, None)

    def _refuse(self, key: tuple[str, int], error: Unavailable | MalformedMessage) -> None:
        """Report a failure and drop the stream. If the report is lost, the counts repeat it."""
        self._say(*key, False, StreamAction.FAIL, 0, encode_failure(error))
        self._drop(key)

    def _drop(self, key: tuple[str, int]) -> None:
        served = self._served.pop(key, None)
        if served is not None and served.work is not asyncio.current_task():
            served.stop()

    def _compare(self, sender: str, sums: list[StreamCount]) -> None:
        """Compare the counts of both nodes, and fail streams that lost frames or are unknown."""
        for told in sums:
            if told.is_own:
                served = self._served.get((sender, told.stream))
                if served is None or served.heard != told.sent:
                    self._refuse((sender, told.stream), _lost())
                continue
            stream = self._opened.get(told.stream)
            if stream is None or stream.peer != sender:
                self._say(sender, told.stream, True, StreamAction.CANCEL)
            elif stream.heard != told.sent:
                stream.close(_lost())


class _ClusterReplyWriter:
    """Sends an answer to the node that asked."""

    def __init__(
        self, writer: ClusterStreamWriter, send: Callable[[bytes, bool], Awaitable[None]]
    ) -> None:
        self._writer = writer
        self._send = send

    @property
    def peer(self) -> str:
        return self._writer.peer

    async def send(self, data: bytes) -> None:
        for piece, has_more in split_message(data):
            await self._writer.room_for(len(piece))
            await self._send(piece, has_more)


async def _unknown(head: bytes, body: bytes, reply: StreamReplyWriter) -> None:
    raise MalformedMessage("this node does not support the request", METHOD_NOT_FOUND)


def _lost() -> Unavailable:
    return Unavailable("a message between two nodes was lost", CUT_OFF, SOON)
