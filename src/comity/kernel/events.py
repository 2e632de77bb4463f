"""The plane of events: who follows which channels, and what reaches whom. (MGP §13)

Rule 1: publishing never waits and never raises; where nobody follows anything it does nothing.
Rule 2: what somebody did is heard by that party; what is about a server, and nobody's doing, by
        those who may know the server; everything by those with `admin/read` over it. What a server
        tells is heard by those who may know that server. Nobody hears anything by a credential that
        counts no more.
Rule 3: each event reaches each follower once, whichever way it came: by its source and id. (D-99)
Rule 4: it is best effort: what nobody follows is told to nobody, and nothing is told again.
"""

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Protocol

from comity.kernel.chores import Chores
from comity.kernel.grants import Judge
from comity.rules.events import Seen, answered, could_be, is_enough, wants
from comity.rules.standard_channels import STANDARD
from comity.wire.errors import EXHAUSTED, Unavailable
from comity.wire.events import Channel, Event, Wanted
from comity.wire.grants import ADMIN_READ, Effect
from comity.wire.parties import Actor

log = logging.getLogger(__name__)

MOST_FOLLOWINGS: Final = 10_000
MOST_OF_PARTY: Final = 256
MOST_SEEN: Final = 10_000
MOST_INDEXED: Final = 4_096

type Hear = Callable[[Event], None]
"""Must not block."""

type Found = Mapping[str, Sequence[str]]
"""Channels, by the server that has them."""


class Beyond(Protocol):
    """Where more channels may be than the gateway's own: at servers, and at other nodes."""

    async def find(self, names: Sequence[str], following: "Following") -> Found:
        """Have these channels and families told from now on. Raises nothing."""
        ...

    def forget(self, following: "Following") -> None:
        """Somebody follows nothing any more."""
        ...

    def known(self) -> Found:
        """What is told just now."""
        ...


class Following:
    """One who hears, until it is closed."""

    def __init__(
        self, wanted: Wanted, actor: Actor, hear: Hear, close: Callable[["Following"], None]
    ) -> None:
        self.wanted = wanted
        self.actor = actor
        self.hear = hear
        self.is_open = True
        # The channels that were found, and the names of which there is none.
        self.subscribed: tuple[str, ...] = ()
        self.unsupported: tuple[str, ...] = ()
        self._found = asyncio.Event()
        self._close = close

    async def settled(self) -> "Following":
        """Until it is known which of the wanted channels there are."""
        await self._found.wait()
        return self

    def settle(self, found: Iterable[str]) -> None:
        self.subscribed, self.unsupported, self.wanted = answered(self.wanted, found)
        self._found.set()

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._close(self)


