"""The signing key of the audit log, and the places that checkpoints are copied to."""

import asyncio
import errno
import os
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from comity.audit import export
from comity.audit.chain import ChainCheckpoint, CheckpointMirror
from comity.config.secret_files import read_secret, write_secret
from comity.errors import MalformedMessage, Misconfigured, Unavailable
from comity.http.client.client import post_once
from comity.http.client.proxies import NO_PROXIES, ProxySettings

_KEY_BYTES: Final = 32
_SIGNATURE_BYTES: Final = 64
_BEGINS: Final = "comity-audit-key-1:"


class Ed25519Signer:
    """Signs for one node. `key` is the public key, as hexadecimal digits."""

    def __init__(self, secret: bytes) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(secret)
        self._key: str = self._private.public_key().public_bytes_raw().hex()

    @property
    def key(self) -> str:
        return self._key

    def sign(self, data: bytes) -> bytes:
        return self._private.sign(data)

    def __repr__(self) -> str:
        return f"Signer({self._key!r})"


def load_or_make(path: Path) -> Ed25519Signer:
    """Load the key from a file, or create it there. Raises Misconfigured."""
    try:
        return Ed25519Signer(_read(path) if path.exists() else _make(path))
    except OSError as problem:
        reason = problem.strerror or type(problem).__name__
        raise Misconfigured(f"the key of the audit log, {path}: {reason}") from None


def is_valid_signature(key: str, data: bytes, signature: bytes) -> bool:
    """Whether a signature was made with the private half of this public key."""
    try:
        public = bytes.fromhex(key)
    except ValueError:
        return False
    if len(public) != _KEY_BYTES or len(signature) != _SIGNATURE_BYTES:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except (ValueError, InvalidSignature):
        return False
    return True


def _make(path: Path) -> bytes:
    """Create a key. If another process was first, its key is used."""
    secret = secrets.token_bytes(_KEY_BYTES)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_secret(path, f"{_BEGINS}{secret.hex()}\n".encode("ascii"), keep_existing=True)
    return _read(path)


def _read(path: Path) -> bytes:
    said = read_secret(path, "the key of the audit log").decode("ascii", "replace")
    try:
        secret = bytes.fromhex(said.removeprefix(_BEGINS))
    except ValueError:
        secret = b""
    if not said.startswith(_BEGINS) or len(secret) != _KEY_BYTES:
        raise Misconfigured(f"{path} holds no audit log key; name another file in [audit]")
    return secret


SECONDS: Final = 5.0
_ADDRESSES: Final = ("http://", "https://")
_MODE: Final = 0o640
_CANNOT_SYNC: Final = (errno.EINVAL, errno.ENOTSUP, errno.EROFS)


class FileWitness:
    """Appends checkpoints to a file. It opens the file each time, so the file may be rotated."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # One after the other, so that the file keeps the order of signing.
        self._lock = asyncio.Lock()

    async def write(self, checkpoint: ChainCheckpoint) -> None:
        line = export.checkpoint_line(checkpoint) + b"\n"
        async with self._lock:
            await asyncio.to_thread(_add, self._path, line)

    async def close(self) -> None:
        async with self._lock:
            pass


class LastSignedFile:
    """Keeps the last checkpoint of each chain in a file beside the signing key."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = asyncio.Lock()

    def read(self, node: str) -> ChainCheckpoint | None:
        try:
            line = self._file(node).read_bytes()
            row = export.row_of(line).checkpoint
            found = None if row is None else export.checkpoint_of(row)
        except (OSError, MalformedMessage):
            return None
        return found if found is not None and found.node == node else None

    def set_aside(self, node: str) -> str:
        file, seconds = self._file(node), int(time.time())
        kept = file.with_name(f"{file.name}.lost-{seconds}")
        with suppress(OSError):
            file.replace(kept)
        return str(kept)

    async def write(self, checkpoint: ChainCheckpoint) -> None:
        line = export.checkpoint_line(checkpoint) + b"\n"
        async with self._lock:
            await asyncio.to_thread(write_secret, self._file(checkpoint.node), line)

    async def close(self) -> None:
        async with self._lock:
            pass

    def _file(self, node: str) -> Path:
        # Processes that share a key write neighbouring chains: `n-1`, `n-1~2`.
        _, beside, number = node.rpartition("~")
        return self._path.with_name(f"{self._path.name}{beside}{number if beside else ''}")


class AddressWitness:
    """Posts checkpoints to an HTTP service, which answers once it has stored them."""

    def __init__(self, url: str, proxies: ProxySettings = NO_PROXIES) -> None:
        self._url = url
        self._proxies = proxies
        self._lock = asyncio.Lock()

    async def write(self, checkpoint: ChainCheckpoint) -> None:
        line = export.checkpoint_line(checkpoint) + b"\n"
        async with self._lock:
            await _post(self._url, line, self._proxies)

    async def close(self) -> None:
        async with self._lock:
            pass


def open_witness(where: str, proxies: ProxySettings = NO_PROXIES) -> CheckpointMirror:
    """Open a checkpoint mirror: a file path or a URL. Raises Misconfigured."""
    if where.startswith(_ADDRESSES):
        try:
            if urlsplit(where).hostname and urlsplit(where).port != 0:
                return AddressWitness(where, proxies)
        except ValueError:
            pass
        raise Misconfigured("checkpoint_mirror is no address; write it as https://host/path")
    path = Path(where)
    if path.is_dir() or not path.parent.is_dir():
        raise Misconfigured(f"checkpoint_mirror: {path} is no file in a folder that is there")
    return FileWitness(path)


def _add(path: Path, line: bytes) -> None:
    # A pipe without a reader must not block the thread: with O_NONBLOCK it fails and is logged.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    file = os.open(path, flags, _MODE)
    try:
        # One write for the whole line, so that gateways that share the file do not mix lines.
        if os.write(file, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        try:
            os.fsync(file)
        except OSError as problem:
            if problem.errno not in _CANNOT_SYNC:
                raise
    finally:
        os.close(file)


async def _post(url: str, line: bytes, proxies: ProxySettings) -> None:
    host = urlsplit(url).hostname
    try:
        status = await post_once(url, {"content-type": "application/json"}, line, proxies)
    except Unavailable as problem:
        raise Unavailable(f"{host} did not take a checkpoint: {problem!s:.200}") from None
    if not 200 <= status < 300:
        raise Unavailable(f"{host} did not take a checkpoint: status {status}")
