"""The last things a tool server said on stderr, kept within bounds and made harmless to read.

What arrives is only cut and kept; decoding and cleaning wait until somebody reads, because a server
may log far more than anybody looks at. Every byte is hostile: it may try to move the cursor of the
operator's terminal, forge a line of the log, or never end its line.
"""

import re
from collections import deque
from collections.abc import Iterable, Mapping

from comity.rules.known_secrets import spellings
from comity.rules.secret_forms import without_secrets

_ANSI = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]"  # cursor and colours
    r"|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*+(?:\x07|\x1b\\|\x9c)?"  # titles and links
    r"|\x1b[ -/]*+[0-~]"  # the rest
)


class StderrTail:
    """A ring of lines, bounded three ways: each line, their number, and all of them together."""

    def __init__(self, lines: int = 200, size: int = 64 * 1024, line_size: int = 2048) -> None:
        self._most_lines = lines
        self._most_bytes = size
        self._line_size = line_size
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._partial = b""

    def feed(self, data: bytes) -> None:
        first, newline, rest = data.partition(b"\n")
        self._partial += first[: self._line_size - len(self._partial)]
        if not newline:
            return
        self._add(self._partial)
        # Splitting from the end leaves a flood of lines that would be pushed out anyway uncut.
        oldest, *lines = rest.rsplit(b"\n", self._most_lines)
        lines.insert(0, oldest.rpartition(b"\n")[2])
        self._partial = lines.pop()[: self._line_size]
        for line in lines:
            self._add(line[: self._line_size])

    def _add(self, line: bytes) -> None:
        if not line.strip():
            return
        self._lines.append(line)
        self._size += len(line)
        while self._size > self._most_bytes or len(self._lines) > self._most_lines:
            self._size -= len(self._lines.popleft())

    def read(self, hidden: Mapping[str, str]) -> list[str]:
        """The lines, oldest first, with each value of `hidden` replaced by its name."""
        raw = [*self._lines, self._partial] if self._partial.strip() else [*self._lines]
        known = _spelled(hidden)
        return [
            harmless(without_secrets(_hide(line.decode(errors="replace"), known))).strip()
            for line in raw
        ]


def harmless(text: str) -> str:
    """One line that a terminal or a log shows as it is."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else " " if character.isspace() else "\ufffd"
        for character in _ANSI.sub("", text)
    )


def _spelled(hidden: Mapping[str, str]) -> list[tuple[str, str]]:
    """Every spelling of every value, with its name: the longest first, so that no value is spoilt
    by a shorter one that begins like it."""
    found = {spelled: name for name, value in hidden.items() for spelled in spellings([value])}
    return sorted(found.items(), key=lambda known: len(known[0]), reverse=True)


def _hide(text: str, known: Iterable[tuple[str, str]]) -> str:
    for spelled, name in known:
        text = text.replace(spelled, f"${{{name}}}")
    return text
