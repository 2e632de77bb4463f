"""Who hears what a carrier brings, for its tests: everything is kept and can be waited for."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from comity.errors import Unavailable
from comity.mcp.protocol import Stream

SECONDS = 60.0
"""How long a test waits at most. It only ever passes where something is broken."""


class Hearer:
    """A receiver that notes each word of its carrier in order."""

    def __init__(self) -> None:
        self.messages: list[tuple[dict[str, Any], Stream, int]] = []
        self.opened: list[Stream] = []
        self.of_callers: set[Stream] = set()
        self.suspended: list[Stream] = []
        self.endings: dict[Stream, str] = {}
        self.faults: list[str] = []
        self.renewals = 0
        self.falterings: list[tuple[str, bool]] = []
        self.closings: list[str] = []
        self._answered: set[Stream] = set()
        self._happened = asyncio.Event()

    def on_message(self, data: bytes, stream: Stream, status: int) -> bool:
        frame = json.loads(data)
        self.messages.append((frame, stream, status))
        if "method" not in frame:
            self._answered.add(stream if stream is not None else frame.get("id"))
        self._happened.set()
        return "method" not in frame

    def on_stream_opened(self, stream: Stream) -> None:
        self.opened.append(stream)

    def on_stream_ended(self, stream: Stream, because: Unavailable | None) -> None:
        assert stream not in self.endings
        self.endings[stream] = str(because)
        if because is not None:
            self.faults.append(because.fault.error_type)
        self._answered.add(stream)
        self._happened.set()

    def on_stream_suspended(self, stream: Stream) -> None:
        self.suspended.append(stream)
        self._happened.set()

    def is_for_caller(self, stream: Stream) -> bool:
        return stream in self.of_callers

    def is_awaited(self, stream: Stream) -> bool:
        return stream not in self._answered

    def on_session_renewed(self) -> None:
        self.renewals += 1
        self._happened.set()

    def on_failure(self, reason: str, is_in_call: bool) -> None:
        self.falterings.append((reason, is_in_call))
        self._happened.set()

    def on_closed(self, reason: str) -> None:
        self.closings.append(reason)
        self._happened.set()

    def forget(self, stream: Stream) -> None:
        """Nobody waits for this any more."""
        self._answered.add(stream)

    async def until[Found](self, find: Callable[[], Found]) -> Found:
        """What is looked for, as soon as it is there."""
        async with asyncio.timeout(SECONDS):
            while not (found := find()):
                self._happened.clear()
                await self._happened.wait()
        return found

    async def answer(self, stream: int) -> tuple[dict[str, Any], int]:
        """The answer on that stream, with the status it came with."""

        def find() -> list[tuple[dict[str, Any], int]]:
            assert stream not in self.endings, self.endings[stream]
            of_stream = [(frame, status) for frame, on, status in self.messages if on == stream]
            return [(frame, status) for frame, status in of_stream if "method" not in frame]

        return (await self.until(find))[0]

    async def ending(self, stream: Stream) -> str:
        return await self.until(lambda: self.endings.get(stream))  # type: ignore[return-value]
