"""Vectors of tools: the file that stores them, and the table that is searched."""

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

MAX_VECTORS: Final = 250_000
"""Vectors in one file: 200 MB for those of the built-in model."""

KEY_BYTES: Final = 32
_CHECK_BYTES: Final = 4
_KEYS_PER_READ: Final = 4096


class VectorFile:
    """A file of vectors of one model, for use by one thread at a time."""

    def __init__(self, folder: Path, model: str, size: int, max_vectors: int = MAX_VECTORS) -> None:
        head = hashlib.sha256(f"comity vectors 1 {size} {model}".encode())
        self._head = head.digest()
        self._path = folder / f"{head.hexdigest()[:16]}.vectors"
        self._vector_bytes = size * 2
        self._record_bytes = KEY_BYTES + self._vector_bytes + _CHECK_BYTES
        self._max_vectors = max_vectors
        self._position_by_key: dict[bytes, int] = {}
        self._used = bytearray()
        self._file: int | None = None
        self._may_write = False
        self._is_opened = False

    def __len__(self) -> int:
        return len(self._position_by_key)

    def get(self, key: bytes) -> Array | None:
        """Return the vector of a key, if the file has it and its checksum is right."""
        self._open_once()
        place = self._position_by_key.get(key)
        if place is None or self._file is None:
            return None
        record = os.pread(
            self._file, self._record_bytes, len(self._head) + place * self._record_bytes
        )
        body, check = record[:-_CHECK_BYTES], record[-_CHECK_BYTES:]
        if len(record) != self._record_bytes or body[:KEY_BYTES] != key or _checksum(body) != check:
            del self._position_by_key[key]
            return None
        self._used[place] = 1
        vector = np.frombuffer(body, np.float16, offset=KEY_BYTES)
        return vector.astype(np.float32) if np.isfinite(vector).all() else None

    def add(self, keys: Sequence[bytes], vectors: Array) -> None:
        """Append vectors in one write.

        After a failed write the file is only read.
        """
        self._open_once()
        if not self._may_write:
            return
        try:
            self._append(keys, vectors)
        except OSError as failure:
            self._may_write = False
            log.warning("Tool vectors are no longer stored: %s", failure.strerror)

    def _append(self, keys: Sequence[bytes], vectors: Array) -> None:
        if len(self._used) + len(keys) > self._max_vectors:
            self._compact()
        file = self._file
        if file is None or not self._may_write or len(self._used) + len(keys) > self._max_vectors:
            return
        bodies = [
            key + row.tobytes() for key, row in zip(keys, vectors.astype(np.float16), strict=True)
        ]
        content = b"".join(body + _checksum(body) for body in bodies)
        end = len(self._head) + len(self._used) * self._record_bytes
        if os.pwrite(file, content, end) != len(content):
            os.ftruncate(file, end)
            return
        for key in keys:
            self._position_by_key[key] = len(self._used)
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
            log.warning("Tool vectors are not stored: %s", failure.strerror)

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        file = self._file = os.open(self._path, flags, 0o600)
        if os.fstat(file).st_uid != os.geteuid():
            raise PermissionError(1, "the file belongs to another user")
        os.fchmod(file, 0o600)
        # Only the process that holds the lock writes; others only read.
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
        while place < self._max_vectors:
            offset = len(self._head) + place * self._record_bytes
            block = os.pread(file, _KEYS_PER_READ * self._record_bytes, offset)
            whole = len(block) // self._record_bytes
            for at in range(whole):
                start = at * self._record_bytes
                self._position_by_key[block[start : start + KEY_BYTES]] = place + at
            place += whole
            if whole < _KEYS_PER_READ:
                break
        self._used = bytearray(place)
        if self._may_write:
            # An incomplete last record would misalign all that follow.
            os.ftruncate(file, len(self._head) + place * self._record_bytes)

    def _compact(self) -> None:
        """Replace the file with one that holds only the vectors used in this run."""
        file, fresh = self._file, self._path.with_suffix(".new")
        if file is None:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(fresh, flags, 0o600), "wb") as written:
            written.write(self._head)
            for place in range(len(self._used)):
                if self._used[place]:
                    offset = len(self._head) + place * self._record_bytes
                    written.write(os.pread(file, self._record_bytes, offset))
        fresh.replace(self._path)
        self.close()
        self._may_write = False
        self._position_by_key.clear()
        self._open()
        self._used = bytearray(b"\1" * len(self._used))


