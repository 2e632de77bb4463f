"""Load over HTTP: raw keep-alive sockets and prebuilt bytes, with a check of every answer."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from bench.bodies import PLAIN, Body
from bench.eras import (
    CallTemplate,
    Era,
    call_bodies,
    http_headers,
    initialize_body,
    initialized_body,
)
from bench.http_answers import Response, WrongAnswer, check_response, read_response
from bench.load import ANSWER_WITHIN_SECONDS, Budget, Slice, Stretch, timed


class HttpCaller(asyncio.Protocol):
    """One keep-alive connection to a relay."""

    def __init__(self, stretch: Stretch, template: CallTemplate) -> None:
        self._stretch = stretch
        self._template = template
        self._buffer = b""
        self._number = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._stretch.failed(WrongAnswer(f"the relay closed the connection: {exc}"))

    def send(self, number: int) -> None:
        self._number = number
        if self._transport is not None:
            self._transport.write(self._template.numbered(number))

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        try:
            response = read_response(self._buffer)
            if response is None:
                return
            check_response(response, self._number)
        except (WrongAnswer, ValueError) as reason:
            self._stretch.failed(reason)
            return
        self._buffer = b""
        self._stretch.answered(self)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


@dataclass(slots=True)
class HttpTarget:
    """A relay, or the stub itself, reached over HTTP."""

    host: str
    port: int
    path: str
    era: Era
    tool: str = "echo"
    # Each connection shows one of these, in turn; without any, none shows who it is.
    credentials: Sequence[str] = ()
    sessions: list[str | None] = field(default_factory=list[str | None])

    async def measure(
        self,
        concurrency: int,
        budget: Budget,
        cpu: Callable[[], float],
        body: Body = PLAIN,
    ) -> Slice:
        """Connects, makes one call per connection unmeasured, then measures."""
        await self.open_sessions(concurrency)
        stretch = Stretch()
        callers = [await self.connect(stretch, order, body) for order in range(concurrency)]
        try:
            await stretch.run(list(callers), Budget(concurrency, 1.0))
            return await timed(stretch, list(callers), budget, cpu)
        finally:
            for caller in callers:
                caller.close()

    async def connect(self, stretch: Stretch, order: int, body: Body = PLAIN) -> HttpCaller:
        """A caller on a connection of its own, in the session of that number."""
        headers = self.headers_of(order)
        bodies = call_bodies(self.era, self.tool, body)
        template = CallTemplate.cut(*(self._request(each, headers) for each in bodies))
        loop = asyncio.get_running_loop()
        _, caller = await loop.create_connection(
            lambda: HttpCaller(stretch, template), self.host, self.port
        )
        return caller

    async def open_sessions(self, count: int) -> None:
        while (order := len(self.sessions)) < count:
            modern = self.era == "modern"
            self.sessions.append(None if modern else await self._shake_hands(order))

    async def _shake_hands(self, order: int) -> str | None:
        headers = self._headers("initialize", None, order, None)
        response = await self.ask(initialize_body(), headers)
        if response.status != 200 or b'"result"' not in response.body:
            raise WrongAnswer(f"initialize was answered {response.status} {response.body[:300]!r}")
        session = response.header(b"mcp-session-id")
        note = self._headers("notifications/initialized", None, order, session)
        if (accepted := await self.ask(initialized_body(), note)).status != 202:
            raise WrongAnswer(f"initialized was answered {accepted.status}")
        return session

    async def ask(self, body: bytes, headers: dict[str, str]) -> Response:
        """One request on a connection of its own, for what is not measured."""
        async with asyncio.timeout(ANSWER_WITHIN_SECONDS):
            reader, writer = await asyncio.open_connection(self.host, self.port)
            try:
                writer.write(self._request(body, headers))
                data = b""
                while (response := read_response(data)) is None:
                    received = await reader.read(1 << 16)
                    if not received:
                        raise WrongAnswer(f"connection closed after {data[:200]!r}")
                    data += received
                return response
            finally:
                writer.close()

    def headers_of(self, order: int) -> dict[str, str]:
        """What the caller of that number sends beside a call."""
        return self._headers("tools/call", self.tool, order, self.sessions[order])

    def _headers(
        self, method: str, name: str | None, order: int, session: str | None
    ) -> dict[str, str]:
        headers = http_headers(self.era, method, name, session)
        if self.credentials:
            shown = self.credentials[order % len(self.credentials)]
            headers["Authorization"] = f"Bearer {shown}"
        return headers

    def _request(self, body: bytes, headers: dict[str, str]) -> bytes:
        lines = [f"POST {self.path} HTTP/1.1", f"Host: {self.host}:{self.port}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body
