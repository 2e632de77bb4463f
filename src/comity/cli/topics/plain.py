"""A topic as plain lines, for pipes, scripts and logs."""

import asyncio
import codecs
import itertools
import json
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from rich.console import Console, RenderableType
from rich.text import Text

from comity.approvals.presentation import one_line
from comity.cli.output import show_output
from comity.cli.topics.render import render_timed_line
from comity.cli.topics.session import TopicCliSession
from comity.sdk.topics.participant import Participant
from comity.telemetry.logging import log_announcement

LINGER: Final = 0.3
"""The wait for a refusal of the last line by the gateway."""

_MAX_LINES: Final = 100
_MAX_LINE_LENGTH: Final = 2 * 1024 * 1024
_PIECE: Final = 64 * 1024
_INDENT: Final = " " * 9


class PlainLineView:
    """Reads lines from standard input and writes events as lines."""

    def __init__(self, *, as_json: bool = False, is_staying: bool = False) -> None:
        self._as_json = as_json
        self._is_staying = is_staying
        self._frames: asyncio.Queue[bytes] = asyncio.Queue()

    def show_text(self, text: Text) -> None:
        if self._as_json:
            return
        now = datetime.now()  # noqa: DTZ005  # the clock that the reader sees
        if sys.stdout.isatty():
            # A terminal that can do little is as wide as any other.
            columns = shutil.get_terminal_size().columns
            Console(highlight=False, width=columns).print(render_timed_line(text, now))
        else:
            _write(f"{now:%H:%M:%S} " + text.plain.replace("\n", f"\n{_INDENT}"))

    def on_raw_envelope(self, frame: bytes) -> None:
        """Queue a frame, so that a write error of standard output does not reach the connection."""
        if self._as_json:
            self._frames.put_nowait(frame)

    def notice(self, text: str) -> None:
        log_announcement(one_line(text))

    def page(self, *things: RenderableType) -> None:
        if self._as_json:
            Console(stderr=True, highlight=False).print(*things, sep="\n")
        else:
            show_output(*things)
            sys.stdout.flush()

    def consider(self, session: TopicCliSession, number: int, to: str) -> None:
        """Print the proposal and approve it at once: a line of input is the decision."""
        self.page(session.proposals.in_full(number, to))
        session.approve(number, to)

    async def attend(self, me: Participant) -> TopicCliSession:
        """Run until the input or the membership ends."""
        person = TopicCliSession(me, self)
        person.greet()
        hearing = asyncio.create_task(person.hear())
        tasks = [hearing, asyncio.create_task(self._write_frames())]
        tasks.append(asyncio.create_task(self._type(person)))
        try:
            await _wait_for_first(*tasks)
            await self._end(person, hearing)
            self._write_all()
        finally:
            person.leave()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return person

    async def _end(self, session: TopicCliSession, hearing: "asyncio.Task[None]") -> None:
        if not session.has_left:
            settled = asyncio.create_task(session.settled())
            await _wait_for_first(hearing, settled)
            settled.cancel()
            if self._is_staying:
                await _wait_for_first(hearing)
        await asyncio.wait({hearing}, timeout=LINGER)

    async def _write_frames(self) -> None:
        while True:
            _write_envelope(await self._frames.get())
            self._write_all()

    def _write_all(self) -> None:
        while not self._frames.empty():
            _write_envelope(self._frames.get_nowait())

    async def _type(self, session: TopicCliSession) -> None:
        lines: asyncio.Queue[str | None] = asyncio.Queue(_MAX_LINES)
        read = asyncio.get_running_loop(), lines, sys.stdin.fileno()
        threading.Thread(target=_read, args=read, daemon=True).start()
        while not session.has_left and (line := await lines.get()) is not None:
            await session.typed(line)


async def _wait_for_first(*tasks: "asyncio.Task[None]") -> None:
    """Wait until one task has ended, and raise its exception."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


def _write_envelope(frame: bytes) -> None:
    """Write one envelope on one line, in ASCII, so that it cannot control the terminal."""
    _write(json.dumps(json.loads(frame), separators=(",", ":")))


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _read(loop: asyncio.AbstractEventLoop, lines: "asyncio.Queue[str | None]", source: int) -> None:
    """Queue every line of the input, and None at its end; wait while the queue is full."""
    try:
        for line in itertools.chain(_lines(source), [None]):
            asyncio.run_coroutine_threadsafe(lines.put(line), loop).result()
    except RuntimeError:
        # The loop has ended before the input.
        return


def _lines(source: int) -> Iterator[str]:
    # Not by sys.stdin, whose lock a thread that waits in it would hold to the end of the program.
    decoder, rest = codecs.getincrementaldecoder("utf-8")("replace"), ""
    while piece := os.read(source, _PIECE):
        rest += decoder.decode(piece)
        *whole, rest = rest.split("\n")
        yield from whole
        if len(rest) > _MAX_LINE_LENGTH:
            yield rest
            rest = ""
    if rest:
        yield rest
