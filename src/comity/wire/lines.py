"""Bytes that arrive in any pieces, given back as whole lines. (MCP stdio transport)

Rule 1: every byte is looked at once, however small the pieces are. Searching the kept part again
with each piece costs minutes for one line of 4 MiB.
Rule 2: no line outgrows the limit, not even one that never ends. Such a line is dropped up to its
newline and told as `Overlong`, so that the conversation goes on.
"""

from dataclasses import dataclass, field

LINE_LIMIT = 4 * 1024 * 1024
NEWLINE, RETURN, BACKSLASH = b"\n\r\\"
"""As numbers: `NEWLINE in data` is ten times faster than `b"\\n" in data`."""
BEGINNING = 256


@dataclass(frozen=True, slots=True)
class Overlong:
    """Stands where a line was dropped; `size_so_far` is how much of it had come by then.

    `beginning` is enough of it to see which question it would have answered.
    """

    size_so_far: int
    beginning: bytes = field(default=b"", compare=False)


class LineSplitter:
    """Splits at newlines; one carriage return before a newline goes with it, blank lines go too."""

    __slots__ = ("_dropping", "_limit", "_partial")

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._limit = limit
        self._partial = bytearray()
        # Set between the moment a line proves overlong and the newline that ends it.
        self._dropping = False

    def feed(self, data: bytes) -> list[bytes | Overlong]:
        items: list[bytes | Overlong] = []
        if self._partial or self._dropping:
            head, newline, data = data.partition(b"\n")
            self._keep(head, items)
            if newline:
                self._end_line(items)
        lines = data.split(b"\n")
        rest = lines.pop()
        for line in lines:
            if len(line) > self._limit:
                items.append(Overlong(len(line), line[:BEGINNING]))
            else:
                _add_unless_blank(line, items)
        if rest:
            self._keep(rest, items)
        return items

    def _keep(self, piece: bytes, items: list[bytes | Overlong]) -> None:
        if self._dropping:
            return
        size = len(self._partial) + len(piece)
        if size > self._limit:
            # Told now and not at the newline, which a hostile peer need never send.
            beginning = bytes(self._partial[:BEGINNING]) + piece[:BEGINNING]
            items.append(Overlong(size, beginning[:BEGINNING]))
            self._partial = bytearray()
            self._dropping = True
        else:
            # A bytearray and not a list of pieces: a piece of one byte would cost forty.
            self._partial += piece

    def _end_line(self, items: list[bytes | Overlong]) -> None:
        if self._dropping:
            self._dropping = False
        else:
            _add_unless_blank(bytes(self._partial), items)
            self._partial = bytearray()


def _add_unless_blank(line: bytes, items: list[bytes | Overlong]) -> None:
    if line.endswith(b"\r"):
        line = line[:-1]
    if line and not line.isspace():
        items.append(line)
