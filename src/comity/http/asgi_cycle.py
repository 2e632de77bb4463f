"""One request that is served as ASGI: its body, its application task and its response."""

import asyncio
import logging
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, Protocol

from comity.http.asgi import HeaderList, Message, Scope

log = logging.getLogger(__name__)

type Application = Callable[..., Any]

MAX_BUFFERED_BODY: Final = 64 * 1024
"""The bytes of a body that may wait for the application before reading pauses."""

_STATUS_LINES: Final = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode())
    for status in HTTPStatus
}
# A header of the application must not be able to end its line. (response splitting)
_BAD_NAME: Final = re.compile(rb'[\x00-\x1f\x7f()<>@,;:\[\]={} \t\\"]|^$')
_BAD_VALUE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_WITHOUT_BODY: Final = frozenset({204, 304})
_SERVER_ERROR: Final[Message] = {
    "type": "http.response.start",
    "status": 500,
    "headers": [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", b"21"),
        (b"connection", b"close"),
    ],
}


class CycleConnection(Protocol):
    """The connection of a request that is served as ASGI."""

    @property
    def transport(self) -> asyncio.Transport: ...
    @property
    def writable(self) -> asyncio.Event | None:
        """Set once the client reads again. None while nothing is blocked."""
        ...

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def on_response_complete(self) -> None: ...


class AsgiCycle:
    """The body of one request for the application, and the application's response."""

    def __init__(
        self,
        connection: CycleConnection,
        app: Application,
        scope: Scope,
        *,
        keep_alive: bool,
        expects_continue: bool = False,
    ) -> None:
        self.scope = scope
        self.keep_alive = keep_alive
        self.response_complete = False
        self._connection = connection
        self._app = app
        self._expects_continue = expects_continue
        self._body = bytearray()
        self._has_more_body = True
        self._is_disconnected = False
        self._changed = asyncio.Event()
        self._response_started = False
        self._has_body = self._is_chunked = False
        # How much of a body with a stated length is not written yet.
        self._unwritten: int | None = None

    # Methods for the connection.

    def add_body(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > MAX_BUFFERED_BODY:
            self._connection.pause_reading()
        self._changed.set()

    def end_body(self) -> None:
        self._has_more_body = False
        self._changed.set()

    def disconnect(self) -> None:
        """Note that the client has gone."""
        if not self.response_complete:
            self._is_disconnected = True
        self._changed.set()

    def hand_over(self) -> None:
        """Note that another protocol uses the connection now, so that there is no response."""
        self._response_started = self.response_complete = True

    async def run(self) -> None:
        """Run the application. Close the connection if it does not finish its response."""
        transport = self._connection.transport
        try:
            await self._app(self.scope, self._receive, self._send)
            if self.response_complete or self._is_disconnected:
                return
            log.error("the application returned before its response was complete")
        except asyncio.CancelledError:
            transport.abort()
            raise
        except Exception:
            log.exception("the application failed")
        if self._response_started:
            transport.close()
        else:
            await self._send(_SERVER_ERROR)
            await self._send({"type": "http.response.body", "body": b"Internal Server Error"})

    # The ASGI interface.

    async def _receive(self) -> Message:
        connection = self._connection
        if self._expects_continue and not connection.transport.is_closing():
            connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._expects_continue = False
        if not self._is_disconnected and not self.response_complete:
            connection.resume_reading()
            await self._changed.wait()
            self._changed.clear()
        if self._is_disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), bytearray()
        return {"type": "http.request", "body": body, "more_body": self._has_more_body}

    async def _send(self, message: Message) -> None:
        writable = self._connection.writable
        if writable is not None and not self._is_disconnected:
            await writable.wait()
        if self._is_disconnected:
            return
        kind = message["type"]
        if self.response_complete:
            raise RuntimeError(f"{kind} after the end of the response")
        if kind != ("http.response.body" if self._response_started else "http.response.start"):
            raise RuntimeError(f"unexpected ASGI message {kind}")
        if self._response_started:
            self._write_body(message.get("body", b""), message.get("more_body", False))
        else:
            self._write_head(message["status"], message.get("headers", ()))

    def _write_head(self, status: int, headers: HeaderList) -> None:
        lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
        stated: int | None = None
        for name, value in headers:
            if _BAD_NAME.search(name) or _BAD_VALUE.search(value):
                raise RuntimeError(f"the response has an invalid header: {name!r}")
            lowered = name.lower()
            if lowered == b"connection":
                self.keep_alive = self.keep_alive and b"close" not in value.lower()
                continue
            if lowered == b"content-length":
                stated = int(value)
            lines.append(b"%b: %b\r\n" % (lowered, value))
        self._response_started = True
        self._expects_continue = False
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        self._has_body = self.scope["method"] != "HEAD" and status not in _WITHOUT_BODY
        if self._has_body:
            self._unwritten = stated
            # To a client of HTTP/1.0, the end of the connection is the end of the body.
            self._is_chunked = stated is None and self.scope["http_version"] != "1.0"
            if self._is_chunked:
                lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        self._connection.transport.write(b"".join(lines))

    def _write_body(self, body: bytes, has_more: bool) -> None:
        transport = self._connection.transport
        if self._is_chunked:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            transport.write(chunk if has_more else chunk + b"0\r\n\r\n")
        elif self._has_body:
            if self._unwritten is not None:
                self._unwritten -= len(body)
                if self._unwritten < 0 or (self._unwritten and not has_more):
                    raise RuntimeError("the body of the response has not its content-length")
            transport.write(body)
        if not has_more:
            self.response_complete = True
            self._changed.set()
            if not self.keep_alive:
                transport.close()
            self._connection.on_response_complete()
