"""The event stream of the console: hints that something changed.

A hint has no content. The reader asks the API again, which decides what the reader may see.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Final, NamedTuple, NotRequired, TypedDict

from comity.console.samples import SampleView
from comity.errors import EXHAUSTED, Unavailable
from comity.http.api import Permission, StreamRoute
from comity.http.asgi import ACTOR, Receive, Scope, Send
from comity.http.event_stream import (
    EventStreamWriter,
    Recognise,
    ended_by_disconnect,
    send_until_over,
)
from comity.mcp.actors import Actor

log = logging.getLogger(__name__)

STREAM_PATH: Final = "/api/stream"
MAX_HINTS: Final = 256
MAX_READERS: Final = 1000
BATCH_INTERVAL_SECONDS: Final = 0.5

type MaySee = Callable[[Actor], bool]


class HintTopic(StrEnum):
    """The subject of a hint."""

    APPROVALS = "approvals"
    SERVERS = "servers"
    TOOLS = "tools"
    AUDIT = "audit"
    TOPICS = "topics"
    LIVE = "live"
    GRANTS = "grants"
    PRINCIPALS = "principals"
    KEYS = "keys"
    ACCOUNTS = "accounts"
    NODES = "nodes"
    METRICS = "metrics"


class HintView(TypedDict):
    """One event of the stream. Without `id`, any record of the topic may have changed."""

    topic: HintTopic
    id: NotRequired[str]
    sample: NotRequired[SampleView]


class ChangeHint(NamedTuple):
    """A change. `may_see` replaces the usual rule, which is the grant `admin/read`."""

    topic: HintTopic
    id: str = ""
    may_see: MaySee | None = None
    sample: SampleView | None = None

    def to_view(self) -> HintView:
        view: HintView = {"topic": self.topic}
        if self.id:
            view["id"] = self.id
        return view if self.sample is None else {**view, "sample": self.sample}


class HintBuffer:
    """The unsent hints of one reader: one for each record, and one for a topic with too many."""

    def __init__(self, max_hints: int = MAX_HINTS) -> None:
        self.is_over = False
        self.changed = asyncio.Event()
        self._max_hints = max_hints
        self._hints: dict[tuple[HintTopic, str], ChangeHint] = {}

    def add(self, hint: ChangeHint) -> None:
        if (hint.topic, "") in self._hints and hint.id:
            return
        if (hint.topic, hint.id) not in self._hints and len(self._hints) >= self._max_hints:
            # The reader reads the whole topic again, and that answer shows only what it may see.
            kept = {key: each for key, each in self._hints.items() if key[0] is not hint.topic}
            self._hints = kept
            hint = ChangeHint(hint.topic, "", None if hint.may_see is None else _anyone)
        self._hints[hint.topic, hint.id] = hint
        self.changed.set()

    def end(self) -> None:
        self.is_over = True
        self.changed.set()

    def take(self) -> list[ChangeHint]:
        """Return the hints since the last call."""
        self.changed.clear()
        hints, self._hints = list(self._hints.values()), {}
        return hints


def _anyone(_: Actor) -> bool:
    return True


class HintStream:
    """The endpoint of the event stream, with all its readers.

    Every reader gets a batch at once after a quiet time, and then at most two batches a second.
    """

    def __init__(
        self,
        authenticate: Recognise,
        may_read: MaySee,
        hold: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self._authenticate = authenticate
        self._may_read = may_read
        self._hold = hold
        self._readers: set[HintBuffer] = set()
        self._is_over = False

    def __len__(self) -> int:
        return len(self._readers)

    @property
    def route(self) -> StreamRoute:
        return StreamRoute(STREAM_PATH, Permission.ANY_PRINCIPAL, self.serve, HintView)

    def publish(self, hint: ChangeHint) -> None:
        """Tell all readers of this node about a change."""
        for reader in self._readers:
            reader.add(hint)

    def end(self) -> None:
        """End all streams. New readers get an error that asks for a later retry."""
        self._is_over = True
        for reader in self._readers:
            reader.end()

    async def serve(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        """Send hints about what changed, until the reader leaves or its credentials end."""
        if self._is_over or len(self._readers) >= MAX_READERS:
            raise Unavailable("too many readers of the event stream; try again later", EXHAUSTED)
        with self._hold(scope[ACTOR].party):
            await self._serve_reader(scope, headers, receive, send)

    async def _serve_reader(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        reader, writer = HintBuffer(), EventStreamWriter(send)

        async def send_hints(actor: Actor) -> bool:
            seen = [hint for hint in reader.take() if self._is_visible(hint, actor)]
            if seen:
                await writer.send_events([hint.to_view() for hint in seen])
                await asyncio.sleep(BATCH_INTERVAL_SECONDS)
            return bool(seen)

        self._readers.add(reader)
        try:
            with ended_by_disconnect(receive, reader):
                await writer.begin()
                await send_until_over(
                    reader, writer, lambda: self._authenticate(scope, headers), send_hints
                )
        except TimeoutError:
            log.warning("A reader of the event stream stopped reading. Its stream is closed.")
        finally:
            self._readers.discard(reader)

    def _is_visible(self, hint: ChangeHint, actor: Actor) -> bool:
        return self._may_read(actor) or (hint.may_see is not None and hint.may_see(actor))
