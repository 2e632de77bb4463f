"""A topic on a whole terminal: the timeline, the open proposals and an input line."""

import asyncio
import codecs
import os
import re
import signal
import sys
import termios
import tty
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Final

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from comity.approvals.presentation import one_line
from comity.cli.topics.render import describe_call, render_name, render_names, render_timed_line
from comity.cli.topics.session import TopicCliSession, left_of
from comity.errors import Misconfigured
from comity.sdk.topics.participant import Participant

MAX_LINE_LENGTH: Final = 16_000
MAX_PASTE_LENGTH: Final = 64_000
MAX_REMEMBERED: Final = 100
LINE_BREAK: Final = "⏎"
_MAX_SEQUENCE_LENGTH: Final = 32
_PASTE, _PASTED = "\x1b[200~", "\x1b[201~"
_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.)", re.DOTALL)
_PLAIN: Final = re.compile(r"[^\x00-\x1f\x7f]+")


class TerminalKey(Enum):
    ENTER = auto()
    TAB = auto()
    BACK_TAB = auto()
    ESCAPE = auto()
    UP = auto()
    DOWN = auto()
    LEFT = auto()
    RIGHT = auto()
    HOME = auto()
    END = auto()
    BACKSPACE = auto()
    DELETE = auto()
    ERASE_WORD = auto()
    ERASE_LINE = auto()
    ERASE_REST = auto()
    END_OF_INPUT = auto()
    REDRAW = auto()


@dataclass(frozen=True, slots=True)
class TypedText:
    """Characters; those of one paste are together."""

    text: str
    is_pasted: bool = False


type Stroke = TerminalKey | TypedText

_CONTROLS: Final = {
    "\r": TerminalKey.ENTER,
    "\n": TerminalKey.ENTER,
    "\t": TerminalKey.TAB,
    "\x7f": TerminalKey.BACKSPACE,
    "\b": TerminalKey.BACKSPACE,
    "\x01": TerminalKey.HOME,
    "\x05": TerminalKey.END,
    "\x02": TerminalKey.LEFT,
    "\x06": TerminalKey.RIGHT,
    "\x10": TerminalKey.UP,
    "\x0e": TerminalKey.DOWN,
    "\x0b": TerminalKey.ERASE_REST,
    "\x15": TerminalKey.ERASE_LINE,
    "\x17": TerminalKey.ERASE_WORD,
    "\x04": TerminalKey.END_OF_INPUT,
    "\x0c": TerminalKey.REDRAW,
}
_ENDS: Final = {
    "A": TerminalKey.UP,
    "B": TerminalKey.DOWN,
    "C": TerminalKey.RIGHT,
    "D": TerminalKey.LEFT,
    "H": TerminalKey.HOME,
    "F": TerminalKey.END,
    "Z": TerminalKey.BACK_TAB,
    "1~": TerminalKey.HOME,
    "7~": TerminalKey.HOME,
    "4~": TerminalKey.END,
    "8~": TerminalKey.END,
    "3~": TerminalKey.DELETE,
}


class KeystrokeParser:
    """The bytes of a terminal as they come, and what is not whole yet."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._pasted: str | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether a key may be Escape, or the beginning of another."""
        return self._pasted is None and self._rest.startswith("\x1b")

    def feed(self, data: bytes) -> list[Stroke]:
        self._rest += self._decoder.decode(data)
        found: list[Stroke] = []
        while self._rest:
            stroke = self._next() if self._pasted is None else self._paste()
            if stroke is None:
                break
            found += stroke
        return found

    def give_up(self) -> list[Stroke]:
        """Nothing followed: it was Escape alone."""
        self._rest = ""
        return [TerminalKey.ESCAPE]

    def _next(self) -> list[Stroke] | None:
        """The next strokes, perhaps none; None where more has to come first."""
        if self._rest.startswith(_PASTE):
            self._take(len(_PASTE))
            self._pasted = ""
            return []
        if self._rest.startswith("\x1b"):
            return self._sequence()
        plain = _PLAIN.match(self._rest)
        if plain is not None:
            return [TypedText(self._take(plain.end()))]
        known = _CONTROLS.get(self._take(1))
        return [] if known is None else [known]

    def _sequence(self) -> list[Stroke] | None:
        whole = _SEQUENCE.match(self._rest)
        if whole is not None:
            known = _ENDS.get(self._take(whole.end())[2:])
            return [] if known is None else [known]
        if len(self._rest) == 1 or (
            self._rest[1] in "[O" and len(self._rest) < _MAX_SEQUENCE_LENGTH
        ):
            return None
        # A letter typed with Alt, or right after Escape: it means neither of the two alone.
        self._take(2)
        return [TerminalKey.ESCAPE]

    def _paste(self) -> list[Stroke] | None:
        text, end, rest = self._rest.partition(_PASTED)
        if not end:
            # The end itself may have come in part.
            kept = len(self._rest) - len(_PASTED)
            if kept > 0:
                self._pasted = f"{self._pasted}{self._take(kept)}"[:MAX_PASTE_LENGTH]
            return None
        whole, self._pasted, self._rest = f"{self._pasted}{text}"[:MAX_PASTE_LENGTH], None, rest
        return [TypedText(whole, is_pasted=True)]

    def _take(self, count: int) -> str:
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken


