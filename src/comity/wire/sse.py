"""Server-sent events, said and understood: the framing of MCP's HTTP streams. (WHATWG HTML 9.2)

Rule 1: every byte is looked at a fixed number of times, however small the pieces are.
Rule 2: what one event may hold is bounded; a stream that goes beyond it is broken for good.
Rule 3: a block that holds an id or a retry and no data is an event here too, with empty data. A
browser would keep quiet about it, but MCP opens its streams with one ("priming").
"""

import msgspec

from comity.wire.errors import MalformedMessage
from comity.wire.lines import NEWLINE, RETURN

EVENT_LIMIT = 8 * 1024 * 1024

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_COMMENT = b":"
_USUAL_START = b"event: message\ndata: "
# Nine digits of milliseconds are eleven days; without a bound `int` would refuse, loudly.
_RETRY_DIGITS = 9


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event; `id` is None where the event has none of its own. Data stays bytes, for JSON."""

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
    """Data of several lines arrives as such, each line end as a single newline."""
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
    """Says nothing to the reader, and keeps the proxies between awake."""
    return b": %b\n\n" % _one_line(text)


def _one_line(text: str) -> bytes:
    # A line break would start a field of the caller's choosing; an id with a NUL is ignored.
    if "\n" in text or "\r" in text or "\0" in text:
        raise ValueError("a field of an event holds neither line breaks nor NUL")
    return text.encode()


class EventParser:
    """Understands a stream piece by piece.

    Events before an oversize one are given back first; that feed or the next one raises, and so
    does every later one. An event that the stream's end cuts off is never given.
    """

    def __init__(self, limit: int = EVENT_LIMIT) -> None:
        # The last id that the stream told, also by an event without data: where to resume.
        self.last_event_id = ""
        self._limit = limit
        self._broken = False
        self._opening: bytes | None = b""
        self._after_return = False
        self._partial = bytearray()
        self._start_block()

    @property
    def is_broken(self) -> bool:
        """Whether every later feed raises; a stream that falls silent now need not be awaited."""
        return self._broken

    def feed(self, chunk: bytes) -> list[Event]:
        if self._is_one_usual_event(chunk):
            return [Event(chunk[len(_USUAL_START) : -2])]
        events: list[Event] = []
        if not self._broken:
            self._read(self._with_newlines_only(self._past_byte_order_mark(chunk)), events)
        if self._broken and not events:
            raise MalformedMessage(f"an event is larger than {self._limit} bytes")
        return events

    def _is_one_usual_event(self, chunk: bytes) -> bool:
        """Most chunks are exactly one event as most servers write it; no need to take it apart."""
        return (
            chunk.startswith(_USUAL_START)
            and chunk.find(b"\n", len(_USUAL_START)) == len(chunk) - 2
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
        """A carriage return ends a line at once; a newline right after it belongs to it."""
        if self._after_return and chunk:
            self._after_return = False
            chunk = chunk.removeprefix(b"\n")
        if RETURN in chunk:
            self._after_return = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return chunk

    def _read(self, chunk: bytes, events: list[Event]) -> None:
        # Where the whole chunk fits into one event, no line of it needs to be measured.
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
        # Comments are not kept, so a stream may hold any number of them between two events.
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

    def _end_block(self, events: list[Event]) -> None:
        if self._id is not None:
            self.last_event_id = self._id
        if self._data or self._id is not None or self._retry is not None:
            kind = self._event or "message"
            events.append(Event(b"\n".join(self._data), kind, self._id, self._retry))
        self._start_block()

    def _start_block(self) -> None:
        # What the fields of the block cost so far, their line ends included.
        self._size = 0
        self._data: list[bytes] = []
        self._event = ""
        self._id: str | None = None
        self._retry: int | None = None