def _checksum(body: bytes) -> bytes:
    return zlib.crc32(body).to_bytes(_CHECK_BYTES, "little")


type Found = tuple[list[tuple[int, float]], list[float | None], float]

MAX_SLOTS: Final = 250_000
"""Further tools are found by their words only: the matrix would take more than 400 MB."""

_INITIAL_ROWS: Final = 256
# Reading rows by index is four times slower than reading them in order.
_SPARSE_FACTOR: Final = 4


class VectorTable:
    """A matrix of vectors by slot. One thread changes it; other threads may search meanwhile."""

    def __init__(self, size: int) -> None:
        self._rows: Array = np.zeros((_INITIAL_ROWS, size), np.float32)
        self._has_vector: Array = np.zeros(_INITIAL_ROWS, np.uint8)
        # The slots below this number were used at some time.
        self._used = 0

    def __len__(self) -> int:
        return int(np.count_nonzero(self._has_vector))

    @property
    def row_count(self) -> int:
        """The number of rows that a search may have to read."""
        return self._used

    def put(self, slot: int, vector: Array) -> None:
        if slot >= len(self._has_vector):
            self._grow(slot + 1)
        self._rows[slot] = vector
        self._has_vector[slot] = 1
        self._used = max(self._used, slot + 1)

    def remove(self, slot: int) -> None:
        if slot < len(self._has_vector):
            self._has_vector[slot] = 0

    def _grow(self, least: int) -> None:
        """Allocate new arrays, since another thread may be reading the old ones."""
        capacity = min(max(least, len(self._has_vector) * 3 // 2), MAX_SLOTS)
        rows: Array = np.zeros((capacity, self._rows.shape[1]), np.float32)
        has: Array = np.zeros(capacity, np.uint8)
        rows[: self._used] = self._rows[: self._used]
        has[: self._used] = self._has_vector[: self._used]
        self._rows, self._has_vector = rows, has

    def find_nearest(
        self, query_vectors: Array, visible_mask: bytes | None, limit: int, also: Sequence[int]
    ) -> Found:
        """Return the slots nearest to any vector in `query_vectors`, and two further results.

        These are the cosines of the slots in `also`, and the least cosine of all visible slots.
        """
        rows, mask = self._rows, self._mask(visible_mask)
        there = np.flatnonzero(mask)
        if not len(there):
            return [], [None] * len(also), 0.0
        if len(there) * _SPARSE_FACTOR < len(mask):
            cosines = _max_cosines(rows[there], query_vectors)
        else:
            cosines = _max_cosines(rows[: len(mask)], query_vectors)
            cosines = cosines if len(there) == len(mask) else cosines[there]
        return (
            _best_slots(there, cosines, limit),
            _cosines_of(
                rows,
                [slot if slot < len(mask) and mask[slot] else -1 for slot in also],
                query_vectors,
            ),
            float(cosines.min()),
        )

    def _mask(self, visible_mask: bytes | None) -> Array:
        has = self._has_vector[: self._used]
        if visible_mask is None:
            return has
        shown: Array = np.frombuffer(visible_mask, np.uint8)[: len(has)]
        return has[: len(shown)] & (shown != 0)


def _max_cosines(rows: Array, query_vectors: Array) -> Array:
    if len(query_vectors) == 1:
        return rows @ query_vectors[0]
    return (rows @ query_vectors.T).max(axis=1)


def _cosines_of(rows: Array, slots: Sequence[int], query_vectors: Array) -> list[float | None]:
    """Return the cosines of these slots in one operation; None for -1."""
    known = [slot for slot in slots if slot >= 0]
    cosines = iter(_max_cosines(rows[known], query_vectors).tolist() if known else ())
    return [next(cosines) if slot >= 0 else None for slot in slots]


def _best_slots(slots: Array, cosines: Array, limit: int) -> list[tuple[int, float]]:
    if limit <= 0:
        return []
    if limit < len(slots):
        first = np.argpartition(cosines, -limit)[-limit:]
        # Include all ties with the last one, so that the slot number decides and not chance.
        first = np.flatnonzero(cosines >= cosines[first].min())
        slots, cosines = slots[first], cosines[first]
    order = np.lexsort((slots, -cosines))[:limit]
    return [(int(slots[at]), float(cosines[at])) for at in order]