class LineEditor:
    """One line as it is typed, and those that were typed before it."""

    def __init__(self) -> None:
        self.text = ""
        self.place = 0
        self._before: list[str] = []
        self._looked_at = 0
        self._unsent = ""

    def press(self, stroke: Stroke) -> str | None:
        """The line, once it is whole."""
        if isinstance(stroke, TypedText):
            self._insert(stroke.text)
        elif stroke is TerminalKey.ENTER:
            return self._done()
        elif stroke in (TerminalKey.UP, TerminalKey.DOWN):
            self._look(-1 if stroke is TerminalKey.UP else 1)
        elif stroke in _MOVES:
            self.place = min(max(_MOVES[stroke](self), 0), len(self.text))
        elif stroke in _ERASES:
            first, last = _ERASES[stroke](self)
            self.text = self.text[: max(first, 0)] + self.text[last:]
            self.place = max(first, 0)
        return None

    def put(self, text: str) -> None:
        """Replace the text, with the cursor at its end."""
        self.text, self.place = text, len(text)

    def before_word(self) -> int:
        return self.text[: self.place].rstrip().rfind(" ") + 1

    def shown(self, width: int) -> tuple[str, str, str]:
        """The visible text before, under and after the cursor."""
        text = self.text.replace("\n", LINE_BREAK)
        before, under, after = text[: self.place][-width:], text[self.place :][:1] or " ", ""
        while cell_len(before) > max(width - cell_len(under), 0):
            before = before[1:]
        for each in text[self.place + 1 :]:
            if cell_len(before + under + after + each) > width:
                break
            after += each
        return before, under, after

    def _insert(self, text: str) -> None:
        seen = text.replace("\r\n", "\n").replace("\r", "\n").replace("\t", " ")
        kept = "".join(each for each in seen if each == "\n" or each.isprintable())
        kept = kept[: MAX_LINE_LENGTH - len(self.text)]
        self.text = self.text[: self.place] + kept + self.text[self.place :]
        self.place += len(kept)

    def _done(self) -> str:
        line = self.text
        if line.strip() and self._before[-1:] != [line]:
            self._before = [*self._before, line][-MAX_REMEMBERED:]
        self._looked_at, self._unsent = len(self._before), ""
        self.put("")
        return line

    def _look(self, way: int) -> None:
        """Show an earlier line of the history, or the line that is not sent yet."""
        if self._looked_at == len(self._before):
            self._unsent = self.text
        self._looked_at = min(max(self._looked_at + way, 0), len(self._before))
        at_last = self._looked_at == len(self._before)
        self.put(self._unsent if at_last else self._before[self._looked_at])


_MOVES: Final[dict[Stroke, Callable[[LineEditor], int]]] = {
    TerminalKey.LEFT: lambda line: line.place - 1,
    TerminalKey.RIGHT: lambda line: line.place + 1,
    TerminalKey.HOME: lambda _: 0,
    TerminalKey.END: lambda line: len(line.text),
}
_ERASES: Final[dict[Stroke, Callable[[LineEditor], tuple[int, int]]]] = {
    TerminalKey.BACKSPACE: lambda line: (line.place - 1, line.place),
    TerminalKey.DELETE: lambda line: (line.place, line.place + 1),
    TerminalKey.ERASE_WORD: lambda line: (line.before_word(), line.place),
    TerminalKey.ERASE_LINE: lambda line: (0, line.place),
    TerminalKey.ERASE_REST: lambda line: (line.place, len(line.text)),
}


ESCAPE_SECONDS: Final = 0.05
REFRESH_SECONDS: Final = 1.0
MAX_PROPOSALS: Final = 6
_PIECE: Final = 4096
_BELOW: Final = 4
"""Lines that are always below: the header, the input line, a hint, and a spare one."""

_PASTES, _NO_PASTES = "\x1b[?2004h", "\x1b[?2004l"
HINT: Final = "Enter says it to all · /help"
HINT_PROPOSALS: Final = "Enter says it to all · Tab looks at a proposal · /help"
QUESTION: Final = "approve exactly this"


