"""The gateway of a configuration for a client on pipes: the one that runs, or one that is started.

Of several clients that come at once, one starts the gateway while the others wait at a lock. The
gateway is a process of its own session, so it stays when the client that started it leaves.
"""

import fcntl
import hashlib
import http.client
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from comity.adapters.state_folder import prepare_state_folder
from comity.cli.gateway_records import GatewayRecord, find_gateway, record_file
from comity.cli.idling import join
from comity.wire.errors import Unavailable

START_SECONDS: Final = 90.0
READY_SECONDS: Final = 5.0
"""How long a new gateway may take to try each of its servers before clients are let in."""

IDLE_SECONDS: Final = 600.0
IDLE_VARIABLE: Final = "COMITY_IDLE_SECONDS"
_LOG_LINES: Final = 20
_LOOK_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class Wanted:
    """Whose gateway it is, and how `comity serve` is told to be one."""

    config: Path
    folder: Path
    # Asked for only where one is started: what is free has to be looked at then.
    arguments: Callable[[], Sequence[str]]

    @property
    def log(self) -> Path:
        """The log of a gateway that is started for it."""
        digest = hashlib.sha256(str(self.config).encode()).hexdigest()[:16]
        return prepare_state_folder("logs") / f"{self.config.stem}-{digest}.log"


@dataclass(frozen=True, slots=True)
class Joined:
    """A gateway that stays as long as the handle on its record is open."""

    record: GatewayRecord
    handle: int

    def leave(self) -> None:
        os.close(self.handle)


def join_or_start(wanted: Wanted) -> Joined:
    """The one gateway of this configuration, started if need be. Raises Unavailable."""
    joined = _join(wanted.config)
    if joined is None:
        with _only_one(wanted):
            joined = _join_running(wanted) or _start(wanted)
    _await_ready(joined.record.url)
    return joined


def _join_running(wanted: Wanted) -> Joined | None:
    """The gateway that runs by now; one that is about to end is waited for, and is none."""
    deadline = time.monotonic() + START_SECONDS
    while (record := find_gateway(wanted.config)) is not None:
        if (joined := _join(wanted.config)) is not None:
            return joined
        if time.monotonic() > deadline:
            raise Unavailable(f"the gateway at {record.url} does not end; end process {record.pid}")
        time.sleep(_LOOK_SECONDS)
    return None


def _join(config: Path) -> Joined | None:
    record = find_gateway(config)
    handle = None if record is None else join(record_file(record))
    if record is None or handle is None:
        return None
    if find_gateway(config) != record:
        # Another one has come in its place meanwhile.
        os.close(handle)
        return None
    return Joined(record, handle)


@contextmanager
def _only_one(wanted: Wanted) -> Generator[None]:
    """Let nobody else start a gateway meanwhile, nor take the port that was found free."""
    lock = prepare_state_folder() / "starting.lock"
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        _await_lock(handle, f"another process is still starting the gateway; see {wanted.log}")
        yield
    finally:
        os.close(handle)


def _await_lock(handle: int, otherwise: str) -> None:
    deadline = time.monotonic() + START_SECONDS + READY_SECONDS
    while True:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if time.monotonic() > deadline:
            raise Unavailable(otherwise)
        time.sleep(_LOOK_SECONDS)


def _start(wanted: Wanted) -> Joined:
    arguments = wanted.arguments()
    try:
        return _launch(wanted, arguments)
    except Unavailable:
        # Somebody may have taken the port meanwhile.
        again = wanted.arguments()
        if again == arguments:
            raise
        return _launch(wanted, again)


def _launch(wanted: Wanted, arguments: Sequence[str]) -> Joined:
    idle = os.environ.get(IDLE_VARIABLE) or str(IDLE_SECONDS)
    command = [sys.executable, "-m", "comity.cli", "serve", *arguments]
    # Whose key a client shows is no business of the gateway's.
    environ = {name: value for name, value in os.environ.items() if name != "COMITY_KEY"}
    with _new_log(wanted.log) as written:
        process = subprocess.Popen(
            [*command, "--end-when-idle", idle],
            cwd=wanted.folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS
    while (joined := _join(wanted.config)) is None:
        if process.poll() is not None:
            raise Unavailable(
                f"the gateway did not start: {_last_words(wanted.log)}\nIts log is {wanted.log}"
            )
        if time.monotonic() > deadline:
            process.terminate()
            raise Unavailable(f"the gateway did not start in time; its log is {wanted.log}")
        time.sleep(_LOOK_SECONDS)
    return joined


@contextmanager
def _new_log(log: Path) -> Generator[int]:
    """The log of a new gateway; that of the one before is kept beside it."""
    with suppress(OSError):
        log.replace(log.with_suffix(".old.log"))
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        yield handle
    finally:
        os.close(handle)


def _last_words(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(line.removeprefix("comity: ") for line in lines[-_LOG_LINES:])


def _await_ready(url: str) -> None:
    """Wait until each server was tried: many clients list the tools once, when they start."""
    parts, deadline = urlsplit(url), time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=1)
        with suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/ready")
            if connection.getresponse().status == 200:
                connection.close()
                return
        connection.close()
        time.sleep(_LOOK_SECONDS)
