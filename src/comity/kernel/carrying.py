"""Requests from one node to another over the bus, with a stream of answers back.

Rule 1: what is asked is done at most once; whoever lost a piece of it is told, and nothing is sent
        again.
Rule 2: a stream ends at both ends: with its answer, when its reader goes, when a node dies, and
        when the bus has lost something, which the sums of both ends bring to light.
Rule 3: a node asks only others, and answers only whom it hears on the bus.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Final, Protocol

from comity.kernel.carried import Incoming, Outgoing
from comity.kernel.peers import Peers
from comity.ports.clustering import Bus, Heard, Interest
from comity.wire import carried
from comity.wire.carried import PIECE_BYTES, Act, Opening, Piece, Sum
from comity.wire.errors import (
    CUT_OFF,
    EXHAUSTED,
    METHOD_NOT_FOUND,
    TIMEOUT,
    MalformedMessage,
    Unavailable,
)

log = logging.getLogger(__name__)

MOST_STREAMS: Final = 20_000
SOON: Final = timedelta(seconds=1)
SUMS_AT_ONCE: Final = 5_000


class Reply(Protocol):
    """Where the answer to another node's request goes."""

    @property
    def peer(self) -> str: ...

    async def send(self, data: bytes) -> None:
        """One message, of any length; waits where the reader is slow."""
        ...


type Answer = Callable[[bytes, bytes, Reply], Awaitable[None]]
"""Answers one kind of request, of which it is given the head and the body."""


