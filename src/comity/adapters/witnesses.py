"""Where signed checkpoints are copied to, so that a journal cannot be shortened unseen.

A file is only ever added to, and a checkpoint is told once it has reached the disk; a pipe takes
them as a stream. An address is sent each by an HTTP POST, and has taken it when it says so. Both
are a line as an export has it, so that either can be handed to `comity journal verify`.
"""

import asyncio
import errno
import http.client
import os
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from comity.adapters.requesting import NO_PROXIES, HttpRequest
from comity.adapters.secret_files import write_secret
from comity.ports.journaling import Witness
from comity.rules.proxies import Proxies
from comity.wire import exported
from comity.wire.errors import MalformedMessage, Misconfigured, Unavailable
from comity.wire.journal import Checkpoint

SECONDS: Final = 5.0
_ADDRESSES: Final = ("http://", "https://")
_MODE: Final = 0o640
_CANNOT_SYNC: Final = (errno.EINVAL, errno.ENOTSUP, errno.EROFS)


class FileWitness:
    """A file that is added to. It is opened for each, so that it may be moved away at any time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # One after the other: what is signed later stands later.
        self._turn = asyncio.Lock()

    async def tell(self, checkpoint: Checkpoint) -> None:
        line = exported.checkpoint(checkpoint) + b"\n"
        async with self._turn:
            await asyncio.to_thread(_add, self._path, line)

    async def close(self) -> None:
        async with self._turn:
            pass


class LastSignedFile:
    """Keeps the last checkpoint of each chain, in a file of its own beside the key that signs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._turn = asyncio.Lock()

    def read(self, node: str) -> Checkpoint | None:
        try:
            line = self._file(node).read_bytes()
            row = exported.row_of(line).checkpoint
            found = None if row is None else exported.checkpoint_of(row)
        except (OSError, MalformedMessage):
            return None
        return found if found is not None and found.node == node else None

    def set_aside(self, node: str) -> str:
        file, seconds = self._file(node), int(time.time())
        kept = file.with_name(f"{file.name}.lost-{seconds}")
        with suppress(OSError):
            file.replace(kept)
        return str(kept)

    async def tell(self, checkpoint: Checkpoint) -> None:
        line = exported.checkpoint(checkpoint) + b"\n"
        async with self._turn:
            await asyncio.to_thread(write_secret, self._file(checkpoint.node), line)

    async def close(self) -> None:
        async with self._turn:
            pass

    def _file(self, node: str) -> Path:
        # Processes with one key write chains beside each other: `n-1`, `n-1~2`.
        _, beside, number = node.rpartition("~")
        return self._path.with_name(f"{self._path.name}{beside}{number if beside else ''}")


class AddressWitness:
    """Somebody who takes each by HTTP, and answers when it is safe."""

    def __init__(self, url: str, proxies: Proxies = NO_PROXIES) -> None:
        self._url = url
        self._proxies = proxies
        self._turn = asyncio.Lock()

    async def tell(self, checkpoint: Checkpoint) -> None:
        line = exported.checkpoint(checkpoint) + b"\n"
        async with self._turn:
            await asyncio.to_thread(_post, self._url, line, self._proxies)

    async def close(self) -> None:
        async with self._turn:
            pass


def open_witness(where: str, proxies: Proxies = NO_PROXIES) -> Witness:
    """A file by its path, or an address. Raises Misconfigured where it cannot be either."""
    if where.startswith(_ADDRESSES):
        try:
            if urlsplit(where).hostname and urlsplit(where).port != 0:
                return AddressWitness(where, proxies)
        except ValueError:
            pass
        raise Misconfigured("checkpoint_file is no address; write it as https://host/path")
    path = Path(where)
    if path.is_dir() or not path.parent.is_dir():
        raise Misconfigured(f"checkpoint_file: {path} is no file in a folder that is there")
    return FileWitness(path)


def _add(path: Path, line: bytes) -> None:
    # A pipe that nobody reads must not hold up the thread: then this fails, and is told.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    file = os.open(path, flags, _MODE)
    try:
        # All of it in one write: two gateways that share the file do not write into each other.
        if os.write(file, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        try:
            os.fsync(file)
        except OSError as problem:
            if problem.errno not in _CANNOT_SYNC:
                raise
    finally:
        os.close(file)


def _post(url: str, line: bytes, proxies: Proxies) -> None:
    parts = urlsplit(url)
    try:
        request = HttpRequest(url, proxies, SECONDS)
        with (
            closing(request.connection),
            request.send("POST", {"Content-Type": "application/json"}, line) as reply,
        ):
            status = reply.status
    except (OSError, http.client.HTTPException) as problem:
        because = str(problem) or type(problem).__name__
        raise Unavailable(f"{parts.hostname} did not take a checkpoint: {because:.200}") from None
    if not 200 <= status < 300:
        raise Unavailable(f"{parts.hostname} did not take a checkpoint: status {status}")
