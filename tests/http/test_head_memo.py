"""A head that was seen before is read as the parser reads it, whatever its bytes are."""

import asyncio
import contextlib
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httptools
import pytest

from comity.http.asgi import Receive, Scope, Send
from comity.http.client.connection import HttpClientRequest
from comity.http.connection import HttpServerConnection, ListenerGuard, ListenerLimits
from comity.http.fast_path import FastPathRequest
from comity.http.head_memo import MAX_HEAD_BYTES, MAX_HEADS, MAX_LEARNED, HeadMemo
from tests.http.talk import Notes, Talk

# The long form is COMITY_HEADS=1000000.
HEADS = int(os.environ.get("COMITY_HEADS", "20000"))
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300 + HEADS / 200)]

type Headers = list[tuple[bytes, bytes]]

NAMES = (b"host", b"Accept", b"x-a", b"CONTENT-TYPE", b"mcp-name", b"Connection", b"x", b"upgrade")
VALUES = (b"x", b"", b"a b", b"keep-alive", b"close", b"0", b"text/html; q=1", b"\xc3\xa9", b"a: b")
LENGTHS = (b"content-length", b"Content-Length", b"CONTENT-LENGTH", b"Content-length")
ODD_LINES = (
    b"content-length: 3",
    b"Content-Length: 3",
    b"content-length : 3",
    b"content-length:3",
    b"content-length: 3, 3",
    b"transfer-encoding: chunked",
    b"Transfer-Encoding: identity",
    b"expect: 100-continue",
    b"connection: close",
    b"connection: upgrade",
    b"upgrade: h2c",
    b" folded",
    b"\tfolded",
    b"no colon",
    b": no name",
    b"x-content-length: 9",
    b"x: \x00",
    b"x: \r",
    b"x: \n",
)
ODD_LENGTHS = (
    b"0", b"00", b"05", b"+5", b"-5", b" 5", b"5 ", b"\t5", b"5\t", b"5,5", b"5;5", b"0x5", b"5e1",
    b"", b"99999", b"100000", b"999999", b"1234567", b"18446744073709551617", b"\xd9\xa5", b"5\r",
    b"5\n", b"5\x00", b"five", b"_5", b"5_0",
)  # fmt: skip
ODD_BYTES = (b"\r", b"\n", b"\r\n", b"\r\n\r\n", b"\x00", b" ", b"\t", b":", b"0", b"\xff", b"\x7f")


@dataclass
class Fuzzer:
    """Makes messages that are right or hostile, and variations of a message."""

    chance: random.Random
    first_line: Callable[[random.Random], bytes]

    def message(self) -> bytes:
        choice = self.chance.choice
        lines = [
            choice(NAMES[: self.chance.randint(1, 5)]) + b": " + choice(VALUES)
            for _ in range(self.chance.randint(0, 4))
        ]
        if self.chance.random() < 0.1:
            lines.insert(0, choice(NAMES) + b": " + choice(VALUES))
        body = b"b" * self.chance.choice((1, 2, 9, 10, 37))
        at = self.chance.randint(0, len(lines))
        lines.insert(at, b"%b: %d" % (choice(LENGTHS), len(body)))
        return b"\r\n".join([self.first_line(self.chance), *lines, b"", body])

    def variation(self, message: bytes) -> bytes:
        """The same message with another body, in half of the cases changed in other ways too."""
        head, _, _ = message.partition(b"\r\n\r\n")
        body = b"c" * self.chance.choice((1, 3, 9, 11, 99, 120))
        lines = [
            line.partition(b": ")[0] + b": %d" % len(body)
            if line.lower().startswith(b"content-length: ")
            else line
            for line in head.split(b"\r\n")
        ]
        if self.chance.random() < 0.5:
            return b"\r\n".join([*lines, b"", body])
        return self.chance.choice(
            (
                self._with_odd_line,
                self._with_odd_length,
                self._with_odd_byte,
                self._with_odd_body,
                self._without_end,
            )
        )(lines, body)

    def _with_odd_line(self, lines: list[bytes], body: bytes) -> bytes:
        lines.insert(self.chance.randint(0, len(lines)), self.chance.choice(ODD_LINES))
        return b"\r\n".join([*lines, b"", body])

    def _with_odd_length(self, lines: list[bytes], body: bytes) -> bytes:
        odd = self.chance.choice(ODD_LENGTHS)
        changed = [
            line.partition(b": ")[0] + b": " + odd
            if line.lower().startswith(b"content-length: ")
            else line
            for line in lines
        ]
        return b"\r\n".join([*changed, b"", body])

    def _with_odd_byte(self, lines: list[bytes], body: bytes) -> bytes:
        data = bytearray(b"\r\n".join([*lines, b"", body]))
        for _ in range(self.chance.randint(1, 2)):
            at = self.chance.randrange(len(data))
            cut = at + self.chance.randint(0, 2)
            data[at:cut] = self.chance.choice((b"", *ODD_BYTES))
        return bytes(data)

    def _with_odd_body(self, lines: list[bytes], body: bytes) -> bytes:
        data = b"\r\n".join([*lines, b"", body])
        return self.chance.choice(
            (data[:-1], data + b"x", data + b"\r\n", data + data, b"\r\n" + data, data + b"GET ")
        )

    def _without_end(self, lines: list[bytes], _: bytes) -> bytes:
        return b"\r\n".join(lines) + self.chance.choice((b"", b"\r", b"x", b"\r\n", b"\r\n\r"))


