"""What an envelope costs that goes to members at another node, beside bare NATS with nats-py.

The first member speaks at one node, all others are at another; between them is NATS. Whatever
serves them is counted: both nodes and NATS, or the subscribers on nats-py and NATS.
"""

import contextlib
import socket
import sys
import time
import urllib.request
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench.crowd import WITHIN_SECONDS, Crowd, Door, Lost, Turn
from bench.crowd_doors import WebSocketDoor
from bench.processes import Running
from bench.topic_servers import Server, comity, nats

NODES, NATS_PY = "comity", "nats-py"
_JETSTREAM = "jetstream {{ store_dir: {store!r}, max_file_store: 64MB }}\n"
_CLUSTER = '[cluster]\nurl = "nats://127.0.0.1:{port}"\nnode = "{node}"\nname = "bench"\n'


class Many(Protocol):
    """Whoever can be made more, and be given much at once."""

    def grow(self, members: int) -> None: ...
    def saturate(self, seconds: float, at_once: int) -> Turn: ...


@dataclass(slots=True)
class Apart:
    """A door of which the first goes in at one node, and all others at another."""

    here: Door
    there: Door
    sign_of_life: bytes = field(default=WebSocketDoor.sign_of_life)

    def join(self, order: int, *, is_directed: bool = False) -> socket.socket:
        door = self.there if order else self.here
        return door.join(order, is_directed=is_directed)

    def outgoing(self, text: bytes) -> bytes:
        return self.here.outgoing(text)

    def incoming(self, length: int) -> int:
        return self.here.incoming(length)


class NatsPy:
    """Subscribers on nats-py, in a process of their own."""

    def __init__(self, subscribers: Running, server: Server) -> None:
        self._subscribers = subscribers
        self._server = server
        self._socket = socket.create_connection(("127.0.0.1", subscribers.port()), WITHIN_SECONDS)
        self._members = 0

    def close(self) -> None:
        self._socket.close()

    def grow(self, members: int) -> None:
        self._do("grow", members)
        self._members = members

    def saturate(self, seconds: float, at_once: int) -> Turn:
        said, began, cpu = 0, time.perf_counter(), self._cpu()
        while time.perf_counter() - began < seconds or not said:
            self._do("say", at_once)
            said += at_once
        spent = time.perf_counter() - began
        return Turn(said, said * self._members, spent, self._cpu() - cpu, 0.0)

    def _cpu(self) -> float:
        return self._subscribers.cpu_seconds() + self._server.cpu()

    def _do(self, verb: str, number: int) -> None:
        self._socket.sendall(f"{verb} {number}\n".encode())
        if not self._socket.recv(100):
            raise Lost("the subscribers on nats-py have gone")


@contextlib.contextmanager
def apart(folder: Path) -> Generator[dict[str, Many]]:
    """Comity on two nodes, and subscribers on nats-py, on one NATS."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(nats(folder, _JETSTREAM.format(store=str(folder / "store"))))
        port = server.running.port()
        nodes = [
            stack.enter_context(comity(folder, _CLUSTER.format(port=port, node=name), name))
            for name in ("east", "west")
        ]
        command = [sys.executable, "-m", "bench.nats_subscribers", f"nats://127.0.0.1:{port}"]
        apart_from_them = stack.enter_context(Running(command))
        for node in nodes:
            _wait_for_the_other(node.running.port())
        subscribers = NatsPy(apart_from_them, server)
        stack.callback(subscribers.close)
        served = (*nodes, server)
        here, there = (node.door for node in nodes)
        crowd = Crowd(Apart(here, there), lambda: sum(each.cpu() for each in served))
        stack.callback(crowd.close)
        yield {NODES: crowd, NATS_PY: subscribers}


def _wait_for_the_other(port: int) -> None:
    """What is said before a node knows of the other stays where it is."""
    until = time.monotonic() + WITHIN_SECONDS
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as told:
            if b"comity_cluster_nodes 1" in told.read():
                return
        if time.monotonic() > until:
            raise Lost("the nodes do not find each other")
        time.sleep(0.05)
