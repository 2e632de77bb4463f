"""The lines that a running command writes, awaited one after another."""

import os
import select
import time
from typing import IO

from tests.cli.program import SECONDS


class LineReader:
    """Reads the lines of a pipe within bounds.

    It keeps what it has read in `unread` and no other buffer does. `select` says nothing of lines
    that a text stream has already taken from the pipe.
    """

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self.unread = ""

    def until(self, part: str) -> str:
        """Return the next line with this in it."""
        deadline = time.monotonic() + SECONDS
        while True:
            line, newline, rest = self.unread.partition("\n")
            if newline:
                self.unread = rest
                if part in line:
                    return line
                continue
            assert time.monotonic() < deadline, f"{part!r} was never written"
            if select.select([self._pipe], [], [], 0.5)[0]:
                piece = os.read(self._pipe.fileno(), 65536)
                assert piece, f"the command ended without {part!r}"
                self.unread += piece.decode()
