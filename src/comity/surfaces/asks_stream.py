"""Asks as they come and change, as server-sent events at /api/asks/stream.

Rule 1: first every open ask that the reader may see, then `current`; from then on each change.
Rule 2: a reader that falls behind is told `lost`, and has to read again; nobody waits for it.
Rule 3: who reads is asked again with every event and every second: a stream ends with its reader's
        credentials, and what somebody may no longer see is not sent.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from comity.kernel.inbox import Inbox
from comity.kernel.shares import Shares
from comity.surfaces import doorway
from comity.surfaces.doorway import STREAM_HEADERS, Receive, Scope, Send
from comity.surfaces.gateway import ACTOR, Door
from comity.surfaces.reception import ASKS
from comity.wire import jsonrpc
from comity.wire.asks import Ask
from comity.wire.errors import EXHAUSTED, MalformedMessage, Unavailable
from comity.wire.parties import Actor
from comity.wire.sse import encode_comment, encode_event

log = logging.getLogger(__name__)

STREAM: Final = f"{ASKS}/stream"
MOST_WAITING: Final = 256
MOST_READERS: Final = 1000
MOST_OF_ONE: Final = 100
LOOK_SECONDS: Final = 1.0
QUIET_LOOKS: Final = 15
SEND_SECONDS: Final = 30.0
RETRY_MS: Final = 1000

type Recognise = Callable[[Scope, dict[bytes, bytes]], Awaitable[Actor]]
"""Who sent a request; raises MalformedMessage, Unavailable where it may not come in any more."""


class Reader:
    """What one reader has not been told yet: of each ask the latest, and at most so many."""

    def __init__(self, most: int = MOST_WAITING) -> None:
        self.is_lost = False
        self.is_over = False
        self.stirred = asyncio.Event()
        self._most = most
        self._waiting: dict[str, Ask] = {}

    def hear(self, ask: Ask) -> None:
        if ask.id not in self._waiting and len(self._waiting) >= self._most:
            self.lose()
        else:
            self._waiting[ask.id] = ask
            self.stirred.set()

    def lose(self) -> None:
        """More has changed than is kept for it."""
        self._waiting.clear()
        self.is_lost = True
        self.stirred.set()

    def end(self) -> None:
        self.is_over = True
        self.stirred.set()

    def take(self) -> tuple[bool, list[Ask]]:
        """Whether something got lost, and what has come since."""
        self.stirred.clear()
        lost, self.is_lost = self.is_lost, False
        asks, self._waiting = list(self._waiting.values()), {}
        return lost, asks


class Say:
    """What goes out on one stream; a reader that leaves it full for too long is taken as gone."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def begin(self) -> None:
        head = {"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS}
        await self._bounded(head)
        await self.body(b"retry: %d\n\n" % RETRY_MS)

    async def event(self, name: str, said: object) -> None:
        await self.body(encode_event(bytes(jsonrpc.to_raw(said)), event=name))

    async def body(self, data: bytes) -> None:
        await self._bounded({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        await self._bounded({"type": "http.response.body", "body": b""})

    async def _bounded(self, message: doorway.Message) -> None:
        async with asyncio.timeout(SEND_SECONDS):
            await self._send(message)


class AsksStream:
    """The door, and everybody who reads at it."""

    def __init__(self, inbox: Inbox, most: int = MOST_WAITING) -> None:
        # Whoever joins the parts says who recognises readers; nobody is let in before.
        self.recognise: Recognise | None = None
        self._inbox = inbox
        self._approvals = inbox.approvals
        self._most = most
        self._readers: set[Reader] = set()
        self._shares = Shares("streams of asks", "", MOST_OF_ONE)
        self._is_over = False

    def __len__(self) -> int:
        return len(self._readers)

    @property
    def doors(self) -> dict[str, Door]:
        return {STREAM: self.stream}

    def hear(self, ask: Ask) -> None:
        """An ask is new, or other than before, here or elsewhere."""
        for reader in self._readers:
            reader.hear(ask)

    def changed(self, id: str) -> None:
        """An empty id means that so many changed that nobody says which."""
        if not id:
            for reader in self._readers:
                reader.lose()

    def end(self) -> None:
        """Let every reader go; new ones are told to come again later."""
        self._is_over = True
        for reader in self._readers:
            reader.end()

    async def stream(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        if scope["method"] != "GET":
            await doorway.empty(send, 405, ((b"allow", b"GET"),))
            return
        if self.recognise is None or self._is_over or len(self._readers) >= MOST_READERS:
            raise Unavailable("nobody else can watch asks just now", EXHAUSTED)
        with self._shares.held(scope[ACTOR].party):
            await self._read(scope, headers, receive, send)

    async def _read(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        reader = Reader(self._most)
        self._readers.add(reader)
        gone = asyncio.ensure_future(_until_gone(receive))
        gone.add_done_callback(lambda _: reader.end())
        try:
            await self._tell(reader, scope, headers, Say(send))
        except TimeoutError:
            log.warning("a reader of asks has stopped reading; its stream is ended")
        finally:
            self._readers.discard(reader)
            gone.cancel()

    async def _tell(
        self, reader: Reader, scope: Scope, headers: dict[bytes, bytes], say: Say
    ) -> None:
        assert self.recognise is not None
        await say.begin()
        await self._tell_current(scope[ACTOR], say)
        quiet = 0
        while not reader.is_over:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await reader.stirred.wait()
            try:
                actor = await self.recognise(scope, headers)
            except (MalformedMessage, Unavailable) as refused:
                await say.event("end", {"reason": str(refused)})
                break
            lost, asks = reader.take()
            if lost:
                await say.event("lost", {"read": ASKS})
            await self._tell_some(actor, asks, say)
            quiet = 0 if asks or lost else quiet + 1
            if quiet >= QUIET_LOOKS:
                quiet = 0
                await say.body(encode_comment("still here"))
        await say.end()

    async def _tell_current(self, actor: Actor, say: Say) -> None:
        after, count = "", 0
        while True:
            asks, after = await self._approvals.page(actor, after=after)
            count += await self._tell_some(actor, asks, say)
            if not after:
                break
        await say.event("current", {"open": count})

    async def _tell_some(self, actor: Actor, asks: Sequence[Ask], say: Say) -> int:
        seen = [ask for ask in asks if self._approvals.may_see(ask, actor)]
        for view in await self._inbox.views(actor, seen) if seen else ():
            await say.event("ask", view)
        return len(seen)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
