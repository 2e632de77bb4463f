"""Every client's toolbelt: in a session of its own, or its party's where there are no sessions.

Rule 1: whatever is read of a belt is true at that moment. A tool that is gone, is described
        otherwise, or may no longer be used has left it before, and its tokens with it.
Rule 2: what costs tokens is a definition as this client is shown it, byte by byte.
Rule 3: a client is told that its list is another one when it is, and not otherwise.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from comity.kernel.call import Call
from comity.kernel.catalog import Kind, Offer
from comity.kernel.catalog_access import CatalogAccess
from comity.kernel.sessions import Session
from comity.ports.finding import Tokens
from comity.rules.eras import handshake_tool
from comity.rules.patterns import covers
from comity.rules.toolbelt import Budget, Loaded, Pinned, Toolbelt, Weighed
from comity.wire.errors import Unavailable
from comity.wire.parties import Actor

log = logging.getLogger(__name__)

MOST_BELTS: Final = 10_000
"""Of parties without sessions; each holds some thousand bytes."""

MOST_COUNTED: Final = 20_000
MOST_WARNED: Final = 1000

type Told = Callable[[Actor, Session | None], None]
"""Hears that the list of tools of a party, or of one session, is another one."""


@dataclass(frozen=True, slots=True)
class Outfit:
    """What every belt begins with; `own` are the gateway's own tools, where they are listed."""

    budget: Budget = field(default_factory=Budget)
    pinned: Sequence[Pinned] = ()
    own: Sequence[bytes] = ()
    idle_seconds: float = 1800.0


@dataclass(slots=True)
class Belt:
    """One client's tools: which they are, and how each was described when it was weighed."""

    actor: Actor
    session: Session | None
    tools: Toolbelt
    used: float
    definitions: dict[str, bytes] = field(default_factory=dict[str, bytes])
    # What the client listed last, if ever; and what there was when it was told to list again.
    known: tuple[bytes, ...] | None = None
    told: tuple[bytes, ...] | None = None

    def shown(self, definition: bytes) -> bytes:
        return definition if self.session is None else handshake_tool(definition)

    @property
    def names(self) -> list[str]:
        """In an order that does not change when they are used: a model's cache lives on it."""
        return [*self.tools.pinned, *sorted(self.tools.cached)]

    @property
    def listed(self) -> tuple[bytes, ...]:
        return tuple(self.shown(self.definitions[name]) for name in self.names)


_PLAIN: Final = Outfit()


