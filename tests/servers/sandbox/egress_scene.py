"""A real egress proxy between a client, a listener that is granted and one that is forbidden.

Everything stays on loopback. The resolver knows a few public names; a connection to a public
address goes to the granted listener if it is that of `api.example.com`, and to the forbidden one
otherwise. A connection to any other address is opened as it is.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from comity.http.client.dial import HttpOrigin, open_tunnel
from comity.servers.sandbox.egress import EgressEvent, EgressLimits, EgressProxy
from comity.servers.sandbox.egress_rules import EgressRules

SECONDS = 20.0
API, OTHER, OWN = "93.184.216.34", "93.184.216.99", "93.184.216.7"
LIMITS = EgressLimits(head_seconds=0.5, connect_seconds=5.0, farewell_seconds=1.0)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


@dataclass
class Listener:
    """A TCP listener that counts accepts and keeps what it receives."""

    answer: bytes = OK
    until: tuple[bytes, ...] = (b"\r\n\r\n", b"!")
    accepts: int = 0
    received: bytearray = field(default_factory=bytearray)
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepts += 1
        try:
            while data := await reader.read(65536):
                self.received += data
                if self.answer and self.received.endswith(self.until):
                    writer.write(self.answer)
                    await writer.drain()
                    break
        except ConnectionError:
            pass
        finally:
            writer.close()


@dataclass
class EgressScene:
    """The proxy of a server, what its connections reached, and what it reported."""

    proxy: EgressProxy
    port: int
    granted: Listener
    forbidden: Listener
    events: list[EgressEvent]
    resolved: list[str]

    async def exchange(self, *parts: bytes) -> bytes:
        """Send the parts one by one to the proxy, and return all that comes back."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        return await converse(reader, writer, parts)

    async def tunnel(self, *parts: bytes, target: str = "api.example.com:443") -> bytes:
        """Open a tunnel, send the parts, and return all that comes back through it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        async with asyncio.timeout(SECONDS):
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        return await converse(reader, writer, parts)


async def converse(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, parts: Sequence[bytes]
) -> bytes:
    found = b""
    try:
        async with asyncio.timeout(SECONDS):
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)
            while data := await reader.read(65536):
                found += data
    except ConnectionError:
        pass
    finally:
        writer.close()
    return found


class NameTable:
    """A resolver of fixed names. One of them has another address each time."""

    def __init__(self) -> None:
        self.resolved: list[str] = []

    async def resolve(self, name: str) -> Sequence[str]:
        self.resolved.append(name)
        if name == "rebind.example.com":
            return [API if self.resolved.count(name) == 1 else "127.0.0.1"]
        return {
            "api.example.com": [API],
            "private.example.com": ["10.0.0.1"],
            "loop.example.com": ["127.0.0.1"],
            "mixed.example.com": [API, "127.0.0.1"],
            "mapped.example.com": ["::ffff:127.0.0.1"],
            "nat64.example.com": ["64:ff9b::7f00:1"],
            "sixtofour.example.com": ["2002:7f00:1::"],
            "metadata.example.com": ["169.254.169.254"],
            "gateway.example.com": [OWN],
            "self.example.com": [API],
            "nowhere.example.com": [],
        }.get(name, [OTHER])


@asynccontextmanager
async def egress_scene(
    *reaches: str,
    own: Sequence[tuple[str, int]] = (),
    limits: EgressLimits = LIMITS,
    send_buffer: int = 0,
) -> AsyncGenerator[EgressScene]:
    """Open a scene. `{port}` in a reach is the port of the forbidden listener."""
    granted, forbidden, names = Listener(), Listener(), NameTable()
    servers = [await _listen(granted), await _listen(forbidden)]
    servers.append(
        await asyncio.start_server(forbidden.serve, "::1", forbidden.port, family=socket.AF_INET6)
    )

    async def connect(
        origin: HttpOrigin, addresses: Sequence[str], make: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        port = origin.port
        if addresses and addresses[0].startswith("93."):
            port = granted.port if addresses[0] == API else forbidden.port
            addresses = ["127.0.0.1"]
        await open_tunnel(HttpOrigin(origin.scheme, origin.host, port), addresses, None, make)

    events: list[EgressEvent] = []
    listener = socket.create_server(("127.0.0.1", 0))
    if send_buffer:
        # The sockets of its connections have it too.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    port = listener.getsockname()[1]
    rules = EgressRules(
        [each.format(port=forbidden.port) for each in reaches],
        lambda: [(host, own_port or forbidden.port) for host, own_port in own],
    )
    proxy = EgressProxy(
        "files",
        listener,
        rules,
        resolve=names.resolve,
        connect=connect,
        on_event=events.append,
        limits=limits,
    )
    await proxy.start()
    try:
        yield EgressScene(proxy, port, granted, forbidden, events, names.resolved)
    finally:
        await proxy.close()
        for server in servers:
            server.close()


async def _listen(listener: Listener) -> asyncio.Server:
    server = await asyncio.start_server(listener.serve, "127.0.0.1", 0)
    listener.port = server.sockets[0].getsockname()[1]
    return server


def client_hello(name: str | None) -> bytes:
    """Return the first bytes of a real TLS client that asks for this server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def small_hello(*extensions: bytes) -> bytes:
    """Return a short ClientHello in one record, with these extensions."""
    joined = b"".join(extensions)
    content = b"\x03\x03" + bytes(32) + b"\0" + b"\0\x02\x13\x01" + b"\x01\0"
    content += len(joined).to_bytes(2) + joined
    message = b"\x01" + len(content).to_bytes(3) + content
    return b"\x16\x03\x01" + len(message).to_bytes(2) + message


def name_extension(*names: bytes) -> bytes:
    entries = b"".join(b"\0" + len(name).to_bytes(2) + name for name in names)
    content = len(entries).to_bytes(2) + entries
    return b"\0\0" + len(content).to_bytes(2) + content
