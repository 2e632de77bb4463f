"""Resources followed across the eras: subscribed to in one, listened for in the other.

A server may be started again while somebody follows: whoever follows goes on until it is cancelled,
and is told once that everything may have changed while nobody listened.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Final

from comity.kernel.links import Link
from comity.kernel.listing import envelope
from comity.kernel.reached import Reached
from comity.kernel.sharing import Reader
from comity.rules.backoff import Backoff
from comity.wire import jsonrpc, mcp
from comity.wire.errors import (
    EXHAUSTED,
    INVALID_PARAMS,
    UPSTREAM_SLOW,
    MalformedMessage,
    Unavailable,
)
from comity.wire.jsonrpc import UNSET, Frame
from comity.wire.mcp import Era

log = logging.getLogger(__name__)

MOST_FOLLOWED: Final = 256
AGREE_SECONDS: Final = 10.0
GOODBYE_SECONDS: Final = 10.0

type Hear = Callable[[Frame], None]
type Place = tuple[str, str]
"""A resource, by the name of its server and its URI."""
type Find = Callable[[], Reached | None]
"""The server as it is reached now; None while there is none of that name."""


async def follow(find: Find, uris: Sequence[str], reader: Reader) -> None:
    """Follow these resources for a modern client, in whichever era their server speaks."""
    await _again_and_again(_Following(find, uris, reader).once)


class _Following:
    """What one modern client follows at one server."""

    def __init__(self, find: Find, uris: Sequence[str], reader: Reader) -> None:
        self._find = find
        self._uris = uris
        self._reader = reader
        self._consents = 0

    async def once(self) -> bool:
        """Until the server has forgotten it; whether it is worth another try."""
        server = self._find()
        if server is None:
            raise Unavailable("there is no such server just now")
        if Era.MODERN in server.eras:
            return await _listen(server, self._uris, self._hear)
        await _subscribe(server, self._uris, self._reader, self._agreed)
        return True

    def _hear(self, frame: Frame) -> None:
        if frame.method == mcp.ACKNOWLEDGED:
            self._agreed()
        elif frame.method == mcp.RESOURCE_UPDATED:
            self._reader.tell(frame)

    def _agreed(self) -> None:
        self._consents += 1
        if self._consents > 1:
            for uri in self._uris:
                self._reader.tell(_updated(uri))


async def _again_and_again(once: Callable[[], Coroutine[None, None, bool]]) -> None:
    """Until it is cancelled, or of no use any more."""
    ended = 0
    while True:
        try:
            if not await once():
                return
        except (Unavailable, MalformedMessage) as error:
            log.info("resources are not heard of for now: %s", error)
        except Exception:
            log.exception("the following of resources failed")
            return
        ended += 1
        pause = Backoff().delay(ended, random.random())  # noqa: S311  # no secret
        await asyncio.sleep(pause.total_seconds())


async def _listen(server: Reached, uris: Sequence[str], hear: Hear) -> bool:
    """Whether it is worth listening again."""
    params = {"_meta": envelope(), "notifications": {"resourceSubscriptions": list(uris)}}
    headers = ((mcp.METHOD_HEADER, mcp.LISTEN.encode()),)
    answer = await server.modern_link().request(mcp.LISTEN, params, headers, hear)
    if answer.error is UNSET:
        return True
    hear(answer)
    return False


async def _subscribe(
    server: Reached, uris: Sequence[str], reader: Reader, agreed: Callable[[], None]
) -> None:
    """Until the server has forgotten what was subscribed to."""
    own = server.own_link()
    anew = own.sharers.anew
    try:
        for uri in uris:
            own.sharers.follow(reader, uri)
            await own.link.request(mcp.SUBSCRIBE, {"uri": uri})
        agreed()
        await anew.wait()
    finally:
        left = [uri for uri in uris if own.sharers.unfollow(reader, uri)]
        if own.link.is_open and not anew.is_set():
            await _unsubscribe(own.link, left)


async def _unsubscribe(link: Link, uris: Sequence[str]) -> None:
    with contextlib.suppress(Unavailable, TimeoutError):
        async with asyncio.timeout(GOODBYE_SECONDS):
            for uri in uris:
                await link.request(mcp.UNSUBSCRIBE, {"uri": uri})


class _Ear:
    """One resource of one modern server, listened for on behalf of all who follow it."""

    def __init__(self, server: Reached, uri: str) -> None:
        self.server = server
        self.readers: set[Reader] = set()
        self.agreed: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._uri = uri
        listening = _again_and_again(lambda: _listen(server, [uri], self._hear))
        self.task = asyncio.ensure_future(listening)

    def _hear(self, frame: Frame) -> None:
        if not self.agreed.done():
            self.agreed.set_result(frame)
        elif frame.method in (mcp.RESOURCE_UPDATED, mcp.ACKNOWLEDGED):
            # A second consent follows a time in which nobody listened. What is told of may be a
            # part of what is followed.
            named = jsonrpc.text(jsonrpc.params_of(frame).get("uri"))
            for reader in list(self.readers):
                reader.tell(_updated(named or self._uri))


class Followed:
    """What handshake clients follow at modern servers, each resource by one listening."""

    def __init__(self) -> None:
        self._ears: dict[Place, _Ear] = {}
        self._places: dict[Reader, set[Place]] = {}

    def __len__(self) -> int:
        return len(self._ears)

    async def follow(self, server: Reached, uri: str, reader: Reader) -> None:
        """Return when the server has agreed. Raises where it has not."""
        place = (server.name, uri)
        places = self._places.get(reader, set())
        if len(places) >= MOST_FOLLOWED and place not in places:
            raise MalformedMessage("too many resources are followed at once", EXHAUSTED)
        ear = self._listen(server, place)
        ear.readers.add(reader)
        self._places.setdefault(reader, set()).add(place)
        await asyncio.wait(
            [ear.agreed, ear.task], timeout=AGREE_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        error = jsonrpc.error_of(ear.agreed.result()) if ear.agreed.done() else None
        if error is None and ear.agreed.done():
            return
        self.unfollow(server, uri, reader)
        if error is None:
            raise Unavailable(f"server {server.name!r} did not agree in time", UPSTREAM_SLOW)
        raise MalformedMessage(f"the server would not: {error.message:.200}", INVALID_PARAMS)

    def unfollow(self, server: Reached, uri: str, reader: Reader) -> None:
        self._unfollow((server.name, uri), reader)

    def leave(self, reader: Reader) -> None:
        """The client is gone: it follows nothing any more."""
        for place in list(self._places.get(reader, ())):
            self._unfollow(place, reader)

    def _unfollow(self, place: Place, reader: Reader) -> None:
        places, ear = self._places.get(reader, set()), self._ears.get(place)
        places.discard(place)
        if not places:
            self._places.pop(reader, None)
        if ear is not None:
            ear.readers.discard(reader)
            if not ear.readers:
                del self._ears[place]
                ear.task.cancel()

    def _listen(self, server: Reached, place: Place) -> _Ear:
        """Whoever listens there; one that has ended, or hears a server no more, is replaced."""
        before = self._ears.get(place)
        if before is not None and before.server is server and not before.task.done():
            return before
        ear = self._ears[place] = _Ear(server, place[1])
        if before is not None:
            ear.readers |= before.readers
            before.task.cancel()
        return ear


def _updated(uri: str) -> Frame:
    return jsonrpc.notification(mcp.RESOURCE_UPDATED, {"uri": uri})