class Toolbelts:
    """The belts of all clients that this node serves."""

    def __init__(
        self,
        gate: CatalogAccess,
        tokens: Tokens,
        now: Callable[[], float],
        outfit: Outfit = _PLAIN,
    ) -> None:
        self.tokens = tokens
        self.outfit = outfit
        self._gate = gate
        self._now = now
        self._weigh = lru_cache(MOST_COUNTED)(tokens.count)
        self._own_tokens = sum(map(self._weigh, outfit.own))
        self._of_sessions: dict[Session, Belt] = {}
        self._of_parties: OrderedDict[object, Belt] = OrderedDict()
        self._warned: set[tuple[str, ...]] = set()
        self.told: Told | None = None
        # Hears that the tools of a belt are other ones.
        self.settled: Callable[[Belt], None] | None = None

    def __len__(self) -> int:
        return len(self._of_sessions) + len(self._of_parties)

    def of(self, call: Call) -> Belt:
        """The belt of whoever makes this call, as it is now. Raises Unavailable."""
        session = call.client if isinstance(call.client, Session) else None
        return self.of_client(call.outbox.actor, session)

    def of_client(self, actor: Actor, session: Session | None) -> Belt:
        belt = self._find(actor, session)
        self._refresh(belt)
        return belt

    def listed(self, belt: Belt) -> list[bytes]:
        """All that a client of discovery mode lists: the gateway's own, pinned, cached."""
        belt.known = listed = belt.listed
        return [*self.outfit.own, *listed]

    def weight(self, belt: Belt, offer: Offer) -> Weighed:
        """What a tool would cost this client."""
        return Weighed(offer.key, self._weigh(belt.shown(offer.definition)))

    def load(self, belt: Belt, offers: Iterable[Offer]) -> Loaded:
        """Cache tools that were asked for, the best of them first."""
        found = {offer.key: offer for offer in offers}
        loaded = belt.tools.load([self.weight(belt, offer) for offer in found.values()])
        self._settle(belt, found)
        return loaded

    def use(self, call: Call, offer: Offer) -> None:
        """A tool is called by somebody who may: it stays at hand. Raises Unavailable."""
        session = call.client if isinstance(call.client, Session) else None
        belt = self._find(call.outbox.actor, session)
        if belt.definitions.get(offer.key) is offer.definition:
            # The usual case: one that is there, and was there the last time.
            if offer.key in belt.tools.cached:
                belt.tools.cached.move_to_end(offer.key)
            return
        self._refresh(belt)
        belt.tools.use(self.weight(belt, offer))
        self._settle(belt, {offer.key: offer})

    def evict(self, belt: Belt, names: Iterable[str]) -> tuple[str, ...]:
        """Let go of cached tools, by their names; gives those that were there."""
        gone = belt.tools.drop(names)
        self._settle(belt, {})
        return gone

    def is_other(self, actor: Actor, session: Session | None) -> bool:
        """Whether what a client would list now is not what it listed last."""
        try:
            belt = self.of_client(actor, session)
        except Unavailable:
            return True
        return belt.known is not None and belt.listed != belt.known

    def _find(self, actor: Actor, session: Session | None) -> Belt:
        now = self._now()
        if session is not None:
            belt = self._of_sessions.get(session)
            if belt is None:
                belt = self._of_sessions[session] = self._new(actor, session)
                session.farewells[self] = lambda: self._forget(session)
            belt.actor = actor
            return belt
        key = _key(actor)
        belt = self._of_parties.get(key)
        if belt is None:
            belt = self._of_parties[key] = self._new(actor, None)
        belt.used = now
        self._of_parties.move_to_end(key)
        self._forget_idle(now)
        return belt

    def _new(self, actor: Actor, session: Session | None) -> Belt:
        return Belt(actor, session, Toolbelt(self.outfit.budget, self._own_tokens), self._now())

    def _forget(self, session: Session) -> None:
        self._of_sessions.pop(session, None)

    def _forget_idle(self, now: float) -> None:
        oldest, idle = next(iter(self._of_parties.values())), self.outfit.idle_seconds
        while len(self._of_parties) > MOST_BELTS or now - oldest.used > idle:
            self._of_parties.popitem(last=False)
            oldest = next(iter(self._of_parties.values()))

    def _refresh(self, belt: Belt) -> None:
        """Let go of what is not as it was, and pin what is there to be pinned."""
        gone = [name for name in belt.tools.cached if not self._stands(belt, name)]
        belt.tools.drop(gone)
        pinned = {offer.key: offer for offer in self._to_be_pinned(belt.actor)}
        belt.tools.pin([self.weight(belt, offer) for offer in pinned.values()])
        self._keep(belt, pinned)
        self._warn(belt)

    def _settle(self, belt: Belt, offers: Mapping[str, Offer]) -> None:
        """Note what has come in, and have the client told if it lists others now."""
        self._keep(belt, offers)
        if self.settled is not None:
            self.settled(belt)
        if self.told is None or belt.known is None:
            return
        listed = belt.listed
        if listed not in (belt.known, belt.told):
            belt.told = listed
            self.told(belt.actor, belt.session)

    def _keep(self, belt: Belt, offers: Mapping[str, Offer]) -> None:
        """Hold the definitions of what is in a belt, and of nothing else."""
        held = {**belt.definitions, **{key: offer.definition for key, offer in offers.items()}}
        belt.definitions = {name: held[name] for name in belt.names}

    def _stands(self, belt: Belt, name: str) -> bool:
        offer = self._gate.catalog.named(Kind.TOOL, name)
        if offer is None or offer.definition != belt.definitions[name]:
            return False
        return self._gate.shows(belt.actor, Kind.TOOL, offer)

    def _to_be_pinned(self, actor: Actor) -> Iterable[Offer]:
        for entry in self.outfit.pinned:
            for server, name in entry.tools if covers(entry.party, actor.party) else ():
                offer = self._gate.catalog.offered(server, Kind.TOOL, name)
                if offer is not None and self._gate.shows(actor, Kind.TOOL, offer):
                    yield offer

    def _warn(self, belt: Belt) -> None:
        aside = belt.tools.set_aside
        if aside and aside not in self._warned and len(self._warned) < MOST_WARNED:
            self._warned.add(aside)
            log.warning(
                "%s pinned for %r are not listed: with the gateway's own tools they take more than "
                "pinned_reserve, %d tokens; pin fewer, or raise it in [discovery]",
                *(", ".join(aside)[:500], belt.actor.party, self.outfit.budget.pinned_reserve),
            )


def _key(actor: Actor) -> tuple[object, ...]:
    """Two keys of one party may be bound to different tools."""
    return actor.party, actor.permissions
