"""Load over HTTP: raw keep-alive sockets and prebuilt bytes, with a check of every answer."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from bench.eras import CallTemplate, Era, call_body, http_headers, initialize_body, initialized_body
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
    sessions: list[str | None] = field(default_factory=list[str | None])

    async def measure(self, concurrency: int, budget: Budget, cpu: Callable[[], float]) -> Slice:
        """Connects, makes one call per connection unmeasured, then measures."""
        await self._open_sessions(concurrency)
        stretch = Stretch()
        callers = [await self._connect(stretch, self.sessions[i]) for i in range(concurrency)]
        try:
            await stretch.run(list(callers), Budget(concurrency, 1.0))
            return await timed(stretch, list(callers), budget, cpu)
        finally:
            for caller in callers:
                caller.close()

    async def _connect(self, stretch: Stretch, session: str | None) -> HttpCaller:
        body = call_body(self.era)
        request = self._request(body, http_headers(self.era, "tools/call", "echo", session))
        template = CallTemplate.cut(request)
        loop = asyncio.get_running_loop()
        _, caller = await loop.create_connection(
            lambda: HttpCaller(stretch, template), self.host, self.port
        )
        return caller

    async def _open_sessions(self, count: int) -> None:
        while len(self.sessions) < count:
            self.sessions.append(await self._shake_hands() if self.era == "handshake" else None)

    async def _shake_hands(self) -> str | None:
        headers = http_headers(self.era, "initialize", None, None)
        response = await self.ask(initialize_body(), headers)
        if response.status != 200 or b'"result"' not in response.body:
            raise WrongAnswer(f"initialize was answered {response.status} {response.body[:300]!r}")
        session = response.header(b"mcp-session-id")
        note = http_headers(self.era, "notifications/initialized", None, session)
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

    def _request(self, body: bytes, headers: dict[str, str]) -> bytes:
        lines = [f"POST {self.path} HTTP/1.1", f"Host: {self.host}:{self.port}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body
