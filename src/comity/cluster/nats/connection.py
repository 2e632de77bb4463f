"""One connection to NATS, and the versions of NATS that nodes can use."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final, cast, override

from nats import errors
from nats.aio.client import Client, ServerVersion, Srv

from comity.cluster.nats.addresses import NatsAddressList, NatsServerAddress
from comity.errors import UPSTREAM_DOWN, MalformedMessage, Misconfigured, Unavailable

log = logging.getLogger(__name__)

OURS: Final = 1 << 20
"""The first subscription id of the bus. Lower ids belong to nats-py, for answers."""
MOST_WAITING: Final = 8 * 1024 * 1024
"""Beyond this many queued bytes, `queue_message` refuses a message."""
DRAINED_BYTES: Final = 512 * 1024
"""At this many buffered bytes, `wait_until_drained` waits for the server to read."""
_MAX_WRITE_BYTES: Final = 256 * 1024
"""At this many queued bytes, messages are written before the end of the turn."""
_AROUND: Final = 64
"""About how many bytes the protocol adds to a message."""
_CONNECT_SECONDS: Final = 2
_PING_SECONDS: Final = 1
_PINGS_UNANSWERED: Final = 2
_TOO_MUCH: Final = "too much waits to go to NATS: try again in a moment"

type Take = Callable[[int, bytes, bytes, bytes], None]
"""Called with the subscription id, the subject, the reply subject and the data."""


class NatsConnection(Client):
    """A connection of nats-py, with its own write path and without its reconnection."""

    def __init__(self, take: Take) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._take = take
        self._must_encrypt = False
        self._out_buffer: list[bytes] = []
        self._out_size = 0
        self._queued_bytes = 0
        self._largest = 0
        self._stream: asyncio.WriteTransport | None = None
        self.lost: asyncio.Future[str] = self._loop.create_future()
        self.is_open = False

    async def reach(self, server: NatsServerAddress, addresses: NatsAddressList) -> None:
        """Connect and log in. After an error of nats-py, the caller must call `lose`."""
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
            raise errors.Error("nats: the server did not confirm that it is ready")
        self._stream = stream = self._writer().transport
        stream.set_write_buffer_limits(DRAINED_BYTES, DRAINED_BYTES // 4)
        self._largest = self.max_payload
        self.is_open = True

    def queue_message(self, head: bytes, data: bytes) -> None:
        """Queue a message. `head` is the command up to the size. This runs for every envelope."""
        size = len(data)
        out = self._out_buffer
        if not out:
            assert self._stream is not None
            self._queued_bytes = self._stream.get_write_buffer_size()
            self._loop.call_soon(self.flush_buffer)
        if self._queued_bytes + self._out_size > MOST_WAITING:
            raise Unavailable(_TOO_MUCH, UPSTREAM_DOWN)
        if size > self._largest:
            raise MalformedMessage("larger than NATS takes: raise its max_payload, on every server")
        out += (head, b"%d\r\n" % size, data, b"\r\n")
        self._out_size += size + _AROUND
        if self._out_size > _MAX_WRITE_BYTES:
            self.flush_buffer()

    def command(self, line: bytes) -> None:
        """Send a command, in order with the queued messages."""
        self._out_buffer.append(line)
        self.flush_buffer()

    def flush_buffer(self) -> None:
        if self._out_buffer and self.is_open and self._stream is not None:
            self._stream.write(b"".join(self._out_buffer))
        self._out_buffer.clear()
        self._out_size = 0

    async def settled(self) -> None:
        """Wait until the server has taken all earlier messages, or the connection is lost."""
        if not self.is_open or self._stream is None:
            return
        self.flush_buffer()
        answered: asyncio.Future[bool] = self._loop.create_future()
        self._inside._pongs.append(answered)
        self._stream.write(b"PING\r\n")
        await asyncio.wait((answered, self.lost), return_when=asyncio.FIRST_COMPLETED)
        if not answered.done():
            answered.cancel()

    async def wait_until_drained(self) -> None:
        """Wait until little data is queued. Raise Unavailable if the connection is lost."""
        self.flush_buffer()
        with contextlib.suppress(OSError):
            await self._writer().drain()
        if not self.is_open:
            raise Unavailable("the connection to NATS is lost", UPSTREAM_DOWN)

    def lose(self, reason: str) -> None:
        """Close the connection at once, without waiting for the peer."""
        self.is_open = False
        self._status = Client.CLOSED
        self._out_buffer.clear()
        if not self.lost.done():
            self.lost.set_result(reason)
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
        """This object without types, for access to the private attributes of nats-py."""
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
        """Connect to the only server in the pool. The bus chooses among servers."""
        server: Srv = self._server_pool[0]
        await self._connect_to_server(server)
        self._current_server = server

    @override
    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Require TLS for tls:// addresses. A forged server could decline it to nats-py."""
        if initial_connection and self._must_encrypt:
            if not (info.get("tls_required") or info.get("tls_available")):
                raise errors.Error(
                    "nats: the address is tls://, but the server does not support TLS"
                )
            info["tls_required"] = True

    @override
    async def _process_op_err(self, e: Exception) -> None:
        self.lose(str(e) or type(e).__name__)

    @override
    async def _process_err(self, err_msg: str) -> None:
        """Log a permission error and keep the connection. Any other error ends it."""
        if "permissions violation" in err_msg:
            log.error(
                "NATS denied a permission: %s. Grant it to the user of Comity", err_msg.strip("'")
            )
        else:
            self.lose(err_msg.strip("'"))

    @override
    async def _process_pong(self) -> None:
        """Accept an answer to a ping that is no longer awaited, which would stop nats-py."""
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
            # Messages with headers come from NATS itself: a request had no subscriber.
            self._take(sid, subject, reply, data)


OLDEST: Final = (2, 11)
_SECONDS: Final = 5.0


def oldest_version() -> str:
    """Return the oldest version of NATS that nodes can use."""
    return ".".join(str(part) for part in OLDEST)


def _ignore(sid: int, subject: bytes, reply: bytes, data: bytes) -> None:
    """Ignore a message: this connection has no subscriptions."""


async def usable_version(server: NatsServerAddress, addresses: NatsAddressList) -> str:
    """Return the version of NATS. Raise Unavailable if the login or JetStream fails.

    Raises Misconfigured if it is too old for nodes.
    """
    connection = NatsConnection(_ignore)
    try:
        async with asyncio.timeout(_SECONDS):
            await connection.reach(server, addresses)
            if problem := version_problem(connection.connected_server_version):
                raise Misconfigured(problem)
            answer = await connection.request("$JS.API.INFO")
    except errors.NoRespondersError:
        raise Unavailable("JetStream is off") from None
    except (OSError, TimeoutError, errors.Error) as error:
        raise Unavailable(str(error) or type(error).__name__) from None
    finally:
        connection.lose("no longer needed")
    if b'"error"' in answer.data:
        raise Unavailable("this account may not use JetStream")
    return _version_text(connection.connected_server_version)


def version_problem(version: ServerVersion) -> str:
    """Return why nodes cannot use a NATS of this version; empty if they can."""
    if (version.major, version.minor) >= OLDEST:
        return ""
    return f"it runs version {_version_text(version)}; nodes need {oldest_version()} or newer"


def _version_text(version: ServerVersion) -> str:
    return f"{version.major}.{version.minor}.{version.patch}"