class Carrying:
    """Every stream between this node and the others."""

    def __init__(self, bus: Bus, peers: Peers, most_bytes: int) -> None:
        self._bus = bus
        self._peers = peers
        self._most_bytes = most_bytes
        self._answers: dict[str, Answer] = {}
        self._opened: dict[int, Incoming] = {}
        self._served: dict[tuple[str, int], Outgoing] = {}
        self._next = 0
        self._interest: Interest | None = None
        peers.watch(self._peer_changed)

    def __len__(self) -> int:
        return len(self._opened) + len(self._served)

    def answer(self, what: str, how: Answer) -> None:
        """Have requests of one kind answered from now on."""
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
        self, node: str, what: str, head: bytes, body: bytes = b"", within: timedelta | None = None
    ) -> Incoming:
        """Ask another node; gives its answers as they come. Raises Unavailable."""
        self.require(node)
        self._next += 1
        number, seconds = self._next, None if within is None else within.total_seconds()
        until = None if seconds is None else asyncio.get_running_loop().time() + seconds
        forget = partial(self._opened.pop, number, None)
        say = partial(self._say, node, number, True)
        stream = Incoming(node, say, forget, self._most_bytes, until)
        self._opened[number] = stream
        room = max(0, PIECE_BYTES - len(head))
        first = carried.encode(Opening(what, head, seconds, body[:room]))
        try:
            await self._send(stream, number, Act.OPEN, first, len(body) > room)
            for data, has_more in carried.split(body[room:]) if len(body) > room else ():
                await self._send(stream, number, Act.SAY, data, has_more)
        except BaseException:
            stream.close()
            raise
        return stream

    def require(self, node: str) -> None:
        """Raise Unavailable unless that node can be asked now."""
        self._peers.require()
        if not self._peers.is_alive(node):
            raise Unavailable(f"node {node} is gone", CUT_OFF, SOON)
        if len(self._opened) >= MOST_STREAMS:
            raise Unavailable("too much is asked of other nodes at once", EXHAUSTED, SOON)

    def look(self) -> None:
        """Tell every peer how much was said to it on each stream; whoever lost some finds out."""
        if self._peers.cut_off:
            self.let_go(f"this node is cut off from the others: {self._peers.cut_off}")
        by_peer: dict[str, list[Sum]] = {}
        for number, stream in self._opened.items():
            by_peer.setdefault(stream.peer, []).append(Sum(number, True, stream.said))
        for (peer, number), stream in self._served.items():
            by_peer.setdefault(peer, []).append(Sum(number, False, stream.said))
        for peer, sums in by_peer.items():
            for start in range(0, len(sums), SUMS_AT_ONCE):
                told = carried.encode(sums[start : start + SUMS_AT_ONCE])
                self._say(peer, 0, True, Act.SUMS, 0, told)

    def let_go(self, because: str) -> None:
        """End everything: nobody can know any more what becomes of it."""
        for stream in list(self._opened.values()):
            stream.end(Unavailable(because, CUT_OFF, SOON))
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

    def _publish(self, peer: str, piece: Piece) -> None:
        self._bus.publish(self._subject(peer), carried.encode(piece))

    def _say(
        self, peer: str, number: int, own: bool, act: Act, count: int = 0, data: bytes = b""
    ) -> None:
        """Send what may be lost: the sums of both ends, or the death of one, heal that."""
        try:
            self._publish(peer, Piece(act, self._peers.me.id, number, own, count, False, data))
        except (Unavailable, MalformedMessage) as error:
            log.debug("node %s was not told: %s", peer, error)

    async def _send(
        self, stream: Incoming | Outgoing, number: int, act: Act, data: bytes, more: bool
    ) -> None:
        """Send what must not be lost. Raises Unavailable."""
        await self._bus.drained()
        own, me = isinstance(stream, Incoming), self._peers.me.id
        self._publish(stream.peer, Piece(act, me, number, own, stream.next(), more, data))

    def _hear(self, heard: Heard) -> None:
        try:
            piece = carried.decode(heard.data)
            if piece.act is Act.SUMS:
                self._compare(piece.sender, carried.sums(piece.data))
            elif piece.is_own:
                self._hear_asker(piece)
            else:
                self._hear_answerer(piece)
        except MalformedMessage as error:
            log.warning("%s", error)

    def _hear_answerer(self, piece: Piece) -> None:
        stream = self._opened.get(piece.stream)
        if stream is None or stream.peer != piece.sender:
            return
        if piece.act is Act.FAIL:
            stream.end(carried.unavailable(piece.data))
        elif not stream.takes(piece):
            stream.close(_lost())
        elif piece.act is Act.SAY:
            stream.put(piece.data, piece.has_more)
        else:
            stream.end()

    def _hear_asker(self, piece: Piece) -> None:
        key = (piece.sender, piece.stream)
        served = self._served.get(key)
        if piece.act is Act.OPEN:
            if served is None and piece.number == 0:
                self._begin(key, piece)
        elif served is None:
            return
        elif piece.act is Act.CREDIT:
            served.credit(piece.number)
        elif piece.act is Act.CANCEL:
            self._drop(key)
        elif not served.takes(piece) or served.work is not None:
            self._refuse(key, _lost())
        else:
            self._gather(key, served, piece.data, piece.has_more)

    def _begin(self, key: tuple[str, int], piece: Piece) -> None:
        served = self._served[key] = Outgoing(key[0])
        served.takes(piece)
        if len(self._served) > MOST_STREAMS:
            self._refuse(key, Unavailable("this node has too much to answer", EXHAUSTED, SOON))
            return
        self._gather(key, served, piece.data, piece.has_more)

    def _gather(self, key: tuple[str, int], served: Outgoing, data: bytes, has_more: bool) -> None:
        served.body.append(data)
        served.size += len(data)
        if served.size > self._most_bytes + PIECE_BYTES:
            self._refuse(key, Unavailable("more is asked than a message may hold", EXHAUSTED))
        elif not has_more:
            served.work = asyncio.ensure_future(self._work(key, served))

    async def _work(self, key: tuple[str, int], served: Outgoing) -> None:
        try:
            asked = carried.opening(served.body[0])
            body = b"".join([asked.body, *served.body[1:]])
            served.body.clear()
            how = self._answers.get(asked.what, _unknown)
            send = partial(self._send, served, key[1], Act.SAY)
            async with asyncio.timeout(asked.seconds):
                await how(asked.head, body, _Answering(served, send))
            await self._send(served, key[1], Act.END, b"", False)
        except (Unavailable, MalformedMessage) as error:
            self._refuse(key, error)
        except TimeoutError:
            self._refuse(key, Unavailable("the time for it is over", TIMEOUT))
        except Exception:
            log.exception("answering another node ended in a bug")
            self._refuse(key, Unavailable("the other node failed; see its log"))
        finally:
            self._served.pop(key, None)

    def _refuse(self, key: tuple[str, int], error: Unavailable | MalformedMessage) -> None:
        """Say why there is no answer, or no more of it. One whom that does not reach asks on."""
        self._say(*key, False, Act.FAIL, 0, carried.failure(error))
        self._drop(key)

    def _drop(self, key: tuple[str, int]) -> None:
        served = self._served.pop(key, None)
        if served is not None and served.work is not asyncio.current_task():
            served.stop()

    def _compare(self, sender: str, sums: list[Sum]) -> None:
        """Find out what was lost between the two nodes, and what only one of them still knows."""
        for told in sums:
            if told.is_own:
                served = self._served.get((sender, told.stream))
                if served is None or served.heard != told.sent:
                    self._refuse((sender, told.stream), _lost())
                continue
            stream = self._opened.get(told.stream)
            if stream is None or stream.peer != sender:
                self._say(sender, told.stream, True, Act.CANCEL)
            elif stream.heard != told.sent:
                stream.close(_lost())


class _Answering:
    """The way back to the node that asked."""

    def __init__(self, served: Outgoing, send: Callable[[bytes, bool], Awaitable[None]]) -> None:
        self._served = served
        self._send = send

    @property
    def peer(self) -> str:
        return self._served.peer

    async def send(self, data: bytes) -> None:
        for piece, has_more in carried.split(data):
            await self._served.room_for(len(piece))
            await self._send(piece, has_more)


async def _unknown(head: bytes, body: bytes, reply: Reply) -> None:
    raise MalformedMessage("this node does not know how to do that", METHOD_NOT_FOUND)


def _lost() -> Unavailable:
    return Unavailable("a part of what two nodes said to each other was lost", CUT_OFF, SOON)
