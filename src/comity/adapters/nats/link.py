"""One connection to one NATS server: made once, used, and thrown away whole when it is lost.

Rule 1: a link that is lost is aborted, never closed: closing waits for a peer that may be gone to
        take what is buffered, which takes minutes (nats.py #671).
Rule 2: what was not sent is thrown away with it; no buffer outlives its connection.
Rule 3: what nodes say to each other goes out in the order it was said, once for each turn of the
        loop, and comes in without a queue or a task in between.

Of nats-py's client, what makes the connection, reads it, pings, and asks JetStream is used as it
is. Overridden is what it does when something goes wrong, and what it does for each message.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final, cast, override

from nats import errors
from nats.aio.client import Client, Srv

from comity.adapters.nats.addresses import Addresses, Server
from comity.wire.errors import UPSTREAM_DOWN, MalformedMessage, Unavailable

log = logging.getLogger(__name__)

OURS: Final = 1 << 20
"""From here on subscriptions are the bus's; below are those of nats-py, for answers."""
MOST_WAITING: Final = 8 * 1024 * 1024
LITTLE_WAITING: Final = 512 * 1024
_AT_ONCE: Final = 256 * 1024
_AROUND: Final = 64
"""About what the protocol adds to a message."""
_CONNECT_SECONDS: Final = 2
_PING_SECONDS: Final = 1
_PINGS_UNANSWERED: Final = 2
_TOO_MUCH: Final = "too much waits to go to NATS: try again in a moment"

type Take = Callable[[int, bytes, bytes, bytes], None]
"""Given the subscription, the subject, where an answer goes, and the data."""


