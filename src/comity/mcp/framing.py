"""Lines and server-sent events, parsed from bytes that arrive in pieces of any size."""

from dataclasses import dataclass, field

import msgspec

from comity.errors import MalformedMessage

LINE_LIMIT = 4 * 1024 * 1024
NEWLINE, RETURN, BACKSLASH = b"\n\r\\"
"""Integers, because `NEWLINE in data` is ten times faster than `b"\\n" in data`."""
BEGINNING = 256


@dataclass(frozen=True, slots=True)
class OverlongLine:
    """Replaces a line that was dropped. `size_so_far` is its size when it became too long.

    `beginning` is long enough to find the request that the line answers.
    """

    size_so_far: int
    beginning: bytes = field(default=b"", compare=False)


class LineSplitter:
    """Splits bytes at newlines. It drops blank lines, and one carriage return before a newline."""

    __slots__ = ("_dropping", "_limit", "_partial")

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._limit = limit
        self._partial = bytearray()
        # True from the moment a line becomes too long until the newline that ends it.
        self._dropping = False

    def feed(self, data: bytes) -> list[bytes | OverlongLine]:
        items: list[bytes | OverlongLine] = []
        if self._partial or self._dropping:
            head, newline, data = data.partition(b"\n")
            self._buffer_part(head, items)
            if newline:
                self._end_line(items)
        lines = data.split(b"\n")
        rest = lines.pop()
        for line in lines:
            if len(line) > self._limit:
                items.append(OverlongLine(len(line), line[:BEGINNING]))
            else:
                _add_unless_blank(line, items)
        if rest:
            self._buffer_part(rest, items)
        return items

    def _buffer_part(self, chunk: bytes, items: list[bytes | OverlongLine]) -> None:
        if self._dropping:
            return
        size = len(self._partial) + len(chunk)
        if size > self._limit:
            # Reported now and not at the newline, which a hostile peer may never send.
            beginning = bytes(self._partial[:BEGINNING]) + chunk[:BEGINNING]
            items.append(OverlongLine(size, beginning[:BEGINNING]))
            self._partial = bytearray()
            self._dropping = True
        else:
            # A bytearray, because in a list of pieces each one-byte piece would cost forty bytes.
            self._partial += chunk

    def _end_line(self, items: list[bytes | OverlongLine]) -> None:
        if self._dropping:
            self._dropping = False
        else:
            _add_unless_blank(bytes(self._partial), items)
            self._partial = bytearray()


def _add_unless_blank(line: bytes, items: list[bytes | OverlongLine]) -> None:
    if line.endswith(b"\r"):
        line = line[:-1]
    if line and not line.isspace():
        items.append(line)


EVENT_LIMIT = 8 * 1024 * 1024

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_COMMENT = b":"
_COMMON_EVENT_START = b"event: message\ndata: "
# Nine digits of milliseconds are eleven days. Without a bound, `int` would raise.
_RETRY_DIGITS = 9


class SseEvent(msgspec.Struct, frozen=True, gc=False):
    """One event. `id` is None if the event has no id. The data stays bytes, for JSON."""

    data: bytes
    event: str = "message"
    id: str | None = None
    retry: int | None = None


def encode_event(
    data: bytes,
    *,
    id: str | None = None,
    event: str | None = None,
    retry: int | None = None,
) -> bytes:
    """Encode an event. Every line end in the data becomes one newline."""
    parts: list[bytes] = []
    if event is not None:
        parts.append(b"event: %b\n" % _one_line(event))
    if id is not None:
        parts.append(b"id: %b\n" % _one_line(id))
    if retry is not None:
        parts.append(b"retry: %d\n" % retry)
    if NEWLINE in data or RETURN in data:
        lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        parts += [b"data: %b\n" % line for line in lines]
        parts.append(b"\n")
    else:
        parts.append(b"data: %b\n\n" % data)
    return b"".join(parts)


def encode_comment(text: str = "") -> bytes:
    """Encode a comment, which readers ignore and which keeps proxies from closing the stream."""
    return b": %b\n\n" % _one_line(text)


def _one_line(text: str) -> bytes:
    # A line break would let the caller inject a field. Readers ignore an id with a NUL.
    if "\n" in text or "\r" in text or "\0" in text:
        raise ValueError("a field of an event holds neither line breaks nor NUL")
    return text.encode()


