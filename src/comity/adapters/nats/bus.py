"""The bus on NATS: one link at a time, and a new one for ever when it is lost.

Rule 1: nothing is published while there is no link, and nothing waits for the next one.
Rule 2: subscriptions outlive links: a new link counts, and `watch` is told, once all are in force.
Rule 3: whoever hears is called as messages come in. One that is too slow makes this node slow to
        read, until the server cuts it off and says so: nothing is dropped on this side.
Rule 4: each message is sealed here, and opened here, whatever it is about. A message that no other
        node sealed reaches nobody.
"""

import asyncio
import contextlib
import functools
import itertools
import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Final

from nats import errors

from comity.adapters.nats.addresses import Addresses, Server
from comity.adapters.nats.link import OURS, Link
from comity.adapters.nats.seals import MessageSeals
from comity.ports.clustering import Hear, Heard, Interest
from comity.rules.subjects import is_pattern, is_subject
from comity.wire.errors import UPSTREAM_DOWN, MalformedMessage, Misconfigured, Unavailable

log = logging.getLogger(__name__)

_FIRST_SECONDS: Final = 3.0
_LINK_SECONDS: Final = 6.0
_PAUSE_SECONDS: Final = 0.25
_CLOSE_SECONDS: Final = 2.0
_AWAY: Final = "NATS cannot be reached now, and with it no other node: try again soon"
_chance: Final = secrets.SystemRandom()


class NatsBus:
    def __init__(self, addresses: Addresses, secret: bytes) -> None:
        """All nodes of a cluster have the same secret, and nobody else has it."""
        self._addresses = addresses
        self.secret = secret
        self._seals = MessageSeals(secret)
        self._link: Link | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._first = asyncio.Event()
        self._sids = itertools.count(OURS)
        self._interests: dict[int, _Interest] = {}
        self._watchers: list[Callable[[bool], None]] = []
        self._last: Server | None = None
        self._said = ""

    def __repr__(self) -> str:
        return f"<bus on {self._addresses.described}>"

    @property
    def addresses(self) -> Addresses:
        return self._addresses

    @property
    def is_connected(self) -> bool:
        return self._link is not None and self._link.is_open

    @property
    def link(self) -> Link:
        """For the neighbours who ask JetStream over it. Unavailable where there is none."""
        if self._link is None or not self._link.is_open:
            raise Unavailable(_AWAY, UPSTREAM_DOWN)
        return self._link

    @property
    def refused(self) -> Mapping[str, int]:
        return self._seals.refused

    async def open(self) -> None:
        self._keeping = asyncio.get_running_loop().create_task(self._keep())
        try:
            async with asyncio.timeout(_FIRST_SECONDS):
                await self._first.wait()
        except TimeoutError:
            log.warning("NATS at %s cannot be reached yet", self._addresses.described)

    async def close(self) -> None:
        """What was published before goes out, if the server takes it within two seconds."""
        link = self._link
        if link is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await link.settled()
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait((self._keeping,))
        self._link = None
        if link is not None:
            link.lose("closed")

    def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        link = self._link
        if link is None or not link.is_open:
            raise Unavailable(_AWAY, UPSTREAM_DOWN)
        head, to, back = _headed(subject, reply)
        link.say(head, self._seals.seal(to, back, data))

    async def drained(self) -> None:
        await self.link.drained()

    async def subscribe(self, subject: str, hear: Hear) -> Interest:
        """While there is no link, it will be in force before `watch` is told of the next one."""
        if not is_pattern(subject):
            raise MalformedMessage("not a subject to subscribe to")
        interest = _Interest(self, next(self._sids), subject.encode(), hear)
        self._interests[interest.sid] = interest
        if (link := self._link) is not None:
            link.command(interest.command)
            await link.settled()
        return interest

    def inbox(self) -> str:
        return f"_INBOX.{secrets.token_hex(12)}"

    def watch(self, changed: Callable[[bool], None]) -> None:
        self._watchers.append(changed)

    def forget(self, sid: int) -> None:
        if self._interests.pop(sid, None) is not None and self._link is not None:
            self._link.command(_unsubscribe(sid))

    def _take(self, sid: int, subject: bytes, reply: bytes, data: bytes) -> None:
        interest = self._interests.get(sid)
        if interest is None:
            return
        body = self._seals.open(sid, subject, reply, data)
        if body is None:
            return
        try:
            interest.hear(Heard(subject.decode(), body, reply.decode()))
        except Exception:
            log.exception("what was heard on the bus could not be taken in")

    async def _keep(self) -> None:
        while True:
            link = await self._made()
            if link is None:
                await asyncio.sleep(_PAUSE_SECONDS * (1 + _chance.random()))
                continue
            try:
                self._link = link
                self._said = ""
                self._first.set()
                self._tell(True)
                because = await link.lost
            finally:
                self._link = None
                link.lose("closed")
            log.warning("the connection to NATS is lost: %s", because)
            self._tell(False)

    async def _made(self) -> Link | None:
        """A link to any server, the one that was lost being tried last; None where none is up."""
        servers = _chance.sample(self._addresses.servers, len(self._addresses.servers))
        servers.sort(key=lambda server: server is self._last)
        for server in servers:
            link = await self._linked(server)
            if link is not None:
                self._last = server
                return link
        return None

    async def _linked(self, server: Server) -> Link | None:
        link = Link(self._take)
        is_made = False
        try:
            async with asyncio.timeout(_LINK_SECONDS):
                await link.reach(server, self._addresses)
                await self._put_in_force(link)
            is_made = link.is_open
        except (OSError, TimeoutError, errors.Error, Misconfigured) as error:
            self._say_once(server, error)
        except Exception:
            log.exception("no connection to NATS at %s", server.url)
        finally:
            if not is_made:
                link.lose("not made")
        return link if is_made else None

    async def _put_in_force(self, link: Link) -> None:
        """All that is wanted now; whoever subscribes meanwhile has its interest in the table."""
        sent: set[int] = set()
        while wanted := [each for sid, each in self._interests.items() if sid not in sent]:
            sent.update(interest.sid for interest in wanted)
            link.command(b"".join(interest.command for interest in wanted))
            await link.settled()
        for sid in sent - self._interests.keys():
            link.command(_unsubscribe(sid))

    def _say_once(self, server: Server, error: Exception) -> None:
        said = f"{server.url}: {str(error) or type(error).__name__}"
        if said != self._said:
            self._said = said
            log.warning("no connection to NATS at %s", said)

    def _tell(self, is_connected: bool) -> None:
        for changed in self._watchers:
            try:
                changed(is_connected)
            except Exception:
                log.exception("somebody could not be told about the connection to NATS")


class _Interest:
    __slots__ = ("_bus", "command", "hear", "sid")

    def __init__(self, bus: NatsBus, sid: int, subject: bytes, hear: Hear) -> None:
        self._bus = bus
        self.sid = sid
        self.command = b"SUB %b %d\r\n" % (subject, sid)
        self.hear = hear

    async def close(self) -> None:
        self._bus.forget(self.sid)


def _unsubscribe(sid: int) -> bytes:
    return b"UNSUB %d\r\n" % sid


@functools.lru_cache(4096)
def _headed(subject: str, reply: str) -> tuple[bytes, bytes, bytes]:
    """The command up to the size, and both subjects, which could otherwise hold commands."""
    if not is_subject(subject) or (reply and not is_subject(reply)):
        raise MalformedMessage("not a subject to publish on")
    head = f"PUB {subject} {reply} " if reply else f"PUB {subject} "
    return head.encode(), subject.encode(), reply.encode()
