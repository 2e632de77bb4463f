"""Vectors that were made once, in a file of their own, so that a restart makes none anew.

Rule 1: it is a cache. What cannot be read in it, or is not whole, is made again.
Rule 2: one process writes; whoever comes second reads only.
Rule 3: it does not grow without end: when it is full, what this run did not use is left out.
Rule 4: nobody else may read it: vectors tell what the tools of this gateway are about.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

log = logging.getLogger(__name__)

type Array = np.ndarray[Any, Any]

MOST: Final = 250_000
"""Vectors that are kept; a file of 200 MB with those of the built-in model."""

KEY_BYTES: Final = 32
_CHECK_BYTES: Final = 4
_AT_ONCE: Final = 4096


class Kept:
    """A file of vectors of one model. For one thread at a time."""

    def __init__(self, folder: Path, model: str, size: int, most: int = MOST) -> None:
        head = hashlib.sha256(f"comity vectors 1 {size} {model}".encode())
        self._head = head.digest()
        self._path = folder / f"{head.hexdigest()[:16]}.vectors"
        self._vector_bytes = size * 2
        self._record = KEY_BYTES + self._vector_bytes + _CHECK_BYTES
        self._most = most
        self._places: dict[bytes, int] = {}
        self._used = bytearray()
        self._file: int | None = None
        self._may_write = False
        self._is_opened = False

    def __len__(self) -> int:
        return len(self._places)

    def get(self, key: bytes) -> Array | None:
        """The vector of that key, if it is here and whole."""
        self._open_once()
        place = self._places.get(key)
        if place is None or self._file is None:
            return None
        record = os.pread(self._file, self._record, len(self._head) + place * self._record)
        body, check = record[:-_CHECK_BYTES], record[-_CHECK_BYTES:]
        if len(record) != self._record or body[:KEY_BYTES] != key or _check(body) != check:
            del self._places[key]
            return None
        self._used[place] = 1
        vector = np.frombuffer(body, np.float16, offset=KEY_BYTES)
        return vector.astype(np.float32) if np.isfinite(vector).all() else None

    def add(self, keys: Sequence[bytes], vectors: Array) -> None:
        """Written in one piece after all the others."""
        self._open_once()
        if not self._may_write:
            return
        try:
            self._append(keys, vectors)
        except OSError as failure:
            self._may_write = False
            log.warning("vectors of tools are kept no longer: %s", failure.strerror)

    def _append(self, keys: Sequence[bytes], vectors: Array) -> None:
        if len(self._used) + len(keys) > self._most:
            self._thin_out()
        file = self._file
        if file is None or not self._may_write or len(self._used) + len(keys) > self._most:
            return
        bodies = [
            key + row.tobytes() for key, row in zip(keys, vectors.astype(np.float16), strict=True)
        ]
        content = b"".join(body + _check(body) for body in bodies)
        end = len(self._head) + len(self._used) * self._record
        if os.pwrite(file, content, end) != len(content):
            os.ftruncate(file, end)
            return
        for key in keys:
            self._places[key] = len(self._used)
            self._used.append(1)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _open_once(self) -> None:
        if self._is_opened:
            return
        self._is_opened = True
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._open()
        except OSError as failure:
            self.close()
            log.warning("vectors of tools are not kept: %s", failure.strerror)

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        file = self._file = os.open(self._path, flags, 0o600)
        if os.fstat(file).st_uid != os.geteuid():
            raise PermissionError(1, "the file is somebody else's")
        os.fchmod(file, 0o600)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._may_write = True
        if os.pread(file, len(self._head), 0) != self._head:
            if not self._may_write:
                return
            os.ftruncate(file, 0)
            os.pwrite(file, self._head, 0)
        self._read_keys(file)

    def _read_keys(self, file: int) -> None:
        place = 0
        while place < self._most:
            offset = len(self._head) + place * self._record
            block = os.pread(file, _AT_ONCE * self._record, offset)
            whole = len(block) // self._record
            for at in range(whole):
                start = at * self._record
                self._places[block[start : start + KEY_BYTES]] = place + at
            place += whole
            if whole < _AT_ONCE:
                break
        self._used = bytearray(place)
        if self._may_write:
            # A last one that is not whole would set all that follow awry.
            os.ftruncate(file, len(self._head) + place * self._record)

    def _thin_out(self) -> None:
        """A new file, with what was used in this run; it takes the old one's place at once."""
        file, fresh = self._file, self._path.with_suffix(".new")
        if file is None:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(fresh, flags, 0o600), "wb") as written:
            written.write(self._head)
            for place in range(len(self._used)):
                if self._used[place]:
                    offset = len(self._head) + place * self._record
                    written.write(os.pread(file, self._record, offset))
        fresh.replace(self._path)
        self.close()
        self._may_write = False
        self._places.clear()
        self._open()
        self._used = bytearray(b"\1" * len(self._used))


def _check(body: bytes) -> bytes:
    return zlib.crc32(body).to_bytes(_CHECK_BYTES, "little")
