"""Brings one post to one place: to the very address that was looked at, and never elsewhere.

Rule 1: a host is resolved once for each attempt, and what it resolves to is looked at before it is
        connected to. TLS is for the host's name, the connection for that address. (attack 9)
        A proxy resolves names by itself: then only what this machine knows of a name is looked at,
        and which inner hosts can be reached is the proxy's to say.
Rule 2: no redirection, no second use of a connection.
Rule 3: an answer is read as far as its status needs, or as far as was asked for; all in bounded
        time, whoever is slow.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Final, Protocol, cast

import httptools

from comity.adapters.requesting import NO_PROXIES
from comity.adapters.upstream.dialling import Proxy, chosen_by
from comity.adapters.upstream.origin import Origin
from comity.ports.webhooks import Answered
from comity.rules.addresses import address
from comity.rules.proxies import Proxies
from comity.rules.webhooks import address_problem
from comity.wire.webhooks import Place, Problem

MOST_ADDRESSES: Final = 3
MOST_HEAD: Final = 32 * 1024
_PIECE: Final = 4096

type Resolve = Callable[[str], Awaitable[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long connecting may take, and all of it: writing, the answer's head, and its body."""

    connect: float = 5.0
    whole: float = 10.0


class _Parser(Protocol):
    """As much as is used here of httptools' parser."""

    def feed_data(self, data: bytes) -> None: ...
    def get_status_code(self) -> int: ...


class _Reply:
    """What has been heard of an answer so far."""

    def __init__(self, most: int) -> None:
        self.parser = cast("_Parser", httptools.HttpResponseParser(self))
        self.has_head = False
        self.is_whole = False
        self.again_in = timedelta(0)
        self.body = bytearray()
        self._most = most
        self._read = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after" and value.isdigit() and len(value) < 8:
            self.again_in = timedelta(seconds=int(value))

    def on_headers_complete(self) -> None:
        # What only announces that an answer comes is none.
        self.has_head = self.parser.get_status_code() >= 200

    def on_body(self, data: bytes) -> None:
        self.body += data[: self._most - len(self.body)]

    def on_message_complete(self) -> None:
        self.is_whole = self.has_head

    @property
    def is_enough(self) -> bool:
        return self.has_head and (self.is_whole or len(self.body) >= self._most)

    def feed(self, data: bytes) -> None:
        """Raises ValueError where it is no HTTP, or no end of it is in sight."""
        self._read += len(data)
        if self._read > MOST_HEAD + self._most:
            raise ValueError("the answer is too long")
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            # What follows a whole answer is of no interest, whatever it is.
            if not self.is_enough:
                raise ValueError("what answers speaks no HTTP") from None


class Sender:
    """Posts to any place that may be posted to; each in a connection of its own."""

    def __init__(
        self,
        resolve: Resolve,
        deadlines: Deadlines | None = None,
        trusted: ssl.SSLContext | None = None,
        proxies: Proxies = NO_PROXIES,
    ) -> None:
        self._choose_proxy = chosen_by(proxies)
        self._resolve = resolve
        self._deadlines = deadlines or Deadlines()
        self._trusted = trusted

    @cached_property
    def tls(self) -> ssl.SSLContext:
        return self._trusted or ssl.create_default_context()

    async def post(
        self, where: Place, heading: Mapping[str, str], body: bytes, most: int = 0
    ) -> Answered | Problem:
        try:
            async with asyncio.timeout(self._deadlines.whole):
                found = await self._addresses(where)
                proxy = self._proxy_of(where)
                if (found or proxy is None) and address_problem(where, found) is not None:
                    return Problem.FORBIDDEN
                head = _head(where, heading, body)
                return await (
                    self._exchange(where, found, head + body, most)
                    if proxy is None
                    else self._exchange_through(proxy, where, head, body, most)
                )
        except TimeoutError:
            return Problem.TIMEOUT
        except ssl.SSLError:
            return Problem.TLS
        except OSError:
            return Problem.REFUSED
        except ValueError:
            return Problem.NO_HTTP

    async def _addresses(self, where: Place) -> Sequence[str]:
        if address(where.host) is not None:
            return (where.host,)
        return (await self._resolve(where.host))[:MOST_ADDRESSES]

    def _proxy_of(self, where: Place) -> Proxy | None:
        return None if self._choose_proxy is None else self._choose_proxy(_origin(where))

    async def _exchange_through(
        self, proxy: Proxy, where: Place, head: bytes, body: bytes, most: int
    ) -> Answered:
        origin = _origin(where)
        async with asyncio.timeout(self._deadlines.connect):
            reader, writer = await asyncio.open_connection(proxy.origin.host, proxy.origin.port)
        try:
            if where.scheme == "https":
                await self._open_tunnel(proxy, origin, reader, writer)
            else:
                lines, _, _ = head.partition(b"\r\n\r\n")
                head = proxy.absolute_form(origin, lines + b"\r\n") + b"\r\n"
            writer.write(head + body)
            await writer.drain()
            return await _answer(reader, most)
        finally:
            writer.transport.abort()

    async def _open_tunnel(
        self,
        proxy: Proxy,
        origin: Origin,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        writer.write(proxy.connect_request(origin))
        await writer.drain()
        answered = await _answer(reader, 0)
        if not 200 <= answered.status < 300:
            raise ConnectionRefusedError(f"the proxy answered {answered.status}")
        await writer.start_tls(self.tls, server_hostname=origin.host)

    async def _exchange(
        self, where: Place, addresses: Sequence[str], sent: bytes, most: int
    ) -> Answered:
        reader, writer = await self._connected(where, addresses)
        try:
            writer.write(sent)
            await writer.drain()
            return await _answer(reader, most)
        finally:
            writer.transport.abort()

    async def _connected(
        self, where: Place, addresses: Sequence[str]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        tls = self.tls if where.scheme == "https" else None
        name = where.host if tls is not None else None
        async with asyncio.timeout(self._deadlines.connect):
            for each in addresses[:-1]:
                with suppress(ConnectionError):
                    return await asyncio.open_connection(
                        each, where.port, ssl=tls, server_hostname=name
                    )
            return await asyncio.open_connection(
                addresses[-1], where.port, ssl=tls, server_hostname=name
            )


def _origin(where: Place) -> Origin:
    return Origin(where.scheme, where.host, where.port)


async def _answer(reader: asyncio.StreamReader, most: int) -> Answered:
    reply = _Reply(most)
    while not reply.is_enough:
        data = await reader.read(_PIECE)
        if not data:
            break
        reply.feed(data)
    if not reply.has_head:
        raise ValueError("it went away without an answer")
    return Answered(reply.parser.get_status_code(), reply.again_in, bytes(reply.body))


def _head(where: Place, heading: Mapping[str, str], body: bytes) -> bytes:
    lines = [
        f"POST {where.path} HTTP/1.1",
        f"Host: {where.authority}",
        "User-Agent: comity",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in heading.items()),
        "Connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode("ascii")