class SseParser:
    """Parses a stream in chunks.

    It returns the events before an oversize one first. That `feed` or the next one raises, and so
    does every later one. It never returns an event that the end of the stream cuts off.
    """

    def __init__(self, limit: int = EVENT_LIMIT) -> None:
        # The last id in the stream, also of an event without data. A client resumes there.
        self.last_event_id = ""
        self._limit = limit
        self._broken = False
        self._opening: bytes | None = b""
        self._after_return = False
        self._partial = bytearray()
        self._start_block()

    @property
    def is_broken(self) -> bool:
        """Whether every later feed raises, so that the caller need not wait for more data."""
        return self._broken

    def feed(self, chunk: bytes) -> list[SseEvent]:
        if self._is_single_plain_event(chunk):
            return [SseEvent(chunk[len(_COMMON_EVENT_START) : -2])]
        events: list[SseEvent] = []
        if not self._broken:
            self._read(self._with_newlines_only(self._past_byte_order_mark(chunk)), events)
        if self._broken and not events:
            raise MalformedMessage(f"an event is larger than {self._limit} bytes")
        return events

    def _is_single_plain_event(self, chunk: bytes) -> bool:
        """Return whether a chunk is exactly one event in the usual form. This is the fast path."""
        return (
            chunk.startswith(_COMMON_EVENT_START)
            and chunk.find(b"\n", len(_COMMON_EVENT_START)) == len(chunk) - 2
            and chunk.endswith(b"\n")
            and RETURN not in chunk
            and len(chunk) <= self._limit
            and self._opening is None
            and not (self._partial or self._size or self._after_return or self._broken)
        )

    def _past_byte_order_mark(self, chunk: bytes) -> bytes:
        if self._opening is None:
            return chunk
        opening = self._opening + chunk
        if len(opening) < len(_BYTE_ORDER_MARK) and _BYTE_ORDER_MARK.startswith(opening):
            self._opening = opening
            return b""
        self._opening = None
        return opening.removeprefix(_BYTE_ORDER_MARK)

    def _with_newlines_only(self, chunk: bytes) -> bytes:
        """Return the chunk with every line end as one newline, also across chunks."""
        if self._after_return and chunk:
            self._after_return = False
            chunk = chunk.removeprefix(b"\n")
        if RETURN in chunk:
            self._after_return = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return chunk

    def _read(self, chunk: bytes, events: list[SseEvent]) -> None:
        # If the whole chunk fits into one event, no line of it needs a size check.
        fits = self._size + len(self._partial) + len(chunk) <= self._limit
        for line in self._whole_lines(chunk):
            if not line:
                self._end_block(events)
            elif fits or self._fits(line):
                self._take_field(line)
            else:
                return
        if self._partial:
            self._fits(self._partial)

    def _whole_lines(self, chunk: bytes) -> list[bytes]:
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if lines and self._partial:
            self._partial += lines[0]
            lines[0] = bytes(self._partial)
            self._partial = bytearray()
        self._partial += rest
        return lines

    def _fits(self, line: bytes | bytearray) -> bool:
        # Comments are not kept, so they do not count against the size of an event.
        held = 0 if line.startswith(_COMMENT) else self._size
        if held + len(line) > self._limit:
            self._broken = True
            self._partial = bytearray()
            self._start_block()
        return not self._broken

    def _take_field(self, line: bytes) -> None:
        if line.startswith(_COMMENT):
            return
        self._size += len(line) + 1
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value.decode(errors="replace")
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode(errors="replace")
        elif name == b"retry" and value.isdigit() and len(value) <= _RETRY_DIGITS:
            self._retry = int(value)

    def _end_block(self, events: list[SseEvent]) -> None:
        if self._id is not None:
            self.last_event_id = self._id
        if self._data or self._id is not None or self._retry is not None:
            kind = self._event or "message"
            events.append(SseEvent(b"\n".join(self._data), kind, self._id, self._retry))
        self._start_block()

    def _start_block(self) -> None:
        # The size of the fields of the block so far, including their line ends.
        self._size = 0
        self._data: list[bytes] = []
        self._event = ""
        self._id: str | None = None
        self._retry: int | None = None