class Wire(asyncio.Transport):
    """A transport that remembers what was written, and whether it was closed."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 9), "sockname": ("127.0.0.1", 1)})
        self.written = b""
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


@dataclass
class Server:
    """Connections of one listener, whose requests are recorded and answered at once."""

    seen: list[tuple[bytes, Headers, bool, bytes]] = field(
        default_factory=list[tuple[bytes, Headers, bool, bytes]]
    )
    served_as_asgi: list[tuple[str, str, Headers]] = field(
        default_factory=list[tuple[str, str, Headers]]
    )

    def __post_init__(self) -> None:
        self.guard = ListenerGuard(ListenerLimits(), self.app, self.serve)

    def serve(self, request: FastPathRequest) -> bool:
        self.seen.append(
            (request.head.path, request.header_list(), request.keep_alive, request.body)
        )
        request.answer(200, b"{}")
        return True

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.served_as_asgi.append((scope["method"], scope["path"], scope["headers"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"asgi"})

    async def outcome(self, connection: HttpServerConnection, data: bytes) -> object:
        """All that happens when these bytes arrive."""
        wire = connection.transport
        assert isinstance(wire, Wire)
        wire.written = b""
        self.seen, self.served_as_asgi = [], []
        connection.data_received(data)
        while self.guard.tasks:
            await asyncio.sleep(0)
        return self.seen, self.served_as_asgi, wire.written, wire.is_closed

    def connect(self) -> HttpServerConnection:
        connection = HttpServerConnection(self.guard)
        connection.connection_made(Wire())
        return connection


class FirstMessage:
    """What a new parser of httptools reads from the first message in some bytes."""

    def __init__(self, kind: Callable[[object], Any]) -> None:
        self.url = self.body = b""
        self.headers: Headers = []
        self.is_complete = self.is_kept = False
        self.parser = kind(self)

    def read(self, data: bytes) -> bool:
        with contextlib.suppress(httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.parser.feed_data(data)
        return self.is_complete

    def on_message_begin(self) -> None:
        if self.is_complete:
            raise ValueError("only the first message is of interest")

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_complete, self.is_kept = True, self.parser.should_keep_alive()


def parsed_request(data: bytes) -> tuple[bytes, Headers, bool, bytes]:
    first = FirstMessage(httptools.HttpRequestParser)
    assert first.read(data), data
    return first.url, first.headers, first.is_kept, first.body


def request_line(chance: random.Random) -> bytes:
    if chance.random() < 0.9:
        return b"POST /%b HTTP/1.1" % chance.choice((b"mcp", b"", b"a?b", b"%41"))
    lines = (b"GET / HTTP/1.1", b"POST / HTTP/1.0", b"POST  / HTTP/1.1", b"POST http://h/ HTTP/1.1")
    return chance.choice(lines)


async def test_known_request_heads_are_read_as_the_parser_reads_them() -> None:
    fuzzer = Fuzzer(random.Random(15), request_line)  # noqa: S311  # a fixed seed
    server = Server()
    known = hits = 0
    connection = server.connect()
    previous = fuzzer.message()
    for _ in range(HEADS):
        data = fuzzer.variation(previous if fuzzer.chance.random() < 0.9 else fuzzer.message())
        memo = connection._memo  # pyright: ignore[reportPrivateUsage]  # what it keeps
        is_known = memo.find(data) is not None
        found = await server.outcome(connection, data)
        requests = list(server.seen)
        stranger = server.connect()
        assert found == await server.outcome(stranger, data), data
        stranger.connection_lost(None)
        if is_known:
            known += 1
        if is_known and len(requests) == 1:
            hits += 1
            assert requests == [parsed_request(data)], data
        is_usable = connection._is_idle  # pyright: ignore[reportPrivateUsage]  # what it keeps
        if not is_usable or fuzzer.chance.random() < 0.02:
            connection.connection_lost(None)
            connection = server.connect()
            previous = fuzzer.message()
            # The new connection learns a head, which may be a hostile one.
            first = previous if fuzzer.chance.random() < 0.5 else fuzzer.variation(previous)
            await server.outcome(connection, first)
            if not connection._is_idle:  # pyright: ignore[reportPrivateUsage]  # what it keeps
                connection.connection_lost(None)
                connection = server.connect()
    connection.connection_lost(None)
    # The comparison is of no value unless many heads were found.
    assert hits > HEADS / 5
    assert known >= hits


async def test_the_body_of_a_known_head_may_come_later() -> None:
    server = Server()
    connection = server.connect()
    data = b"POST /mcp HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b"
    await server.outcome(connection, data % (5, b"first"))
    request, following = data % (9, b"in pieces"), data % (4, b"next")
    parts = (request[:-9], request[-9:-4], request[-4:] + following, following)
    found: list[list[bytes]] = []
    for part in parts:
        await server.outcome(connection, part)
        found.append([body for _, _, _, body in server.seen])
    # What follows the body is the next request, and is read as such.
    assert found == [[], [], [b"in pieces", b"next"], [b"next"]]
    assert not server.guard.bodies_due
    connection.connection_lost(None)


def parsed_response(data: bytes) -> tuple[int, Headers, bytes]:
    first = FirstMessage(httptools.HttpResponseParser)
    assert first.read(data), data
    assert first.is_kept, data
    return first.parser.get_status_code(), first.headers, first.body


def status_line(chance: random.Random) -> bytes:
    if chance.random() < 0.9:
        return b"HTTP/1.1 200 OK"
    lines = (
        b"HTTP/1.0 200 OK",
        b"HTTP/1.1 204 No",
        b"HTTP/1.1 100 Go",
        b"HTTP/1.1 200",
        b"HTTP/1.1 304 Same",
    )
    return chance.choice(lines)


def heard(talk: Talk, data: bytes) -> object:
    """All that a reader is told when these bytes arrive, and whether the connection is kept."""
    notes, before = Notes(), talk.released
    talk.connection.begin(HttpClientRequest(talk, b"", notes, may_repeat=False))
    talk.hear(data)
    told = (notes.status, notes.headers, notes.body, notes.endings, notes.because)
    return told, talk.released - before, talk.wire.is_open


async def test_known_response_heads_are_read_as_the_parser_reads_them() -> None:
    fuzzer = Fuzzer(random.Random(16), status_line)  # noqa: S311  # a fixed seed
    hits = 0
    talk = Talk()
    previous = fuzzer.message()
    for _ in range(HEADS):
        data = fuzzer.variation(previous if fuzzer.chance.random() < 0.9 else fuzzer.message())
        memo = talk.connection._memo  # pyright: ignore[reportPrivateUsage]  # what it keeps
        is_known = memo.find(data) is not None
        found: Any = heard(talk, data)
        assert found == heard(Talk(), data), data
        (status, headers, body, endings, _), kept, _ = found
        if is_known and kept:
            hits += 1
            assert (status, headers, body) == parsed_response(data), data
        if endings != ["ended"] or not kept or fuzzer.chance.random() < 0.02:
            talk = Talk()
            previous = fuzzer.message()
            heard(talk, previous if fuzzer.chance.random() < 0.5 else fuzzer.variation(previous))
            if not talk.released:
                talk = Talk()
    assert hits > HEADS / 5


HEAD = b"POST /mcp HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\nx: %d\r\n\r\n"


def learned(*numbers: int) -> HeadMemo[int]:
    memo = HeadMemo[int]()
    for number in numbers:
        headers = [(b"host", b"x"), (b"content-length", b"5"), (b"x", b"%d" % number)]
        memo.learn(HEAD % (5, number), headers, number)
    return memo


def test_a_connection_remembers_few_heads_and_stops_learning() -> None:
    memo = learned(*range(MAX_HEADS + 1))
    assert memo.find(HEAD % (5, 0)) is None
    found = memo.find(HEAD % (12345, MAX_HEADS) + b"body")
    assert found == (MAX_HEADS, len(HEAD % (12345, MAX_HEADS)), 12345)
    memo = learned(*range(MAX_LEARNED + 1))
    assert memo.find(HEAD % (5, MAX_LEARNED)) is None


def test_a_long_head_is_not_remembered() -> None:
    memo = HeadMemo[int]()
    value = b"v" * MAX_HEAD_BYTES
    data = b"POST / HTTP/1.1\r\ncontent-length: 5\r\nx: " + value + b"\r\n\r\n"
    memo.learn(data, [(b"content-length", b"5"), (b"x", value)], 1)
    assert memo.find(data) is None


def test_a_head_that_was_read_otherwise_is_not_remembered() -> None:
    memo = HeadMemo[int]()
    memo.learn(HEAD % (5, 1), [(b"host", b"y"), (b"content-length", b"5"), (b"x", b"1")], 1)
    assert memo.find(HEAD % (5, 1)) is None
