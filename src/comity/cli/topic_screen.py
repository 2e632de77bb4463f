"""A seat in a topic at a terminal: what was said scrolls by, and below it stands what waits.

Rule 1: a key approves only what was drawn before it was pressed: what was typed ahead, or pasted,
        decides nothing.
Rule 2: the terminal is given back as it was, however this ends.
"""

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from comity.cli.topic_keys import Key, LineEditor, Stroke, Strokes, Typed
from comity.cli.topic_person import Person
from comity.cli.topic_proposals import left_of
from comity.cli.topic_words import deed, name, names, stamped
from comity.rules.ask_words import one_line
from comity.sdk.participant import Participant
from comity.wire.errors import Misconfigured

ESCAPE_SECONDS: Final = 0.05
REFRESH_SECONDS: Final = 1.0
MOST_PROPOSALS: Final = 6
_PIECE: Final = 4096
_BELOW: Final = 4
"""Lines that stand below in any case: the header, the line that is typed, a hint, one to spare."""

_PASTES, _NO_PASTES = "\x1b[?2004h", "\x1b[?2004l"
HINT: Final = "Enter says it to all · /help"
HINT_PROPOSALS: Final = "Enter says it to all · Tab looks at a proposal · /help"
QUESTION: Final = "approve exactly this"


class Screen:
    """The terminal, as one person's view of a topic."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._line = LineEditor()
        self._strokes = Strokes()
        self._person: Person | None = None
        # Printed above at the next drawing, which happens once for all that came together.
        self._above: list[RenderableType] = []
        self._is_drawing = False
        self._looked_at: tuple[int, str] | None = None
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()

    def overheard(self, frame: bytes) -> None:
        """Nothing: what is in it is told when it was read."""

    # What is shown

    def tell(self, said: Text) -> None:
        self._above.append(stamped(said, datetime.now()))  # noqa: DTZ005  # the person's own clock
        self._draw_soon()

    def notice(self, said: str) -> None:
        self._above.append(Text(one_line(said), style="yellow"))
        self._draw_soon()

    def page(self, *things: RenderableType) -> None:
        self._above += things
        self._draw_soon()

    def consider(self, person: Person, number: int, to: str) -> None:
        self._look_at(person, number, to)

    async def attend(self, me: Participant) -> Person:
        """Until the person leaves, or the membership is over."""
        person = self._person = Person(me, self)
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

    async def _type(self, person: Person) -> None:
        while not person.has_left and (line := await self._lines.get()) is not None:
            await person.typed(line)

    async def _keep_fresh(self) -> None:
        """Time passes for what waits, also where nothing happens."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            self._draw_soon()

    # What is pressed

    def _read(self, person: Person, keyboard: int) -> None:
        try:
            data = os.read(keyboard, _PIECE)
        except OSError:
            data = b""
        if not data:
            self._lines.put_nowait(None)
            asyncio.get_running_loop().remove_reader(keyboard)
            return
        self._press_all(person, self._strokes.feed(data))
        if self._strokes.is_waiting:
            asyncio.get_running_loop().call_later(ESCAPE_SECONDS, self._give_up, person)

    def _give_up(self, person: Person) -> None:
        if self._strokes.is_waiting:
            self._press_all(person, self._strokes.give_up())

    def _press_all(self, person: Person, strokes: list[Stroke]) -> None:
        for stroke in strokes:
            before = self._looked_at
            self._press(person, stroke)
            if self._looked_at not in (None, before):
                # What follows was typed before this was seen.
                return
        self._draw_soon()

    def _press(self, person: Person, stroke: Stroke) -> None:
        if self._looked_at is not None:
            self._decide(person, stroke, *self._looked_at)
        elif stroke is Key.END_OF_INPUT and not self._line.text:
            self._lines.put_nowait(None)
        elif stroke is Key.REDRAW:
            self._console.clear()
        elif stroke in (Key.TAB, Key.BACK_TAB):
            self._look_further(person, stroke)
        else:
            line = self._line.press(stroke)
            if line is not None:
                self._lines.put_nowait(line)

    def _decide(self, person: Person, stroke: Stroke, number: int, to: str) -> None:
        if stroke in (Key.TAB, Key.BACK_TAB):
            self._look_further(person, stroke)
        elif stroke in (Key.ESCAPE, Key.END_OF_INPUT):
            self._looked_at = None
        elif stroke == Typed("a"):
            self._looked_at = None
            self._approve(person, number, to)
        elif stroke == Typed("d"):
            self._looked_at = None
            self._lines.put_nowait(f"/decline {number}")

    def _approve(self, person: Person, number: int, to: str) -> None:
        try:
            found = person.proposals.get(number)[1]
            if not (to or found.target):
                self._line.put(f"/approve {number} ")
            person.proposals.check(number, found, to)
            person.approve(number, to)
        except Misconfigured as problem:
            person.fail(str(problem))

    def _look_further(self, person: Person, stroke: Stroke) -> None:
        """At the next proposal, or the one before; from the last one back to the line."""
        if self._looked_at is None and self._line.text:
            self._complete(person)
            return
        numbers = [number for number, _ in person.proposals.undecided()]
        if stroke is Key.BACK_TAB:
            numbers.reverse()
        at = self._looked_at[0] if self._looked_at else None
        further = numbers[numbers.index(at) + 1 :] if at in numbers else numbers
        if further:
            self._look_at(person, further[0], "")
        else:
            self._looked_at = None

    def _look_at(self, person: Person, number: int, to: str) -> None:
        self._looked_at = number, to
        whole = person.proposals.in_full(number, to)
        if not self._fits(whole):
            self._above.append(whole)
        self._draw()
        termios.tcflush(sys.stdin, termios.TCIFLUSH)

    def _complete(self, person: Person) -> None:
        """The name of a member that begins as the word before the cursor does, if it is one."""
        line, begin = self._line, self._line.before_word()
        typed = line.text[begin : line.place]
        found = [each for each in person.me.others if each.startswith(typed)] if typed else []
        if len(found) == 1:
            line.press(Typed(f"{found[0][len(typed) :]} "))

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

    def _below(self, person: Person) -> RenderableType:
        undecided = person.proposals.undecided()
        if self._looked_at is not None and self._looked_at[0] not in [n for n, _ in undecided]:
            self._looked_at = None
        parts: list[RenderableType] = [self._header(person)]
        if self._looked_at is not None:
            whole = person.proposals.in_full(*self._looked_at)
            parts += [whole] if self._fits(whole) else []
            parts.append(_question(self._looked_at[0]))
            return Group(*parts)
        most = max(min(MOST_PROPOSALS, self._console.height - _BELOW - 1), 1)
        for number, each in undecided[:most]:
            what = deed(each.method, each.params)
            row = Text(no_wrap=True, overflow="ellipsis").append(f"[{number}] ", "bold yellow")
            row.append(f"{left_of(each):>6}  ", "dim").append_text(name(each.proposer))
            row.append(" → ", "dim").append_text(names(each.target) if each.target else Text("?"))
            parts.append(row.append(f"  {what}", ""))
        if len(undecided) > most:
            parts.append(Text(f"… and {len(undecided) - most} more", style="dim"))
        return Group(*parts, self._typed_line(), _hint(bool(undecided), bool(self._line.text)))

    def _header(self, person: Person) -> Text:
        me = person.me
        found = Text("── ", style="dim", no_wrap=True, overflow="ellipsis")
        found.append(me.topic, "bold not dim")
        if not me.is_connected:
            found.append(" (not connected)", "yellow")
        found.append(f" ── {len(me.others) + 1} here: you")
        if me.others:
            found.append(", ").append_text(names(list(me.others)))
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
