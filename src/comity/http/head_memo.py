"""Heads that a connection has parsed before, so that an equal head is not parsed again.

A client sends the same head with every call, except for the length of the body. `HeadMemo` maps
the bytes of a head, without the digits of its length, to what the parser read from it.

The memo cannot read a head otherwise than the parser. Only a head with one plain length line is
learned. A head that is found has the same bytes before and after the digits. The digits are plain
too, and no other line of a head depends on them. `tests/http/test_head_memo.py` compares both.
"""

from typing import Final

MAX_HEADS: Final = 4
MAX_HEAD_BYTES: Final = 4096
MAX_DIGITS: Final = 6
MAX_LEARNED: Final = 64
"""How many heads one connection learns one after the other.

Some clients send a new head with each request. Then only every `LEARN_INTERVAL`th is learned, so
that a client which opens many sessions first is known soon after.
"""

LEARN_INTERVAL: Final = 16

_END: Final = b"\r\n\r\n"
_ZERO: Final = ord("0")


class HeadMemo[Head]:
    """The heads that one connection has parsed."""

    __slots__ = ("_heads", "_length_line", "_tries")

    def __init__(self) -> None:
        self._heads: dict[bytes, Head] = {}
        self._tries = 0
        # The start of the length line, as this peer writes it. It is the same for all heads, so
        # that a head can be cut in only one way.
        self._length_line = b""

    def find(self, data: bytes) -> tuple[Head, int, int] | None:
        """Return the known head at the start of `data`, the start of its body, and its length."""
        end = data.find(_END, 0, MAX_HEAD_BYTES)
        line = self._length_line
        begin = data.find(line, 0, end)
        if end < 0 or begin < 0:
            return None
        begin += len(line)
        # The end of the head is a stop too, so there always is one.
        stop = data.find(b"\r", begin)
        digits = data[begin:stop]
        if not digits.isdigit() or len(digits) > MAX_DIGITS or digits[0] == _ZERO:
            return None
        head = self._heads.get(data[:begin] + data[stop:end])
        return None if head is None else (head, end + 4, int(digits))

    def learn(self, data: bytes, headers: list[tuple[bytes, bytes]], head: Head) -> None:
        """Remember a head at the start of `data`, from which the parser read these headers."""
        end = data.find(_END, 0, MAX_HEAD_BYTES)
        self._tries += 1
        if end < 0 or (self._tries > MAX_LEARNED and self._tries % LEARN_INTERVAL):
            return
        lines = data[:end].split(b"\r\n")
        breaks = len(lines) - 1
        if data.count(b"\r", 0, end) != breaks or data.count(b"\n", 0, end) != breaks:
            return
        fields = [line.partition(b": ") for line in lines[1:]]
        if [(name.lower(), value) for name, _, value in fields] != headers:
            return
        lengths = [name for name, _, _ in fields if name.lower() == b"content-length"]
        if len(lengths) != 1:
            return
        line = b"\r\n%b: " % lengths[0]
        if self._length_line not in (b"", line):
            return
        begin = data.find(line, 0, end) + len(line)
        stop = data.find(b"\r", begin)
        digits = data[begin:stop]
        if not digits.isdigit() or len(digits) > MAX_DIGITS or digits[0] == _ZERO:
            return
        self._length_line = line
        if len(self._heads) >= MAX_HEADS:
            del self._heads[next(iter(self._heads))]
        self._heads[data[:begin] + data[stop:end]] = head
