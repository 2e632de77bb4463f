"""A gateway with a filled store behind the console, a person who signs in, and its traffic.

Run as `python -m tests.scale.console_gateway SERVERS TOOLS REQUESTS ENTRIES` to look at it by hand.
"""

import asyncio
import contextlib
import itertools
import json
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from comity.policy.grants import Effect, Grant
from tests.cluster.nodes import PEPPER
from tests.console.world import ADMIN, AGENT, World
from tests.interop.processes import answers, running
from tests.scale.console_records import add_requests, new_store
from tests.scale.gateway import Caller, Gateway, calling, many_servers
from tests.support.principals import add_principals

READY_SECONDS = 600.0
DANGEROUS = "server-1"
"""A call of its tools opens an approval request, which expires after `request_ttl`."""

REQUEST_SECONDS = 10


@dataclass(frozen=True)
class Size:
    """How many of each thing the gateway has."""

    servers: int
    tools_per_server: int
    requests: int
    entries: int


def _write_settings(folder: Path, store: str, upstream: str, servers: int) -> Path:
    head = f"""
[identity]
mode = "required"
[store]
url = "{store}"
[approvals]
client_wait = "1s"
request_ttl = "{REQUEST_SECONDS}s"
max_open = 100_000
max_open_per_principal = 10_000
"""
    entries = "".join(
        f"""
[[servers]]
id = "server-{number}"
url = {json.dumps(f"{upstream}/server-{number}/mcp")}
policy = {{ risk = "{"dangerous" if f"server-{number}" == DANGEROUS else "safe"}" }}
"""
        for number in range(servers)
    )
    config = folder / "comity.toml"
    config.write_text(head + entries)
    return config


@contextlib.contextmanager
def a_console_gateway(folder: Path, size: Size) -> Generator[World]:
    """Fill a store, and run `comity serve` over it until all servers are connected."""
    store = new_store(folder, size.entries)
    asyncio.run(add_requests(store, size.requests))
    keys = asyncio.run(
        add_principals(
            store,
            PEPPER,
            (ADMIN, AGENT),
            Grant(ADMIN, "*", "*", Effect.ALLOW),
            Grant(AGENT, "tools/*", "*", Effect.ALLOW),
        )
    )
    comity = str(Path(sys.executable).with_name("comity"))
    with many_servers(size.tools_per_server) as upstream:
        config = _write_settings(folder, store, upstream, size.servers)
        command = [comity, "serve", "-c", str(config), "--port", "0"]
        with running(command, {"COMITY_PEPPER": PEPPER}) as program:
            origin = program.wait_for_line(r"listening on (http://\S+)", READY_SECONDS).group(1)
            program.wait_until(lambda: answers(f"{origin}/ready"), READY_SECONDS)
            world = World([origin], keys, folder, [program])
            program.wait_until(lambda: _is_connected(world, size), READY_SECONDS)
            yield world


def _is_connected(world: World, size: Size) -> bool:
    headers = {"authorization": f"Bearer {world.keys[ADMIN]}"}
    with contextlib.suppress(httpx2.TransportError):
        answer = httpx2.get(f"{world.origin}/api/overview", headers=headers, timeout=60)
        told = answer.raise_for_status().json()
        return (
            told["servers"].get("connected") == size.servers
            and told["tools"] == size.servers * size.tools_per_server
        )
    return False


class Traffic:
    """Calls of an agent through the gateway, so many events a second.

    An event is a change that the gateway publishes to `/api/stream`. Nine of ten are the commit of
    a tool call to the audit log. One of ten is a call of a dangerous tool, which opens an approval
    request; the request expires soon after, which is one more change and is not counted.
    """

    CONNECTIONS = 40

    def __init__(self, world: World, per_second: int) -> None:
        self.events = 0
        self._gateway = Gateway(world.origin, world.programs[0].pid)
        self._key = world.keys[AGENT]
        self._seconds_per_event = 1 / per_second
        self._numbers = itertools.count(1)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["Traffic"]:
        """Make calls until the context ends."""
        async with calling(self._gateway, "/mcp", self.CONNECTIONS, key=self._key) as callers:
            for caller in callers:
                await caller.begin_session()
            start = time.monotonic()
            tasks = [asyncio.ensure_future(self._call(caller, start)) for caller in callers]
            try:
                yield self
            finally:
                for task in tasks:
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
            for each in ended:
                assert isinstance(each, asyncio.CancelledError), each

    async def wait_for(self, events: int, seconds: float) -> None:
        """Wait until so many events have happened since the start."""
        async with asyncio.timeout(seconds):
            while self.events < events:
                await asyncio.sleep(0.05)

    async def _call(self, caller: Caller, start: float) -> None:
        while True:
            number = next(self._numbers)
            # The pace of all connections together. A late one does not wait.
            await asyncio.sleep(start + number * self._seconds_per_event - time.monotonic())
            status, _, reply = await caller.exchange(_call_frame(number))
            # On a busy machine the store may answer late. The gateway then allows nothing for a
            # moment, and such a call is no event.
            assert status in (200, 503), reply
            self.events += status == 200


def _call_frame(number: int) -> dict[str, Any]:
    server = DANGEROUS if number % 10 == 0 else "server-0"
    arguments = {"subject": f"event {number}", "limit": 3}
    params = {"name": f"{server}__tool-{number % 10}", "arguments": arguments}
    return {"id": number, "method": "tools/call", "params": params}


def main() -> None:
    size = Size(*(int(each) for each in sys.argv[1:5]))
    with (
        tempfile.TemporaryDirectory() as folder,
        a_console_gateway(Path(folder), size) as world,
    ):
        pid = world.programs[0].pid
        print(json.dumps({"origin": world.origin, "keys": world.keys, "pid": pid}), flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(3600)


if __name__ == "__main__":
    main()