class Events:
    """Everybody who follows anything at this node."""

    def __init__(
        self,
        judge: Judge,
        counts: Callable[[Actor], bool] = lambda _: True,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.clock = clock
        # Whether anybody follows anything, here or at another node.
        self.is_followed = False
        # Told whether anybody follows anything now: so those who tell need not, meanwhile.
        self.switches: list[Callable[[bool], None]] = []
        self.beyond: list[Beyond] = []
        # Who tells other nodes, where one of them wants this.
        self.span: Hear | None = None
        # Who keeps an event for webhooks; not there before it is known which there are.
        self.post: Callable[[Event], Awaitable[None]] | None = None
        self._judge = judge
        self._counts = counts
        self._followings: dict[Following, tuple[str, ...]] = {}
        self._of_party: Counter[str] = Counter()
        self._by_channel: dict[str, tuple[Following, ...]] = {}
        self._seen = Seen(MOST_SEEN)
        self._wanted_elsewhere = False
        self._run = secrets.token_hex(8)
        self._minted = 0
        self._chores = Chores("who follows events")

    def __len__(self) -> int:
        return len(self._followings)

    def publish(self, event: Event) -> None:
        """Something happened at this node, or one of its servers says so."""
        if not self.is_followed or (event.source and not self._seen.is_new(event)):
            return
        self._deliver(event)
        if self.span is not None:
            self.span(event)

    def tell(self, channel: str, data: Mapping[str, object], server: str = "") -> None:
        """Publish what is nobody's doing, on a channel of the gateway's own."""
        if self.is_followed:
            severity = STANDARD[channel].severity
            self.publish(Event(self.mint(), channel, self.clock(), severity, data, server))

    def mint(self) -> str:
        """A name for an event that no other has, at no node."""
        self._minted += 1
        return f"{self._run}-{self._minted:x}"

    def arrived(self, event: Event) -> None:
        """Another node tells of an event."""
        if self._followings and self._seen.is_new(event):
            self._deliver(event)

    def follow(self, wanted: Wanted, actor: Actor, hear: Hear) -> Following:
        """Hear what is wanted, as far as this actor may; from now on. Raises Unavailable."""
        party = actor.party
        if len(self._followings) >= MOST_FOLLOWINGS or self._of_party[party] >= MOST_OF_PARTY:
            raise Unavailable("too many subscriptions are open already", EXHAUSTED)
        following = Following(wanted, actor, hear, self._leave)
        names = could_be(name for name in wanted.channels if name not in STANDARD)
        self._followings[following] = names
        self._of_party[party] += 1
        self._changed()
        self._chores.start(self._settle(following, names), at_once=True)
        return following

    def want_elsewhere(self, is_wanted: bool) -> None:
        """Whether another node wants to hear anything."""
        self._wanted_elsewhere = is_wanted
        self._changed()

    def channels(self, actor: Actor) -> list[Channel]:
        """What there is to follow for this actor, as far as it is known just now."""
        told: dict[str, list[str]] = {}
        for beyond in self.beyond:
            for server, names in beyond.known().items():
                if self.knows(actor, server):
                    for name in names:
                        told.setdefault(name, []).append(server)
        others = [
            Channel(name, f"Told by {', '.join(sorted(set(servers)))}.")
            for name, servers in sorted(told.items())
            if name not in STANDARD
        ]
        return [*STANDARD.values(), *others]

    def wanted(self) -> dict[str, None]:
        """All that anybody follows here."""
        return {name: None for each in self._followings for name in each.wanted.channels}

    def stop(self) -> None:
        self._chores.cancel()

    async def _settle(self, following: Following, names: tuple[str, ...]) -> None:
        found = list(STANDARD)
        if names:
            asked = (beyond.find(names, following) for beyond in self.beyond)
            for there in await asyncio.gather(*asked):
                for server, channels in there.items():
                    found += channels if self.knows(following.actor, server) else ()
        following.settle(found)
        if following.is_open:
            self._changed()
        else:
            # It was closed before anybody could be asked for it.
            self._forget(following)

    def _leave(self, following: Following) -> None:
        names, party = self._followings.pop(following), following.actor.party
        self._of_party[party] -= 1
        if self._of_party[party] <= 0:
            del self._of_party[party]
        if names:
            self._forget(following)
        self._changed()

    def _forget(self, following: Following) -> None:
        for beyond in self.beyond:
            beyond.forget(following)

    def _changed(self) -> None:
        self._by_channel.clear()
        self.is_followed = bool(self._followings) or self._wanted_elsewhere
        for switch in self.switches:
            switch(self.is_followed)

    def _deliver(self, event: Event) -> None:
        for following in self._followers(event.channel):
            least = following.wanted.min_severity
            if is_enough(event.severity, least) and self.may_hear(following.actor, event):
                _tell(following, event)

    def _followers(self, channel: str) -> tuple[Following, ...]:
        found = self._by_channel.get(channel)
        if found is None:
            if len(self._by_channel) >= MOST_INDEXED:
                self._by_channel.clear()
            found = tuple(each for each in self._followings if wants(each.wanted, channel))
            self._by_channel[channel] = found
        return found

    def may_hear(self, actor: Actor, event: Event) -> bool:
        """Whether an event is for somebody to know, at this moment."""
        is_over = actor.expires_at is not None and actor.expires_at <= self.clock()
        if is_over or not self._counts(actor):
            return False
        if event.source:
            return self.knows(actor, event.source)
        if event.party == actor.party and event.party:
            return True
        if event.server and not event.party and self.knows(actor, event.server):
            return True
        try:
            judged = self._judge.judge(actor, ADMIN_READ, event.server, event.tool)
        except Unavailable:
            # While nobody can know what is allowed, nobody is told anything of others.
            return False
        return judged.effect is Effect.ALLOW

    def knows(self, actor: Actor, server: str) -> bool:
        """Whether somebody may hear what a server tells; not while nobody can know that."""
        try:
            return self._judge.knows(actor, server)
        except Unavailable:
            return False


def _tell(following: Following, event: Event) -> None:
    try:
        if following.is_open:
            following.hear(event)
    except Exception:
        log.exception("one who follows events failed")