class TopicScreen:
    """The terminal, as one person's view of a topic."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._line = LineEditor()
        self._strokes = KeystrokeParser()
        self._person: TopicCliSession | None = None
        # Printed above at the next drawing, which happens once for all that came together.
        self._above: list[RenderableType] = []
        self._is_drawing = False
        self._looked_at: tuple[int, str] | None = None
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()

    def on_raw_envelope(self, frame: bytes) -> None:
        """Do nothing: the screen shows the event that is read from the frame."""

    # Display

    def show_text(self, text: Text) -> None:
        self._above.append(render_timed_line(text, datetime.now()))  # noqa: DTZ005  # the person's own clock
        self._draw_soon()

    def notice(self, text: str) -> None:
        self._above.append(Text(one_line(text), style="yellow"))
        self._draw_soon()

    def page(self, *things: RenderableType) -> None:
        self._above += things
        self._draw_soon()

    def consider(self, session: TopicCliSession, number: int, to: str) -> None:
        self._look_at(session, number, to)

    async def attend(self, me: Participant) -> TopicCliSession:
        """Run until the person leaves or the membership ends."""
        person = self._person = TopicCliSession(me, self)
        loop, keyboard = asyncio.get_running_loop(), sys.stdin.fileno()
        with _given_back(keyboard), self._live:
            person.greet()
            loop.add_reader(keyboard, self._read, person, keyboard)
            for each in (signal.SIGWINCH, signal.SIGCONT):
                loop.add_signal_handler(each, self._draw_soon)
            tasks = [
                asyncio.create_task(doing)
                for doing in (person.hear(), self._type(person), self._keep_fresh())
            ]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                loop.remove_reader(keyboard)
                person.leave()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                self._draw()
        return person

    async def _type(self, session: TopicCliSession) -> None:
        while not session.has_left and (line := await self._lines.get()) is not None:
            await session.typed(line)

    async def _keep_fresh(self) -> None:
        """Time passes for what waits, also where nothing happens."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            self._draw_soon()

    # What is pressed

    def _read(self, session: TopicCliSession, keyboard: int) -> None:
        try:
            data = os.read(keyboard, _PIECE)
        except OSError:
            data = b""
        if not data:
            self._lines.put_nowait(None)
            asyncio.get_running_loop().remove_reader(keyboard)
            return
        self._press_all(session, self._strokes.feed(data))
        if self._strokes.is_waiting:
            asyncio.get_running_loop().call_later(ESCAPE_SECONDS, self._give_up, session)

    def _give_up(self, session: TopicCliSession) -> None:
        if self._strokes.is_waiting:
            self._press_all(session, self._strokes.give_up())

    def _press_all(self, session: TopicCliSession, strokes: list[Stroke]) -> None:
        for stroke in strokes:
            before = self._looked_at
            self._press(session, stroke)
            if self._looked_at not in (None, before):
                # What follows was typed before this was seen.
                return
        self._draw_soon()

    def _press(self, session: TopicCliSession, stroke: Stroke) -> None:
        if self._looked_at is not None:
            self._decide(session, stroke, *self._looked_at)
        elif stroke is TerminalKey.END_OF_INPUT and not self._line.text:
            self._lines.put_nowait(None)
        elif stroke is TerminalKey.REDRAW:
            self._console.clear()
        elif stroke in (TerminalKey.TAB, TerminalKey.BACK_TAB):
            self._look_further(session, stroke)
        else:
            line = self._line.press(stroke)
            if line is not None:
                self._lines.put_nowait(line)

    def _decide(self, session: TopicCliSession, stroke: Stroke, number: int, to: str) -> None:
        if stroke in (TerminalKey.TAB, TerminalKey.BACK_TAB):
            self._look_further(session, stroke)
        elif stroke in (TerminalKey.ESCAPE, TerminalKey.END_OF_INPUT):
            self._looked_at = None
        elif stroke == TypedText("a"):
            self._looked_at = None
            self._approve(session, number, to)
        elif stroke == TypedText("d"):
            self._looked_at = None
            self._lines.put_nowait(f"/decline {number}")

    def _approve(self, session: TopicCliSession, number: int, to: str) -> None:
        try:
            found = session.proposals.get(number)[1]
            if not (to or found.target):
                self._line.put(f"/approve {number} ")
            session.proposals.check(number, found, to)
            session.approve(number, to)
        except Misconfigured as problem:
            session.fail(str(problem))

    def _look_further(self, session: TopicCliSession, stroke: Stroke) -> None:
        """At the next proposal, or the one before; from the last one back to the line."""
        if self._looked_at is None and self._line.text:
            self._complete(session)
            return
        numbers = [number for number, _ in session.proposals.undecided()]
        if stroke is TerminalKey.BACK_TAB:
            numbers.reverse()
        at = self._looked_at[0] if self._looked_at else None
        further = numbers[numbers.index(at) + 1 :] if at in numbers else numbers
        if further:
            self._look_at(session, further[0], "")
        else:
            self._looked_at = None

    def _look_at(self, session: TopicCliSession, number: int, to: str) -> None:
        self._looked_at = number, to
        whole = session.proposals.in_full(number, to)
        if not self._fits(whole):
            self._above.append(whole)
        self._draw()
        termios.tcflush(sys.stdin, termios.TCIFLUSH)

    def _complete(self, session: TopicCliSession) -> None:
        """The name of a member that begins as the word before the cursor does, if it is one."""
        line, begin = self._line, self._line.before_word()
        typed = line.text[begin : line.place]
        found = [each for each in session.me.others if each.startswith(typed)] if typed else []
        if len(found) == 1:
            line.press(TypedText(f"{found[0][len(typed) :]} "))

    # What is drawn

    def _draw_soon(self) -> None:
        if not self._is_drawing:
            self._is_drawing = True
            asyncio.get_running_loop().call_soon(self._draw)

    def _draw(self) -> None:
        self._is_drawing = False
        if self._person is None or not self._live.is_started:
            return
        if self._above:
            above, self._above = self._above, []
            self._console.print(Group(*above))
        # Last, and always: what stands below is what the next key is about.
        self._live.update(self._below(self._person), refresh=True)

    def _below(self, session: TopicCliSession) -> RenderableType:
        undecided = session.proposals.undecided()
        if self._looked_at is not None and self._looked_at[0] not in [n for n, _ in undecided]:
            self._looked_at = None
        parts: list[RenderableType] = [self._header(session)]
        if self._looked_at is not None:
            whole = session.proposals.in_full(*self._looked_at)
            parts += [whole] if self._fits(whole) else []
            parts.append(_question(self._looked_at[0]))
            return Group(*parts)
        most = max(min(MAX_PROPOSALS, self._console.height - _BELOW - 1), 1)
        for number, each in undecided[:most]:
            what = describe_call(each.method, each.params)
            row = Text(no_wrap=True, overflow="ellipsis").append(f"[{number}] ", "bold yellow")
            row.append(f"{left_of(each):>6}  ", "dim").append_text(render_name(each.proposer))
            row.append(" → ", "dim").append_text(
                render_names(each.target) if each.target else Text("?")
            )
            parts.append(row.append(f"  {what}", ""))
        if len(undecided) > most:
            parts.append(Text(f"… and {len(undecided) - most} more", style="dim"))
        return Group(*parts, self._typed_line(), _hint(bool(undecided), bool(self._line.text)))

    def _header(self, session: TopicCliSession) -> Text:
        me = session.me
        found = Text("── ", style="dim", no_wrap=True, overflow="ellipsis")
        found.append(me.topic, "bold not dim")
        if not me.is_connected:
            found.append(" (not connected)", "yellow")
        found.append(f" ── {len(me.others) + 1} here: you")
        if me.others:
            found.append(", ").append_text(render_names(list(me.others)))
        found.append(" ")
        found.append("─" * max(self._console.width - found.cell_len, 0))
        return found

    def _typed_line(self) -> Text:
        before, under, after = self._line.shown(self._console.width - 3)
        found = Text(no_wrap=True, overflow="crop").append("> ", "bold")
        return found.append(before, "").append(under, "reverse").append(after, "")

    def _fits(self, whole: RenderableType) -> bool:
        lines = self._console.render_lines(whole, pad=False)
        return len(lines) + _BELOW <= self._console.height


def _question(number: int) -> Text:
    found = Text(no_wrap=True, overflow="ellipsis").append(f"[{number}] ", "bold yellow")
    for key, meaning in (("a", QUESTION), ("d", "decline"), ("Tab", "next"), ("Esc", "back")):
        found.append(key, "bold reverse").append(f" {meaning}   ", "")
    return found


def _hint(has_proposals: bool, is_typing: bool) -> Text:
    said = "" if is_typing else HINT_PROPOSALS if has_proposals else HINT
    return Text(said, style="dim", no_wrap=True, overflow="ellipsis")


@contextmanager
def _given_back(keyboard: int) -> Generator[None]:
    """A terminal that gives each key at once and marks what is pasted, until this is left."""
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard, termios.TCSANOW)
    sys.stdout.write(_PASTES)
    sys.stdout.flush()
    try:
        yield
    finally:
        sys.stdout.write(_NO_PASTES)
        sys.stdout.flush()
        termios.tcsetattr(keyboard, termios.TCSANOW, before)
