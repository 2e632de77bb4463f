"""A PostgreSQL of a test's own, which it may stop and start as it likes."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import psutil

from tests.interop.processes import accepts, free_port

_SECONDS = 60.0
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "max_connections": "100",
    "shared_buffers": "16MB",
}


class Postgres:
    """One server in a folder of its own, run by somebody who is not root."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self._data = folder / "data"
        self._user = "postgres" if os.getuid() == 0 else None
        if self._user is not None:
            owner = pwd.getpwnam(self._user)
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        self._process: subprocess.Popen[bytes] | None = None
        self._run("initdb", "-D", str(self._data), "-U", "postgres", "-A", "trust", "-N")

    @property
    def runs(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        said = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
        command = [_program("postgres"), "-D", str(self._data), "-p", str(self.port), *said]
        self._process = subprocess.Popen(
            command,
            user=self._user,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + _SECONDS
        while not self._is_ready():
            assert self._process.poll() is None, "PostgreSQL ended by itself"
            assert time.monotonic() < deadline, "PostgreSQL is not ready"
            time.sleep(0.1)

    def stop(self) -> None:
        """At once: whoever is connected is cut off."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(_SECONDS)
        self._process = None

    def kill(self) -> None:
        """As when a machine fails: nobody has time to write anything down."""
        assert self._process is not None
        parent = psutil.Process(self._process.pid)
        family = [parent, *parent.children(recursive=True)]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(_SECONDS)
        # One that is still there would keep the next server from the memory they share.
        assert psutil.wait_procs(family, _SECONDS)[1] == []
        self._process = None

    def fall_silent(self) -> None:
        """Connections stay, and nobody answers on them: as when a network swallows everything."""
        self._signal_all(signal.SIGSTOP)

    def speak_again(self) -> None:
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        """Each connection has a process, in a group of its own."""
        assert self._process is not None
        parent = psutil.Process(self._process.pid)
        for process in (parent, *parent.children(recursive=True)):
            process.send_signal(number)

    def _is_ready(self) -> bool:
        if not accepts(self.port):
            return False
        asked = [_program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(asked, check=False, timeout=_SECONDS).returncode == 0

    def _run(self, name: str, *arguments: str) -> None:
        subprocess.run(
            [_program(name), *arguments],
            user=self._user,
            cwd="/",
            check=True,
            capture_output=True,
            timeout=_SECONDS,
        )


def _program(name: str) -> str:
    """On the path, or where Debian keeps the newest of them."""
    kept = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    found = shutil.which(name) or (str(kept[-1]) if kept else None)
    assert found is not None, f"these tests need {name}: install PostgreSQL"
    return found


@contextlib.contextmanager
def a_postgres() -> Generator[Postgres]:
    """Not in pytest's own folder, which only its owner may enter."""
    folder = Path(tempfile.mkdtemp(prefix="comity-postgres-"))
    try:
        server = Postgres(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
