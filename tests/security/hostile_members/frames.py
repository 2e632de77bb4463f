"""Frames that no WebSocket client sends, by name, and the code with which each is answered."""

import struct
import zlib
from dataclasses import dataclass

from tests.security.hostile_members.said import said
from tests.security.hostile_members.scene import ANYTHING

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
MIB = 2**20
HONEST = said(ANYTHING)
PROTOCOL_ERROR, UNSUPPORTED, NO_TEXT, TOO_BIG = 1002, 1003, 1007, 1009


def frame(
    opcode: int,
    data: bytes = b"",
    *,
    is_last: bool = True,
    reserved: int = 0,
    is_masked: bool = True,
    length: bytes | None = None,
) -> bytes:
    """One frame as RFC 6455 §5.2 has it, or as it has not; the mask changes nothing."""
    first = (0x80 if is_last else 0) | reserved << 4 | opcode
    size = len(data)
    if length is None:
        short = size if size < 126 else 126 if size < 65_536 else 127
        more = b"" if size < 126 else struct.pack("!H" if size < 65_536 else "!Q", size)
        length = bytes([short]) + more
    mask = b"\0\0\0\0" if is_masked else b""
    return bytes([first, length[0] | (0x80 if is_masked else 0)]) + length[1:] + mask + data


def fragmented(opcode: int, *parts: bytes) -> bytes:
    *begun, last = parts
    first = [frame(opcode if not n else CONT, each, is_last=False) for n, each in enumerate(begun)]
    return b"".join(first) + frame(CONT, last)


def deflated(data: bytes) -> bytes:
    squeezed = zlib.compressobj(9, zlib.DEFLATED, -15)
    return squeezed.compress(data) + squeezed.flush(zlib.Z_SYNC_FLUSH)[:-4]


@dataclass(frozen=True)
class Sent:
    """Bytes on an open socket, and the code by which they are answered."""

    name: str
    data: bytes
    code: int


HALVES = HONEST[:20], HONEST[20:]
FRAMES = [
    Sent("binary: an honest envelope", frame(BINARY, HONEST), UNSUPPORTED),
    Sent("binary: nothing", frame(BINARY), UNSUPPORTED),
    Sent("binary: in two parts", fragmented(BINARY, *HALVES), UNSUPPORTED),
    Sent("binary: nothing, then all of it", fragmented(BINARY, b"", HONEST), UNSUPPORTED),
    Sent("binary: and a text behind it", frame(BINARY) + frame(TEXT, HONEST), UNSUPPORTED),
    Sent(
        "binary: and a text in parts behind it",
        frame(BINARY) + fragmented(TEXT, *HALVES),
        UNSUPPORTED,
    ),
    Sent("too big: one byte too many", frame(TEXT, b" " * MIB + b" "), TOO_BIG),
    Sent("too big: in parts", fragmented(TEXT, *[b" " * (MIB // 4)] * 5), TOO_BIG),
    Sent(
        "too big: an honest envelope in white space",
        fragmented(TEXT, HONEST, *[b" " * (MIB // 2)] * 3),
        TOO_BIG,
    ),
    Sent(
        "too big: only announced", frame(TEXT, length=b"\x7f" + struct.pack("!Q", 2**40)), TOO_BIG
    ),
    Sent(
        "too big: announced as negative",
        frame(TEXT, length=b"\x7f" + struct.pack("!Q", 2**64 - 1)),
        TOO_BIG,
    ),
    Sent("not masked", frame(TEXT, HONEST, is_masked=False), PROTOCOL_ERROR),
    Sent(
        "compressed, which was not agreed",
        frame(TEXT, deflated(HONEST), reserved=4),
        PROTOCOL_ERROR,
    ),
    Sent(
        "a bomb of 100 MiB, which was not agreed",
        frame(TEXT, deflated(b" " * (100 * MIB)), reserved=4),
        PROTOCOL_ERROR,
    ),
    Sent("the second reserved bit", frame(TEXT, HONEST, reserved=2), PROTOCOL_ERROR),
    Sent("the third reserved bit", frame(TEXT, HONEST, reserved=1), PROTOCOL_ERROR),
    Sent("a kind of frame that is none", frame(3, HONEST), PROTOCOL_ERROR),
    Sent("a kind of control frame that is none", frame(11), PROTOCOL_ERROR),
    Sent("a ping in two parts", frame(PING, b"a", is_last=False), PROTOCOL_ERROR),
    Sent("a ping that is too long", frame(PING, b"a" * 126), PROTOCOL_ERROR),
    Sent("a continuation of nothing", frame(CONT, HONEST), PROTOCOL_ERROR),
    Sent(
        "a text within a text",
        frame(TEXT, HALVES[0], is_last=False) + frame(TEXT, HONEST),
        PROTOCOL_ERROR,
    ),
    Sent("an end with half a code", frame(CLOSE, b"\x03"), PROTOCOL_ERROR),
    Sent("an end with a code that is none", frame(CLOSE, struct.pack("!H", 999)), PROTOCOL_ERROR),
    Sent(
        "an end with a code that is never sent",
        frame(CLOSE, struct.pack("!H", 1005)),
        PROTOCOL_ERROR,
    ),
    Sent(
        "an end with words of no text",
        frame(CLOSE, struct.pack("!H", 1000) + b"\xff"),
        NO_TEXT,
    ),
    Sent(
        "an end, and an envelope behind it",
        frame(CLOSE, struct.pack("!H", 1000)) + frame(TEXT, HONEST),
        1000,
    ),
    Sent(
        "another HTTP request",
        b"GET /ws?topic=ops HTTP/1.1\r\nhost: localhost\r\n\r\n",
        PROTOCOL_ERROR,
    ),
    Sent(
        "the hello of TLS",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 512,
        PROTOCOL_ERROR,
    ),
    Sent("nothing but zeros", b"\0" * 4096, PROTOCOL_ERROR),
    Sent("nothing but ones", b"\xff" * 4096, PROTOCOL_ERROR),
    Sent("lines", b"hello\r\n" * 500, PROTOCOL_ERROR),
]
