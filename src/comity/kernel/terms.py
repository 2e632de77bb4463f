"""Shared links to one server, one for each set of terms its clients ask for. (MCP §4.1)

A plain client can share the gateway's own link, which declares all of plain MCP. A client that
declares more (MGP, MCPL, anything experimental) negotiates with the server itself, so it shares a
link only with clients that declared exactly the same.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import msgspec
from msgspec import Raw

from comity.kernel.chores import Chores
from comity.kernel.links import Link
from comity.kernel.listing import OURSELVES
from comity.kernel.sessions import Session
from comity.kernel.sharing import Sharers
from comity.rules.negotiation import TO_SERVERS, offer
from comity.wire import features, jsonrpc, mcp
from comity.wire.errors import EXHAUSTED, SERVER_NOT_READY, Unavailable
from comity.wire.negotiation import declare, without

MOST_TERMS: Final = 16
_NOTHING: Final = Raw(b"{}")
GOODBYE_SECONDS: Final = 10.0
STANDARD_TERMS: Final[Mapping[str, Mapping[str, object]]] = {
    "roots": {"listChanged": True},
    "sampling": {"context": {}, "tools": {}},
    "elicitation": {"form": {}, "url": {}},
}
"""What a shared link declares: any client may sit behind it, and each is asked only what it can."""

STAND_IN: Final[Mapping[str, object]] = {"elicitation": {"form": {}}}
"""What is declared of elicitation where people are asked in the place of a client."""

OFFERED: Final = declare({}, offer(TO_SERVERS))
"""What the gateway offers of MGP to every server; a plain one takes no notice. (MGP §1.3)"""


@dataclass(slots=True)
class Shared:
    """A link with those who share it."""

    link: Link
    sharers: Sharers


type Make = Callable[[Callable[[Link, str], None]], Shared]
type Introduce = Callable[[Link, Raw], Raw]
"""What a client's introduction is to its server, on a link of the client's kind."""


class SharedLinks:
    """The links to one server that clients with the same extended terms share."""

    def __init__(
        self,
        name: str,
        within: timedelta,
        make: Make,
        introduce: Introduce = lambda _, hello: hello,
    ) -> None:
        self._name = name
        self._within = within
        self._make = make
        self._introduce = introduce
        self._held: dict[bytes, Shared] = {}
        self._opening: dict[bytes, asyncio.Task[Shared]] = {}
        self._waiting: dict[bytes, list[Session]] = {}
        self._chores = Chores(f"server {name!r}")

    async def find(self, session: Session, plain: Shared) -> Shared:
        """The link this session shares; it is opened, once, by the first who needs it."""
        terms = extended_terms(session)
        shared = plain if terms is None else self._held.get(terms)
        if terms is not None and (shared is None or not shared.link.is_open):
            shared = await self._opened(terms, session)
        assert shared is not None
        self._attach(shared, session)
        return shared

    @property
    def sharers(self) -> list[Sharers]:
        return [shared.sharers for shared in self._held.values()]

    def share_again(self, session: Session, plain: Shared) -> None:
        """The link is a new one; a client with terms of its own opens another when it needs it."""
        if extended_terms(session) is None:
            self._attach(plain, session)

    async def close(self) -> None:
        held, opening = list(self._held.values()), list(self._opening.values())
        self._held.clear()
        for task in opening:
            task.cancel()
        ends = (shared.link.close() for shared in held)
        await asyncio.gather(*ends, *opening, return_exceptions=True)

    async def _opened(self, terms: bytes, session: Session) -> Shared:
        opening = self._opening.get(terms)
        if opening is None:
            if len(self._held) + len(self._opening) >= MOST_TERMS:
                raise Unavailable(f"too many kinds of clients use server {self._name!r}", EXHAUSTED)
            self._waiting[terms] = []
            opening = self._opening[terms] = asyncio.ensure_future(self._open(terms, session))
            opening.add_done_callback(lambda task: self._settle(terms, task))
        self._waiting[terms].append(session)
        # Whoever waits may be cancelled; the link is opened for the others all the same.
        await asyncio.wait([opening])
        if opening.cancelled():
            raise Unavailable(f"server {self._name!r} is starting again", SERVER_NOT_READY)
        return opening.result()

    async def _open(self, terms: bytes, session: Session) -> Shared:
        shared = self._make(lambda _link, _because: self._drop(terms))
        await shared.link.begin(self._within, self._introduce(shared.link, session.hello))
        here = [each for each in self._waiting[terms] if not each.closed]
        if not here:
            await shared.link.close()
            raise Unavailable("the client went away")
        self._held[terms] = shared
        for each in here:
            self._attach(shared, each)
        return shared

    def _settle(self, terms: bytes, task: asyncio.Task[Shared]) -> None:
        del self._opening[terms], self._waiting[terms]
        if not task.cancelled():
            # Those who waited may all be gone; a failure is then nobody's.
            task.exception()

    def _attach(self, shared: Shared, session: Session) -> None:
        if session.closed:
            raise Unavailable("the session has ended")
        session.shared[self._name] = shared.link
        if session not in shared.sharers:
            # Its server may have been started again since: what it shared before is gone.
            leave = session.farewells.pop(self, None)
            if leave is not None:
                leave()
            shared.sharers.attach(session)
            session.farewells[self] = lambda: self._detach(shared, session)

    def _detach(self, shared: Shared, session: Session) -> None:
        """Unsubscribe from what nobody follows any more; a link nobody shares is closed."""
        for uri in shared.sharers.detach(session):
            self._chores.start(_unsubscribe(shared.link, uri))
        idle = [terms for terms, held in self._held.items() if held is shared]
        if idle and not len(shared.sharers):
            self._drop(idle[0])
            self._chores.start(shared.link.close())

    def _drop(self, terms: bytes) -> None:
        self._held.pop(terms, None)


def greeting(
    terms: Mapping[str, object], live: Mapping[str, object] | None = None
) -> dict[str, object]:
    """How the gateway introduces itself to a server; `live` is what it offers of MCPL there."""
    more = {} if live is None else {"experimental": {features.KEY: live}}
    return {
        "protocolVersion": mcp.LATEST_HANDSHAKE,
        "capabilities": {**terms, **more, **OFFERED},
        "clientInfo": OURSELVES,
    }


def speaks_live(hello: Raw) -> bool:
    """Whether a client is a host of MCPL itself; then it agrees with the server on its own."""
    return features.said_in(jsonrpc.members(hello).get("capabilities")) is not None


def without_live(capabilities: Mapping[str, Raw]) -> dict[str, Raw]:
    """The same capabilities with nothing said of MCPL where handshakes say it."""
    left = {**capabilities}
    inside = jsonrpc.members(left.get("experimental", _NOTHING))
    if inside.pop(features.KEY, None) is not None:
        left["experimental"] = jsonrpc.to_raw(inside)
        if not inside:
            del left["experimental"]
    return left


def with_live(hello: Raw) -> Raw:
    """A client's introduction to a server whose calls may carry scopes and state. (MCPL §7, §8)"""
    said = jsonrpc.members(hello)
    declared = jsonrpc.members(said.get("capabilities", _NOTHING))
    inside = jsonrpc.members(declared.get("experimental", _NOTHING))
    more = {**inside, features.KEY: features.OFFERED_TO_CALLERS}
    return jsonrpc.to_raw({**said, "capabilities": {**declared, "experimental": more}})


