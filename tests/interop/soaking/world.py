"""The gateway under soak with its servers, and what is known to be wrong with each at what time."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.interop.crowds import (
    LIGHT,
    MEASURED,
    PYTHON,
    SECONDS,
    Caller,
    Frame,
    Gateway,
    processes_of,
)
from tests.interop.processes import Program, accepts, free_port, operator_headers, running

GRACE = 2.0
"""How long after a fault its traces may still be met: a call may be on its way to where it was."""

SETTINGS = """
[limits]
session_idle_timeout = "2s"
"""
CARE = """
backoff_base = "100ms"
backoff_max = "500ms"
max_restarts = 1000000
health_interval = "2s"
drain_timeout = "5s"
"""


@dataclass
class Ward:
    """One server, and when something was done to it that explains errors."""

    name: str
    eras: frozenset[str]
    port: int = 0
    troubles: list[list[float]] = field(default_factory=list[list[float]])

    @property
    def is_near(self) -> bool:
        return not self.port

    def explains(self, began: float, ended: float) -> bool:
        """Whether a call of that time may have met a fault."""
        return any(began <= until and ended >= since for since, until in self.troubles)

    @contextmanager
    def troubled(self) -> Generator[None]:
        """While this lasts, and a little longer, errors of this server are no surprise."""
        now = time.monotonic()
        self.troubles = [one for one in self.troubles if one[1] > now - SECONDS]
        trouble = [now, float("inf")]
        self.troubles.append(trouble)
        try:
            yield
        finally:
            trouble[1] = time.monotonic() + GRACE


WARDS = (
    ("near-1", "handshake"),
    ("near-2", "handshake"),
    ("near-3", "modern"),
    ("far-1", "handshake"),
    ("far-2", "modern"),
    ("far-3", "both"),
)


class World:
    """Everything that runs, and where it is written down."""

    def __init__(self, folder: Path) -> None:
        self.wards = [
            Ward(name, _eras(era), free_port() if name.startswith("far") else 0)
            for name, era in WARDS
        ]
        self.guest = Ward("guest", _eras("handshake"))
        self.config = folder / "comity.toml"
        self.gateway: Gateway
        self._far: dict[str, Program] = {}
        self._stack = ExitStack()

    def write(self, *, with_guest: bool) -> None:
        """The whole file, in one step, as an editor saves it."""
        guests = [self.guest] if with_guest else []
        tables = [_table(ward) for ward in (*self.wards, *guests)]
        draft = self.config.with_suffix(".draft")
        draft.write_text("\n".join([SETTINGS, *tables]))
        draft.replace(self.config)

    def start_far(self, ward: Ward) -> None:
        era = "both" if len(ward.eras) == 2 else next(iter(ward.eras))
        module = ("-m", "tests.interop.servers.far", str(ward.port), ward.name, era)
        program = self._stack.enter_context(running([sys.executable, *module]))
        program.wait_until(lambda: accepts(ward.port))
        self._far[ward.name] = program

    def kill_far(self, ward: Ward) -> None:
        os.kill(self._far[ward.name].pid, signal.SIGKILL)

    def process_of(self, ward: Ward) -> psutil.Process | None:
        if not ward.is_near:
            return psutil.Process(self._far[ward.name].pid)
        found = processes_of(ward.name)
        return found[0] if found else None

    @asynccontextmanager
    async def standing(self) -> AsyncGenerator[None]:
        with self._stack:
            for ward in self.wards:
                if not ward.is_near:
                    self.start_far(ward)
            self.write(with_guest=False)
            command = [*MEASURED, "serve", "-c", str(self.config), "--port", "0"]
            program = self._stack.enter_context(running(command))
            origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
            self.gateway = Gateway(program, origin, time.monotonic())
            yield

    async def api(self, caller: Caller, path: str) -> Frame:
        url = f"{self.gateway.origin}/api/{path}"
        async with caller.http.get(url, headers=operator_headers(self.gateway.origin)) as reply:
            return await reply.json()

    async def order(self, caller: Caller, ward: Ward, deed: str) -> None:
        """What an operator tells the gateway to do with a server."""
        url = f"{self.gateway.origin}/api/servers/{ward.name}/{deed}"
        shown = operator_headers(self.gateway.origin)
        async with caller.http.post(url, json={}, headers=shown) as reply:
            assert reply.status == 200, await reply.text()

    async def until_quiet(self, caller: Caller) -> None:
        """Until the gateway has neither a call nor a session, so that it can be measured."""
        async with asyncio.timeout(SECONDS):
            while True:
                status = await self.api(caller, "status")
                connected = status["servers"].get("connected") == len(self.wards)
                if not status["calls"] and not status["sessions"] and connected:
                    return
                await asyncio.sleep(0.1)


def _eras(written: str) -> frozenset[str]:
    return frozenset({"handshake", "modern"} if written == "both" else {written})


def _table(ward: Ward) -> str:
    lines = ["[[servers]]", f'id = "{ward.name}"', CARE.strip()]
    if ward.is_near:
        illness = "" if "handshake" in ward.eras else "modern"
        words = ", ".join(f'"{word}"' for word in ("-S", "-E", "-I", LIGHT, ward.name, illness))
        lines += ['transport = "stdio"', f'command = "{PYTHON}"', f"args = [{words}]"]
    else:
        lines += ['transport = "http"', f'url = "http://127.0.0.1:{ward.port}/mcp"']
    return "\n".join([*lines, ""])