class Link(Client):
    def __init__(self, take: Take) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._take = take
        self._must_encrypt = False
        self._out: list[bytes] = []
        self._out_size = 0
        self._waiting = 0
        self._largest = 0
        self._stream: asyncio.WriteTransport | None = None
        self.lost: asyncio.Future[str] = self._loop.create_future()
        self.is_open = False

    async def reach(self, server: Server, addresses: Addresses) -> None:
        """Raises what nats-py does; whoever called then says `lose`."""
        credentials = addresses.credentials
        self._must_encrypt = server.is_encrypted
        has_token = credentials is not None and credentials.token() is not None
        if credentials is not None and not has_token:
            self._public_nkey = credentials.public_key()
        has_password = server.password is not None
        await self.connect(
            servers=[server.url],
            name=f"comity {addresses.deployment}",
            allow_reconnect=False,
            no_echo=True,
            connect_timeout=_CONNECT_SECONDS,
            ping_interval=_PING_SECONDS,
            max_outstanding_pings=_PINGS_UNANSWERED,
            error_cb=self._tell,
            tls=addresses.encryption,
            user=server.user if has_password else None,
            password=server.password,
            token=server.user if server.user and not has_password else None,
            signature_cb=None if credentials is None else credentials.signature,
            user_jwt_cb=cast("Any", credentials).token if has_token else None,
        )
        if not self.is_connected:
            raise errors.Error("nats: the server did not say that it is ready")
        self._stream = stream = self._writer().transport
        stream.set_write_buffer_limits(LITTLE_WAITING, LITTLE_WAITING // 4)
        self._largest = self.max_payload
        self.is_open = True

    def say(self, head: bytes, data: bytes) -> None:
        """`head` is the command up to the size. On the way of every envelope."""
        size = len(data)
        out = self._out
        if not out:
            assert self._stream is not None
            self._waiting = self._stream.get_write_buffer_size()
            self._loop.call_soon(self.write_out)
        if self._waiting + self._out_size > MOST_WAITING:
            raise Unavailable(_TOO_MUCH, UPSTREAM_DOWN)
        if size > self._largest:
            raise MalformedMessage("larger than NATS takes: raise its max_payload, on every server")
        out += (head, b"%d\r\n" % size, data, b"\r\n")
        self._out_size += size + _AROUND
        if self._out_size > _AT_ONCE:
            self.write_out()

    def command(self, line: bytes) -> None:
        """In its place among what is said."""
        self._out.append(line)
        self.write_out()

    def write_out(self) -> None:
        if self._out and self.is_open and self._stream is not None:
            self._stream.write(b"".join(self._out))
        self._out.clear()
        self._out_size = 0

    async def settled(self) -> None:
        """Until the server has taken all that was said before, or the link is lost."""
        if not self.is_open or self._stream is None:
            return
        self.write_out()
        answered: asyncio.Future[bool] = self._loop.create_future()
        self._inside._pongs.append(answered)
        self._stream.write(b"PING\r\n")
        await asyncio.wait((answered, self.lost), return_when=asyncio.FIRST_COMPLETED)
        if not answered.done():
            answered.cancel()

    async def drained(self) -> None:
        """Until little waits. Unavailable where the link is lost meanwhile."""
        self.write_out()
        with contextlib.suppress(OSError):
            await self._writer().drain()
        if not self.is_open:
            raise Unavailable("the connection to NATS is lost", UPSTREAM_DOWN)

    def lose(self, because: str) -> None:
        """At once, whatever the peer does."""
        self.is_open = False
        self._status = Client.CLOSED
        self._out.clear()
        if not self.lost.done():
            self.lost.set_result(because)
        writer = self._writer_or_none()
        if writer is not None:
            writer.transport.abort()
        inside = self._inside
        tasks = [inside._reading_task, inside._ping_interval_task, inside._flusher_task]
        tasks += [each._wait_for_msgs_task for each in inside._subs.values()]
        current = asyncio.current_task(self._loop)
        for task in tasks:
            if task is not None and task is not current:
                task.cancel()
        for waiting in [*inside._resp_map.values()]:
            if not waiting.done():
                waiting.set_exception(errors.ConnectionClosedError())

    @property
    def _inside(self) -> Any:
        """What nats-py keeps to itself, and does not say the types of."""
        return self

    def _writer(self) -> asyncio.StreamWriter:
        writer = self._writer_or_none()
        if writer is None:
            raise Unavailable("there is no connection to NATS", UPSTREAM_DOWN)
        return writer

    def _writer_or_none(self) -> asyncio.StreamWriter | None:
        return self._inside._transport._io_writer if self._transport is not None else None

    async def _tell(self, error: Exception) -> None:
        log.debug("NATS: %s", error)

    @override
    async def _select_next_server(self) -> None:
        """There is one, and whoever called has the others."""
        server: Srv = self._server_pool[0]
        await self._connect_to_server(server)
        self._current_server = server

    @override
    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """nats-py encrypts when the server says so. Whoever could speak for it could say no."""
        if initial_connection and self._must_encrypt:
            if not (info.get("tls_required") or info.get("tls_available")):
                raise errors.Error(
                    "nats: the server offers no encryption, and its address is tls://"
                )
            info["tls_required"] = True

    @override
    async def _process_op_err(self, e: Exception) -> None:
        self.lose(str(e) or type(e).__name__)

    @override
    async def _process_err(self, err_msg: str) -> None:
        """What a server refuses by itself leaves the connection; all else ends it."""
        if "permissions violation" in err_msg:
            log.error("NATS does not let us: %s. Grant it to our user there", err_msg.strip("'"))
        else:
            self.lose(err_msg.strip("'"))

    @override
    async def _process_pong(self) -> None:
        """Also for somebody who no longer waits for it, where nats-py would stop reading."""
        self._pings_outstanding = 0
        if pongs := self._inside._pongs:
            answered = pongs.pop(0)
            if not answered.done():
                answered.set_result(True)

    @override
    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        if sid < OURS:
            await super()._process_msg(sid, subject, reply, data, headers)
        elif not headers:
            # Those with headers come from NATS itself: nobody heard what wanted an answer.
            self._take(sid, subject, reply, data)
