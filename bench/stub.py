"""A tool server that costs almost nothing, so that the relay in front of it is what is measured.

It speaks both MCP eras, over HTTP (`python -m bench.stub http`) and stdio (`python -m bench.stub
stdio`), and offers one tool, `echo`. It refuses requests that lack what their era demands, so that
a relay cannot win by leaving something out.
"""

import argparse
import asyncio
import os
import secrets
import sys
from collections.abc import Callable
from typing import cast

import msgspec
import uvloop

from bench.eras import HANDSHAKE, MODERN

_IDENTITY = b'{"name":"stub","version":"1"}'
_STAMP = b',"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":%b}' % _IDENTITY
_CACHE = b',"ttlMs":60000,"cacheScope":"public"'
_ECHO = (
    b'{"name":"echo","description":"Says what it was told.","inputSchema":{"type":"object",'
    b'"properties":{"text":{"type":"string"},"loud":{"type":"boolean"}},"required":["text"]}}'
)
_INITIALIZED = (
    b'{"protocolVersion":"%b","capabilities":{"tools":{}},"serverInfo":%b}'
    % (HANDSHAKE.encode(), _IDENTITY)
)  # fmt: skip
_DISCOVERED = b'{"supportedVersions":["%b"],"capabilities":{"tools":{}}%b%b}' % (
    MODERN.encode(),
    _CACHE,
    _STAMP,
)
_FIXED = {
    (True, "server/discover"): _DISCOVERED,
    (True, "tools/list"): b'{"tools":[%b]%b%b}' % (_ECHO, _CACHE, _STAMP),
    (False, "initialize"): _INITIALIZED,
    (False, "tools/list"): b'{"tools":[%b]}' % _ECHO,
    (False, "ping"): b"{}",
}

_METHOD_NOT_FOUND = b'{"code":-32601,"message":"Method not found"}'
_INVALID_PARAMS = b'{"code":-32602,"message":"Invalid params"}'
_HEADER_MISMATCH = b'{"code":-32020,"message":"Mcp-Method does not match the body"}'
_NO_SESSION = b'{"code":-32600,"message":"Missing Mcp-Session-Id"}'
_PARSE_ERROR = b'{"code":-32700,"message":"Parse error"}'


class Request(msgspec.Struct):
    """What the stub reads of any message; a missing id makes it a notification."""

    method: str = ""
    id: msgspec.Raw = msgspec.Raw()
    params: msgspec.Raw = msgspec.Raw(b"{}")


class _EchoArguments(msgspec.Struct):
    # Raw, so that the answer has the escapes that the call had.
    text: msgspec.Raw


class _EchoParams(msgspec.Struct):
    name: str
    arguments: _EchoArguments


_decode = msgspec.json.Decoder(Request).decode
_decode_echo = msgspec.json.Decoder(_EchoParams).decode


def answer(request: Request, *, modern: bool) -> bytes:
    """The whole JSON-RPC response to `request`."""
    if request.method == "tools/call":
        return _answer_call(request, modern=modern)
    result = _FIXED.get((modern, request.method))
    if result is None:
        return _failure(request.id, _METHOD_NOT_FOUND)
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (request.id, result)


def _answer_call(request: Request, *, modern: bool) -> bytes:
    try:
        params = _decode_echo(request.params)
    except msgspec.DecodeError:
        return _failure(request.id, _INVALID_PARAMS)
    text = bytes(params.arguments.text)
    if not text.startswith(b'"'):
        return _failure(request.id, _INVALID_PARAMS)
    return b'{"jsonrpc":"2.0","id":%b,"result":{"content":[{"type":"text","text":%b}]%b}}' % (
        request.id,
        text,
        _STAMP if modern else b"",
    )


def _failure(request_id: bytes | msgspec.Raw, error: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (request_id or b"null", error)


class HttpStub(asyncio.Protocol):
    """One keep-alive connection; requests must carry a Content-Length."""

    def __init__(self) -> None:
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._buffer = self._buffer + data if self._buffer else data
        while (head_end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:head_end].lower()
            end = head_end + 4 + _content_length(head)
            if len(self._buffer) < end:
                return
            body, self._buffer = self._buffer[head_end + 4 : end], self._buffer[end:]
            self._transport.write(respond(head, body))


def _content_length(head: bytes) -> int:
    found = head.find(b"\r\ncontent-length:")
    if found < 0:
        return 0
    line_end = head.find(b"\r\n", found + 2)
    return int(head[found + 17 : line_end if line_end >= 0 else None])


def respond(head: bytes, body: bytes) -> bytes:
    """The HTTP response to one request, `head` being its lower-cased first part."""
    if not head.startswith(b"post "):
        return _http(b"200 OK" if head.startswith(b"delete ") else b"405 Method Not Allowed")
    try:
        request = _decode(body)
    except msgspec.DecodeError:
        return _http(b"400 Bad Request", _failure(b"null", _PARSE_ERROR))
    if not request.id:
        return _http(b"202 Accepted")
    modern = MODERN.encode() in head
    if lack := _lack(head, request, modern=modern):
        return _http(b"400 Bad Request", _failure(request.id, lack))
    if request.method == "initialize":
        session = b"mcp-session-id: %b\r\n" % secrets.token_hex(16).encode()
        return _http(b"200 OK", answer(request, modern=modern), session)
    return _http(b"200 OK", answer(request, modern=modern))


def _lack(head: bytes, request: Request, *, modern: bool) -> bytes:
    """The error for a header that the era demands and `head` does not have."""
    if modern:
        stated = b"\r\nmcp-method: %b\r" % request.method.encode() in head + b"\r"
        return b"" if stated else _HEADER_MISMATCH
    named = request.method == "initialize" or b"\r\nmcp-session-id: " in head
    return b"" if named else _NO_SESSION


def _http(status: bytes, body: bytes = b"", headers: bytes = b"") -> bytes:
    kind = b"content-type: application/json\r\n" if body else b""
    return b"HTTP/1.1 %b\r\n%b%bcontent-length: %d\r\n\r\n%b" % (
        status,
        kind,
        headers,
        len(body),
        body,
    )


async def serve_http(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(HttpStub, "127.0.0.1", port)
    bound = server.sockets[0].getsockname()[1]
    print(f"stub: listening on http://127.0.0.1:{bound}", file=sys.stderr, flush=True)
    await server.serve_forever()


def serve_stdio(
    read: Callable[[], bytes] = lambda: os.read(0, 1 << 16),
    write: Callable[[bytes], object] = lambda data: os.write(1, data),
) -> None:
    """Answers lines until the input ends; the first request fixes the era."""
    modern: bool | None = None
    rest = b""
    while chunk := read():
        *lines, rest = (rest + chunk).split(b"\n")
        answers: list[bytes] = []
        for request in map(_decode, filter(None, lines)):
            if not request.id:
                continue
            if modern is None:
                modern = request.method != "initialize"
            answers.append(answer(request, modern=modern) + b"\n")
        _write_all(b"".join(answers), write)


def _write_all(data: bytes, write: Callable[[bytes], object]) -> None:
    while data:
        written = write(data)
        data = data[written:] if isinstance(written, int) else b""


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.stub")
    parser.add_argument("transport", choices=["http", "stdio"])
    parser.add_argument("--port", type=int, default=0)
    chosen = parser.parse_args()
    if chosen.transport == "stdio":
        serve_stdio()
    else:
        uvloop.run(serve_http(chosen.port))


if __name__ == "__main__":
    main()
