"""The message bus on NATS: sealed messages, subscriptions and reconnection."""

import asyncio
import contextlib
import functools
import itertools
import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Final

from nats import errors

from comity.cluster.bus import BusMessage, BusSubscription, MessageHandler, is_pattern, is_subject
from comity.cluster.nats.addresses import NatsAddressList, NatsServerAddress
from comity.cluster.nats.connection import OURS, NatsConnection, version_problem
from comity.cluster.nats.seals import MessageSeals
from comity.errors import UPSTREAM_DOWN, MalformedMessage, Misconfigured, Unavailable

log = logging.getLogger(__name__)

_FIRST_SECONDS: Final = 3.0
_LINK_SECONDS: Final = 6.0
_PAUSE_SECONDS: Final = 0.25
_CLOSE_SECONDS: Final = 2.0
_UNREACHABLE_MESSAGE: Final = (
    "NATS cannot be reached now, and with it no other node: try again soon"
)
_chance: Final = secrets.SystemRandom()


class NatsBus:
    """The bus of one node on NATS. It reconnects by itself."""

    def __init__(self, addresses: NatsAddressList, secret: bytes) -> None:
        """Create a bus that is not connected. All nodes of a cluster share the secret."""
        self._addresses = addresses
        self.secret = secret
        self._seals = MessageSeals(secret)
        self._connection: NatsConnection | None = None
        self._connect_task: asyncio.Task[None] | None = None
        self._first = asyncio.Event()
        self._sids = itertools.count(OURS)
        self._subscriptions: dict[int, _NatsSubscription] = {}
        self._watchers: list[Callable[[bool], None]] = []
        self._last: NatsServerAddress | None = None
        self._last_error = ""
        # Why the servers that answer cannot be used, before the first connection.
        self._refusal: Misconfigured | None = None

    def __repr__(self) -> str:
        return f"<bus on {self._addresses.described}>"

    @property
    def addresses(self) -> NatsAddressList:
        return self._addresses

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and self._connection.is_open

    @property
    def connection(self) -> NatsConnection:
        """The connection, for JetStream requests. Raise Unavailable if there is none."""
        if self._connection is None or not self._connection.is_open:
            raise Unavailable(_UNREACHABLE_MESSAGE, UPSTREAM_DOWN)
        return self._connection

    @property
    def refused_counts(self) -> Mapping[str, int]:
        return self._seals.refused

    async def open(self) -> None:
        self._connect_task = asyncio.get_running_loop().create_task(self._keep_connected())
        try:
            async with asyncio.timeout(_FIRST_SECONDS):
                await self._first.wait()
        except TimeoutError:
            log.warning("NATS at %s cannot be reached yet", self._addresses.described)
        if self._refusal is not None and self._connection is None:
            # Waiting helps against a NATS that is down, and not against one that is too old.
            await self.close()
            raise self._refusal

    async def close(self) -> None:
        """Close the bus. The server has two seconds to take the published messages."""
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await connection.settled()
        if self._connect_task is not None:
            self._connect_task.cancel()
            await asyncio.wait((self._connect_task,))
        self._connection = None
        if connection is not None:
            connection.lose("closed")

    def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        connection = self._connection
        if connection is None or not connection.is_open:
            raise Unavailable(_UNREACHABLE_MESSAGE, UPSTREAM_DOWN)
        head, to, back = _headed(subject, reply)
        connection.queue_message(head, self._seals.seal(to, back, data))

    async def wait_until_drained(self) -> None:
        await self.connection.wait_until_drained()

    async def subscribe(self, subject: str, handler: MessageHandler) -> BusSubscription:
        """Subscribe. Without a connection, it is in force before `watch` reports the next one."""
        if not is_pattern(subject):
            raise MalformedMessage("not a subject to subscribe to")
        interest = _NatsSubscription(self, next(self._sids), subject.encode(), handler)
        self._subscriptions[interest.sid] = interest
        if (connection := self._connection) is not None:
            connection.command(interest.command)
            await connection.settled()
        return interest

    def inbox(self) -> str:
        return f"_INBOX.{secrets.token_hex(12)}"

    def watch(self, on_change: Callable[[bool], None]) -> None:
        self._watchers.append(on_change)

    def forget(self, sid: int) -> None:
        if self._subscriptions.pop(sid, None) is not None and self._connection is not None:
            self._connection.command(_unsubscribe(sid))

    def _on_message(self, sid: int, subject: bytes, reply: bytes, data: bytes) -> None:
        interest = self._subscriptions.get(sid)
        if interest is None:
            return
        body = self._seals.open(sid, subject, reply, data)
        if body is None:
            return
        try:
            interest.handler(BusMessage(subject.decode(), body, reply.decode()))
        except Exception:
            log.exception("A message from the bus could not be processed")

    async def _keep_connected(self) -> None:
        while True:
            connection = await self._connect_any()
            if connection is None:
                await asyncio.sleep(_PAUSE_SECONDS * (1 + _chance.random()))
                continue
            try:
                self._connection = connection
                self._last_error = ""
                self._first.set()
                self._notify_watchers(True)
                reason = await connection.lost
            finally:
                self._connection = None
                connection.lose("closed")
            log.warning("the connection to NATS is lost: %s", reason)
            self._notify_watchers(False)

    async def _connect_any(self) -> NatsConnection | None:
        """Return a connection to any server, or None. The server that was lost comes last."""
        servers = _chance.sample(self._addresses.servers, len(self._addresses.servers))
        servers.sort(key=lambda server: server is self._last)
        for server in servers:
            connection = await self._connect_to(server)
            if connection is not None:
                self._last = server
                return connection
        return None

    async def _connect_to(self, server: NatsServerAddress) -> NatsConnection | None:
        connection = NatsConnection(self._on_message)
        is_made = False
        try:
            async with asyncio.timeout(_LINK_SECONDS):
                await connection.reach(server, self._addresses)
                self._require_version(server, connection)
                await self._put_in_force(connection)
            is_made = connection.is_open
        except (OSError, TimeoutError, errors.Error, Misconfigured) as error:
            self._log_once(server, error)
        except Exception:
            log.exception("no connection to NATS at %s", server.url)
        finally:
            if not is_made:
                connection.lose("not made")
        return connection if is_made else None

    def _require_version(self, server: NatsServerAddress, connection: NatsConnection) -> None:
        """Raise Misconfigured if this NATS is too old, and end the wait for the first one."""
        if problem := version_problem(connection.connected_server_version):
            self._refusal = Misconfigured(f"NATS at {server.url}: {problem}")
            self._first.set()
            raise Misconfigured(problem)

    async def _put_in_force(self, connection: NatsConnection) -> None:
        """Send all subscriptions, including those that are added meanwhile."""
        sent: set[int] = set()
        while wanted := [each for sid, each in self._subscriptions.items() if sid not in sent]:
            sent.update(interest.sid for interest in wanted)
            connection.command(b"".join(interest.command for interest in wanted))
            await connection.settled()
        for sid in sent - self._subscriptions.keys():
            connection.command(_unsubscribe(sid))

    def _log_once(self, server: NatsServerAddress, error: Exception) -> None:
        said = f"{server.url}: {str(error) or type(error).__name__}"
        if said != self._last_error:
            self._last_error = said
            log.warning("no connection to NATS at %s", said)

    def _notify_watchers(self, is_connected: bool) -> None:
        for changed in self._watchers:
            try:
                changed(is_connected)
            except Exception:
                log.exception("A listener for the NATS connection failed")


class _NatsSubscription:
    __slots__ = ("_bus", "command", "handler", "sid")

    def __init__(self, bus: NatsBus, sid: int, subject: bytes, handler: MessageHandler) -> None:
        self._bus = bus
        self.sid = sid
        self.command = b"SUB %b %d\r\n" % (subject, sid)
        self.handler = handler

    async def close(self) -> None:
        self._bus.forget(self.sid)


def _unsubscribe(sid: int) -> bytes:
    return b"UNSUB %d\r\n" % sid


@functools.lru_cache(4096)
def _headed(subject: str, reply: str) -> tuple[bytes, bytes, bytes]:
    """Return the command up to the size, and both subjects, checked for injected commands."""
    if not is_subject(subject) or (reply and not is_subject(reply)):
        raise MalformedMessage("not a subject to publish on")
    head = f"PUB {subject} {reply} " if reply else f"PUB {subject} "
    return head.encode(), subject.encode(), reply.encode()
