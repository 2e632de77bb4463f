"""Shared links to one server, one for each set of terms its clients ask for. (MCP §4.1)

A plain client can share the gateway's own link, which declares all of plain MCP. A client that
declares more (MGP, MCPL, anything experimental) negotiates with the server itself, so it shares a
link only with clients that declared exactly the same.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from comity.kernel.links import Link
from comity.kernel.sessions import Session
from comity.kernel.sharing import Sharers
from comity.wire import jsonrpc, mcp
from comity.wire.errors import EXHAUSTED, Unavailable

MOST_TERMS: Final = 16
STANDARD_TERMS: Final[Mapping[str, object]] = {
    "roots": {"listChanged": True},
    "sampling": {"context": {}, "tools": {}},
    "elicitation": {"form": {}, "url": {}},
}
"""What a shared link declares: any client may sit behind it, and each is asked only what it can."""


@dataclass(slots=True)
class Shared:
    """A link with those who share it."""

    link: Link
    sharers: Sharers


type Make = Callable[[Callable[[Link, str], None]], Shared]


class SharedLinks:
    """The links to one server that clients with the same extended terms share."""

    def __init__(self, name: str, make: Make) -> None:
        self._name = name
        self._make = make
        self._held: dict[bytes, Shared] = {}
        self._opening: dict[bytes, asyncio.Task[Shared]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def find(self, session: Session, plain: Shared) -> Shared:
        """The link this session shares; it is opened, once, by the first who needs it."""
        terms = extended_terms(session)
        shared = plain if terms is None else self._held.get(terms)
        if terms is not None and (shared is None or not shared.link.is_open):
            opening = self._opening.get(terms)
            if opening is None:
                opening = asyncio.ensure_future(self._open(terms, session))
                self._opening[terms] = opening
                opening.add_done_callback(lambda _: self._opening.pop(terms, None))
            shared = await asyncio.shield(opening)
        assert shared is not None
        self._attach(shared, session)
        return shared

    async def close(self) -> None:
        held = list(self._held.values())
        self._held.clear()
        await asyncio.gather(*(shared.link.close() for shared in held))

    async def _open(self, terms: bytes, session: Session) -> Shared:
        if len(self._held) >= MOST_TERMS:
            raise Unavailable(f"too many kinds of clients use server {self._name!r}", EXHAUSTED)
        shared = self._make(lambda _link, _because: self._drop(terms))
        try:
            await shared.link.open()
            await shared.link.greet(session.hello)
        except BaseException:
            await shared.link.close()
            raise
        self._held[terms] = shared
        return shared

    def _attach(self, shared: Shared, session: Session) -> None:
        session.shared[self._name] = shared.link
        if session not in shared.sharers:
            shared.sharers.attach(session)
            session.farewells.append(lambda: self._detach(shared, session))

    def _detach(self, shared: Shared, session: Session) -> None:
        """Unsubscribe from what nobody follows any more; a link nobody shares is closed."""
        for uri in shared.sharers.detach(session):
            self._spawn(_unsubscribe(shared.link, uri))
        idle = [terms for terms, held in self._held.items() if held is shared]
        if idle and not len(shared.sharers):
            self._drop(idle[0])
            self._spawn(shared.link.close())

    def _drop(self, terms: bytes) -> None:
        self._held.pop(terms, None)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def greeting(terms: Mapping[str, object]) -> dict[str, object]:
    """How the gateway introduces itself to a server."""
    return {
        "protocolVersion": mcp.LATEST_HANDSHAKE,
        "capabilities": terms,
        "clientInfo": {"name": "comity", "version": "0.1.0"},
    }


def extended_terms(session: Session) -> bytes | None:
    """A key for what the client declared beyond plain MCP, or None if it declared no more."""
    declared = {name: jsonrpc.value(raw) for name, raw in session.capabilities.items()}
    if not any(
        said not in ({}, None) for name, said in declared.items() if name not in STANDARD_TERMS
    ):
        return None
    return msgspec.json.encode([session.version, declared], order="sorted")


async def _unsubscribe(link: Link, uri: str) -> None:
    try:
        await link.request(mcp.UNSUBSCRIBE, {"uri": uri})
    except Unavailable:
        return
