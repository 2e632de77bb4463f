"""One connection on a wire made of notes: fed by hand, for tests that need no socket."""

import asyncio
from typing import Any, Literal

from comity.errors import Unavailable
from comity.http.client.connection import HttpClientConnection, HttpClientRequest

type Ending = Literal["ended", "failed"]


class Wire(asyncio.Transport):
    """A transport that only notes what is done to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_open = True
        self.reads = True

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return not self.is_open

    def close(self) -> None:
        self.is_open = False

    def abort(self) -> None:
        self.is_open = False

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert (high, low) == (1, 0)


class Notes:
    """A reader that remembers, and can be told to misbehave."""

    def __init__(self, raises_at: str = "") -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.endings: list[Ending] = []
        self.because = ""
        self.raises_at = raises_at

    def started(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        assert not self.status
        self.status, self.headers = status, headers
        self._maybe_raise("started")

    def data(self, chunk: bytes) -> None:
        assert not self.endings
        self.body += chunk
        self._maybe_raise("data")

    def ended(self) -> None:
        self.endings.append("ended")
        self._maybe_raise("ended")

    def failed(self, error: Unavailable) -> None:
        self.endings.append("failed")
        self.because = str(error)
        self._maybe_raise("failed")

    def _maybe_raise(self, where: str) -> None:
        if self.raises_at == where:
            raise RuntimeError("a bug in a reader")


class Talk:
    """A connection between a wire and a keeper, with one request begun on it."""

    def __init__(
        self, reader: Notes | None = None, kind: type[HttpClientRequest] = HttpClientRequest
    ) -> None:
        self.released = 0
        self.losses: list[HttpClientRequest | None] = []
        self.wire = Wire()
        self.connection = HttpClientConnection(self, "http://server")
        self.connection.connection_made(self.wire)
        self.notes = reader or Notes()
        self.sending = kind(self, b"request", self.notes, may_repeat=False)
        self.connection.begin(self.sending)

    def release(self, connection: HttpClientConnection) -> None:
        self.released += 1

    def lost(self, connection: HttpClientConnection, again: HttpClientRequest | None) -> None:
        self.losses.append(again)

    def apply_pause(self, request: HttpClientRequest) -> None: ...
    def drop(self, request: HttpClientRequest) -> None: ...

    def hear(self, *pieces: bytes) -> "Talk":
        for piece in pieces:
            if self.wire.is_open:
                self.connection.data_received(piece)
        return self

    def hear_the_end(self, error: Exception | None = None) -> "Talk":
        if error is None:
            self.connection.eof_received()
        self.wire.close()
        self.connection.connection_lost(error)
        return self
