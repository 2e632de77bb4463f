"""The last lines that a server wrote to stderr, bounded and safe to print.

Incoming bytes are only cut and stored. Decoding and cleaning wait until the lines are read,
because a server may log far more than an operator reads. Every byte is hostile: it may move the
cursor of a terminal, forge a log line, or never end its line.
"""

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from comity.redaction.secrets import spellings_of, without_secrets

_ANSI = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]"  # cursor and colours
    r"|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*+(?:\x07|\x1b\\|\x9c)?"  # titles and links
    r"|\x1b[ -/]*+[0-~]"  # the rest
)


# The lines that say what went wrong, among advice and the frames of a traceback.
_FAULT = re.compile(
    r"(?:[\w.]*(?:Error|Exception)\b|error|fatal|panic|npm error|npm ERR!)[:\s]"
    r"|comity: |network\.outbound",
    re.IGNORECASE,
)
_SEARCHED_LINES = 60


def find_fault(lines: Sequence[str]) -> str:
    """Return the last line that names an error; without one, the last line with a word."""
    recent = list(reversed(lines[-_SEARCHED_LINES:]))
    worded = [line for line in recent if any(map(str.isalnum, line))]
    return next((line for line in worded if _FAULT.match(line)), worded[0] if worded else "")


class StderrTail:
    """A ring buffer of lines, limited by line length, by number of lines and by total size."""

    def __init__(self, lines: int = 200, size: int = 64 * 1024, line_size: int = 2048) -> None:
        self._max_lines = lines
        self._max_bytes = size
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
        # Splitting from the end leaves lines uncut that a flood would push out anyway.
        oldest, *lines = rest.rsplit(b"\n", self._max_lines)
        lines.insert(0, oldest.rpartition(b"\n")[2])
        self._partial = lines.pop()[: self._line_size]
        for line in lines:
            self._add(line[: self._line_size])

    def _add(self, line: bytes) -> None:
        if not line.strip():
            return
        self._lines.append(line)
        self._size += len(line)
        while self._size > self._max_bytes or len(self._lines) > self._max_lines:
            self._size -= len(self._lines.popleft())

    def read(self, hidden: Mapping[str, str]) -> list[str]:
        """Return the lines, oldest first, with each value of `hidden` replaced by its name."""
        raw = [*self._lines, self._partial] if self._partial.strip() else [*self._lines]
        known = _spellings(hidden)
        return [
            sanitize_line(without_secrets(_hide(line.decode(errors="replace"), known))).strip()
            for line in raw
        ]


def sanitize_line(text: str) -> str:
    """Return the text as one line without control sequences."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else " " if character.isspace() else "\ufffd"
        for character in _ANSI.sub("", text)
    )


def _spellings(hidden: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return every spelling of every value with its name, the longest first.

    Otherwise a shorter value with the same beginning would spoil a longer one.
    """
    found = {spelled: name for name, value in hidden.items() for spelled in spellings_of([value])}
    return sorted(found.items(), key=lambda known: len(known[0]), reverse=True)


def _hide(text: str, known: Iterable[tuple[str, str]]) -> str:
    for spelled, name in known:
        text = text.replace(spelled, f"${{{name}}}")
    return text
