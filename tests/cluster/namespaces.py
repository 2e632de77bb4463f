"""A network namespace of a test's own, which can be cut off from everything as a cable is.

What runs inside reaches the outside through one address, where what it needs is passed on to
loopback; and nothing else of this machine.
"""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from tests.interop.peers import ROOT

IP = shutil.which("ip") or "/usr/sbin/ip"
MOST = 64 * 1024
SECONDS = 60.0

type Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def can_be_made() -> bool:
    """Whether this machine lets somebody make one."""
    if os.geteuid() != 0 or not Path(IP).exists():
        return False
    name = f"comity-{token_hex(3)}"
    made = subprocess.run([IP, "netns", "add", name], capture_output=True, check=False)
    if made.returncode == 0:
        subprocess.run([IP, "netns", "del", name], check=True)
    return made.returncode == 0


@dataclass(frozen=True, slots=True)
class Namespace:
    name: str
    link: str
    inside: str
    outside: str
    ports: Mapping[int, int]
    """By the port on loopback, the port at `outside` that leads there."""

    @property
    def enter(self) -> list[str]:
        """What a command begins with that runs inside."""
        return [IP, "netns", "exec", self.name]

    def cut(self) -> None:
        _run("link", "set", self.link, "down")

    def heal(self) -> None:
        _run("link", "set", self.link, "up")


@contextlib.asynccontextmanager
async def a_namespace(ports: Iterable[int]) -> AsyncGenerator[Namespace]:
    """One from which these ports of loopback can be reached."""
    name, number = f"comity-{token_hex(3)}", int(token_hex(1), 16)
    link = f"c{token_hex(4)}"
    outside, inside = f"10.213.{number}.1", f"10.213.{number}.2"
    relay: asyncio.subprocess.Process | None = None
    _run("netns", "add", name)
    try:
        _run("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
        _run("addr", "add", f"{outside}/30", "dev", link)
        _run("link", "set", link, "up")
        for command in (
            ["addr", "add", f"{inside}/30", "dev", "eth0"],
            ["link", "set", "eth0", "up"],
        ):
            _run("netns", "exec", name, IP, *command)
        _run("netns", "exec", name, IP, "link", "set", "lo", "up")
        relay = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.cluster.namespaces", outside, *map(str, ports)),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        assert relay.stdout is not None
        told = await asyncio.wait_for(relay.stdout.readline(), SECONDS)
        passed = {int(port): there for port, there in json.loads(told).items()}
        yield Namespace(name, link, inside, outside, passed)
    finally:
        if relay is not None:
            relay.kill()
            await relay.wait()
        _run("netns", "del", name)


async def _relay(outside: str, ports: Iterable[int]) -> None:
    """Pass on what comes from inside to loopback, until killed."""
    passed: dict[int, int] = {}
    for port in ports:
        server = await asyncio.start_server(_passing(port), outside, 0)
        passed[port] = server.sockets[0].getsockname()[1]
    print(json.dumps(passed), flush=True)
    await asyncio.Event().wait()


def _passing(port: int) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(_pump(reader, back), _pump(there, writer))

    return serve


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(MOST):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


def _run(*words: str) -> None:
    subprocess.run([IP, *words], check=True, capture_output=True)


if __name__ == "__main__":
    asyncio.run(_relay(sys.argv[1], [int(port) for port in sys.argv[2:]]))
