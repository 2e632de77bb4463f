"""Three processes for downloads through the egress proxy: a web server, a proxy and a client.

`python -m tests.scale.egress_downloads ROLE [NUMBER …]` runs one of them. `files.example.com` has a
public address in the proxy's resolver, and the connection then goes to the web server here.
"""

import asyncio
import random
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import cast

from comity.http.client.dial import HttpOrigin, open_tunnel
from comity.http.server import event_loop
from comity.servers.sandbox.egress import EgressEvent, EgressProxy
from comity.servers.sandbox.egress_rules import EgressRules

HOST = "files.example.com"
BLOCK = random.Random(79).randbytes(1 << 20)  # noqa: S311  # the same bytes in each run
TWICE = memoryview(BLOCK + BLOCK)
WINDOW = 1 << 18
# All downloads read into the same memory, which keeps it in the cache of the processor.
BUFFER = memoryview(bytearray(WINDOW))


class WebServer(asyncio.Protocol):
    """Answers `GET /BYTES` with so many bytes of the repeated block."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.head = b""
        self.sent = self.size = 0
        self.is_paused = False

    def data_received(self, data: bytes) -> None:
        self.head += data
        if self.head.endswith(b"\r\n\r\n"):
            self.size = int(self.head.split(b" ")[1].rpartition(b"/")[2])
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % self.size)
            self.send()

    def send(self) -> None:
        while not self.is_paused and self.sent < self.size:
            begin = self.sent % len(BLOCK)
            part = TWICE[begin : begin + min(WINDOW, self.size - self.sent)]
            self.sent += len(part)
            self.transport.write(part)
        if self.sent == self.size:
            self.transport.close()

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        self.send()


class Download(asyncio.BufferedProtocol):
    """Requests one file and compares every byte of it."""

    def __init__(self, request: bytes, size: int) -> None:
        self.request = request
        self.size = size
        self.got = 0
        self.is_in_body = False
        self.head = b""
        self.ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self.request)

    def get_buffer(self, sizehint: int) -> memoryview:
        return BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        part = BUFFER[:nbytes]
        if not self.is_in_body:
            self.head += bytes(part)
            head, blank, rest = self.head.partition(b"\r\n\r\n")
            self.is_in_body = bool(blank)
            assert not blank or b" 200 " in head.partition(b"\r\n")[0], head
            part = memoryview(rest)
        begin = self.got % len(BLOCK)
        if part != TWICE[begin : begin + len(part)]:
            self.ended.set_exception(AssertionError(f"wrong bytes after {self.got}"))
        self.got += len(part)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(self.got == self.size)


async def download(port: int, proxy: int, count: int, size: int) -> float:
    """Download a file so many times at once. Return the megabytes of each second.

    Without a port of a proxy, the connections go to the web server directly.
    """
    loop = asyncio.get_running_loop()
    address = f"http://{HOST}:8080" if proxy else ""
    request = f"GET {address}/{size} HTTP/1.1\r\nHost: {HOST}:8080\r\n\r\n".encode()
    begun = time.perf_counter()

    async def one() -> bool:
        _, made = await loop.create_connection(
            lambda: Download(request, size), "127.0.0.1", proxy or port
        )
        return await made.ended

    assert all(await asyncio.gather(*(one() for _ in range(count))))
    return count * size / 1e6 / (time.perf_counter() - begun)


async def resolve(name: str) -> Sequence[str]:
    return ["93.184.216.34"] if name == HOST else []


async def run_proxy(port: int) -> None:
    async def connect(
        origin: HttpOrigin, addresses: Sequence[str], make: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        assert addresses == ["93.184.216.34"]
        here = HttpOrigin(origin.scheme, origin.host, port)
        await open_tunnel(here, ["127.0.0.1"], None, make)

    def ignore(event: EgressEvent) -> None: ...

    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    rules = EgressRules([f"{HOST}:8080"])
    proxy = EgressProxy("files", listener, rules, resolve=resolve, connect=connect, on_event=ignore)
    await proxy.start()
    await asyncio.Event().wait()


async def run_web_server() -> None:
    server = await asyncio.get_running_loop().create_server(WebServer, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


async def run_rounds(port: int, proxy: int, rounds: int, count: int, size: int) -> None:
    for _ in range(rounds):
        direct = await download(port, 0, count, size)
        print(f"{direct:.1f} {await download(port, proxy, count, size):.1f}", flush=True)


if __name__ == "__main__":
    role, *numbers = sys.argv[1:]
    arguments = [int(each) for each in numbers]
    runs = {"web": run_web_server, "proxy": run_proxy, "client": run_rounds}
    with asyncio.Runner(loop_factory=event_loop) as runner:
        runner.run(runs[role](*arguments))
