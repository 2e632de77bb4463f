"""The servers that give an envelope to many: how each is started, met, and looked at."""

import contextlib
import re
import sys
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.crowd import Door
from bench.crowd_doors import NatsDoor, WebSocketDoor
from bench.processes import Running

WEBSOCKETS, NATS, COMITY = "websockets", "nats", "comity"
SERVERS = (WEBSOCKETS, NATS, COMITY)
_NATS_LISTENS = re.compile(r"Listening for client connections on 127\.0\.0\.1:(\d+)")
_TOPICS = """
[topics]
access = "public"
capabilities = ["mcp/*", "chat"]
max_members = 100000
message_rate = 0
chat_rate = 0
audit = "none"
"""


@dataclass(frozen=True, slots=True)
class Server:
    """One process that is measured."""

    name: str
    running: Running
    _door: Callable[[int], Door]

    @property
    def door(self) -> Door:
        """Waits until the process listens; so several can start at the same time."""
        return self._door(self.running.port())

    def cpu(self) -> float:
        return self.running.cpu_seconds()

    def memory(self) -> int:
        return psutil.Process(self.running.pid).memory_info().rss

    def to(self, topic: str, receive_bytes: int = 0) -> WebSocketDoor:
        """The door to another topic of Comity's."""
        return _door(self.running.port(), topic, receive_bytes)


def started(name: str, folder: Path) -> contextlib.AbstractContextManager[Server]:
    return _STARTED[name](folder)


@contextlib.contextmanager
def comity(folder: Path, more: str = "", name: str = COMITY) -> Generator[Server]:
    written = folder / f"{name}.toml"
    written.write_text(_TOPICS + more, encoding="utf-8")
    command = [sys.executable, "-m", "comity.cli", "serve", "-c", str(written), "--port", "0"]
    with Running(command, {"COMITY_PEPPER": "a pepper of all nodes"}) as running:
        yield Server(name, running, lambda port: _door(port, "bench"))


def _door(port: int, topic: str, receive_bytes: int = 0) -> WebSocketDoor:
    path = f"/ws?topic={topic}" + "&mode={mode}&as={member}"
    # Whoever takes little at a time reads its welcome itself.
    return WebSocketDoor(port, path, b"" if receive_bytes else b"system/welcome", receive_bytes)


@contextlib.contextmanager
def websockets(folder: Path) -> Generator[Server]:
    del folder
    with Running([sys.executable, "-m", "bench.websockets_broadcast"]) as running:
        yield Server(WEBSOCKETS, running, WebSocketDoor)


@contextlib.contextmanager
def nats(folder: Path, more: str = "") -> Generator[Server]:
    written = folder / "nats.conf"
    written.write_text(f'listen: "127.0.0.1:-1"\n{more}', encoding="utf-8")
    command = [str(Path(sys.executable).with_name("nats-server")), "-c", str(written)]
    with Running(command, listening=_NATS_LISTENS) as running:
        yield Server(NATS, running, NatsDoor)


_STARTED: Mapping[str, Callable[[Path], contextlib.AbstractContextManager[Server]]] = {
    WEBSOCKETS: websockets,
    NATS: nats,
    COMITY: comity,
}