def plain_terms(capabilities: Mapping[str, object]) -> dict[str, object]:
    """What of a client's capabilities is plain MCP, in one spelling of the few there can be."""
    terms: dict[str, object] = {}
    for name, parts in STANDARD_TERMS.items():
        said = capabilities.get(name)
        if isinstance(said, dict):
            # Nobody tells a server between two requests of a modern client's what has changed.
            terms[name] = {part: {} for part in parts if part in said and part != "listChanged"}
    return terms


def with_stand_in(hello: Raw, stand_ins: Mapping[str, object]) -> Raw:
    """A client's introduction to a server that may have others asked where the client cannot be."""
    said = jsonrpc.members(hello)
    declared = jsonrpc.members(said.get("capabilities", _NOTHING))
    capabilities = {**stand_ins, **declared}
    return jsonrpc.to_raw({**said, "capabilities": capabilities})


def extended_terms(session: Session) -> bytes | None:
    """A key for what the client declared beyond plain MCP, or None if it declared no more."""
    said = session.capabilities
    # Whoever stands at the door of all servers speaks MGP with the gateway, not with each.
    plain = without_live(without(said)) if session.sees_all_servers else said
    declared = {name: jsonrpc.value(raw) for name, raw in plain.items()}
    if not any(
        said not in ({}, None) for name, said in declared.items() if name not in STANDARD_TERMS
    ):
        return None
    return msgspec.json.encode([session.version, declared], order="sorted")


async def _unsubscribe(link: Link, uri: str) -> None:
    with contextlib.suppress(Unavailable, TimeoutError):
        async with asyncio.timeout(GOODBYE_SECONDS):
            await link.request(mcp.UNSUBSCRIBE, {"uri": uri})
