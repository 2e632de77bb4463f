"""The channels of live servers: registered, listed, opened and closed, each by itself. (MCPL §14)

Rule 1: a channel is its server and its id; what two servers call alike are two channels. (D-72)
Rule 2: who may use which is judged when it is used, so that another decision counts at once.
Rule 3: what an operator closed stays closed until it is opened again, whatever its server says.
Rule 4: a server has so many channels, and changes them so often, and no more.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from comity.kernel.chores import Chores
from comity.kernel.live.hosting import Hosted, Hosting, Told
from comity.kernel.live.noting import Deed
from comity.rules import channels as rules
from comity.rules.channels import EITHER, Place
from comity.rules.rates import Rate
from comity.wire import channels as wire
from comity.wire.audit import Result, Type
from comity.wire.channels import MOST_CHANNELS, Descriptor
from comity.wire.errors import (
    CHANNEL_NOT_OPENED,
    CHANNEL_UNKNOWN,
    EXHAUSTED,
    INVALID_PARAMS,
    RATE_LIMITED,
    SCOPE_NOT_PERMITTED,
    MalformedMessage,
    Unavailable,
)
from comity.wire.features import FeatureSet, Use

log = logging.getLogger(__name__)

LIST_WITHIN: Final = timedelta(seconds=10)
OPEN_WITHIN: Final = timedelta(seconds=30)
_CHANGES: Final = Rate(120, 60.0, 120)


@dataclass(frozen=True, slots=True)
class Shown:
    """One channel as an operator sees it; `state` is open, closed, away or forbidden."""

    server: str
    descriptor: Descriptor
    state: str


class Channels:
    """All channels of the live servers of this node."""

    def __init__(self, hosting: Hosting) -> None:
        self.hosting = hosting
        self._of: dict[str, dict[str, Descriptor]] = {}
        self._on: dict[str, Hosted] = {}
        self._closed: set[tuple[str, str]] = set()
        self._due: dict[str, float] = {}
        self._chores = Chores("channels")
        hosting.add(wire.REGISTER, self._register)
        hosting.add(wire.LIST, self._list)
        hosting.hear(wire.CHANGED, self._changed)
        hosting.parts.watchers.append(self._seen)

    def stop(self) -> None:
        self._chores.cancel()

    # What there is

    def get(self, server: str, id: str) -> Descriptor | None:
        return self._of.get(server, {}).get(id)

    def is_closed(self, server: str, id: str) -> bool:
        return (server, id) in self._closed

    def of(self, server: str) -> list[Descriptor]:
        return list(self._of.get(server, {}).values())

    def named(self, server: str, label: str) -> str | None:
        """The id of the one channel of a server that has this label."""
        found = [each.id for each in self.of(server) if each.label == label]
        return found[0] if len(found) == 1 else None

    def shown(self) -> list[Shown]:
        """All of them, in the order of their servers and ids."""
        return [
            Shown(server, each, self._state(server, each))
            for server in sorted(self._of)
            for _, each in sorted(self._of[server].items())
        ]

    def places(self) -> list[Place]:
        """Where words can go to just now."""
        return [
            Place(each.descriptor.id, each.server)
            for each in self.shown()
            if each.state == "open" and each.descriptor.direction is not wire.Direction.IN
        ]

    def _state(self, server: str, descriptor: Descriptor) -> str:
        hosted = self.hosting.get(server)
        if hosted is None:
            return "away"
        if self.is_closed(server, descriptor.id):
            return "closed"
        return "forbidden" if _why_not(hosted, descriptor.id, *EITHER) else "open"

    def outlet(self, place: Place) -> tuple[Hosted, Descriptor]:
        """Who carries words to a channel. Raises MalformedMessage where they may not go there,
        Unavailable where its server is away."""
        hosted = self.hosting.get(place.server)
        if place.id == wire.THINKING:
            raise MalformedMessage("nobody says anything among thoughts", SCOPE_NOT_PERMITTED)
        if hosted is None:
            raise Unavailable(f"server {place.server!r:.80} is not here just now")
        sets = rules.require(enabled_sets(hosted), Use.PUBLISH)
        found = self.get(place.server, place.id)
        closed = self.is_closed(place.server, place.id)
        why = rules.why_not_towards(found, is_out=True, is_closed=closed)
        why = why or rules.why_not(place.id, sets, hosted.policy.scopes)
        if why is not None or found is None:
            fault, because = why or (CHANNEL_UNKNOWN, "")
            raise MalformedMessage(f"{place.shown!r:.200}: {because}", fault)
        return hosted, found

    # What servers say of theirs

    async def _register(self, told: Told) -> Mapping[str, object]:
        rules.require(enabled_sets(told.by), *EITHER)
        self._hold_back(told.by.server)
        found = wire.registered_in(told.params)
        self._seen(told.by)
        results = self._put(told.by, found)
        return {"results": results}

    async def _list(self, told: Told) -> Mapping[str, object]:
        rules.require(enabled_sets(told.by), *EITHER)
        return wire.listing(self.of(told.by.server))

    async def _changed(self, told: Told) -> None:
        rules.require(enabled_sets(told.by), *EITHER)
        self._hold_back(told.by.server)
        changes = wire.changes_in(told.params)
        self._seen(told.by)
        for id in changes.removed:
            self._of.get(told.by.server, {}).pop(id, None)
        self._put(told.by, (*changes.added, *changes.updated))

    def _hold_back(self, server: str) -> None:
        now = asyncio.get_running_loop().time()
        wait = _CHANGES.wait(self._due.get(server, 0.0), now)
        if wait:
            raise Unavailable("channels change too often", RATE_LIMITED, timedelta(seconds=wait))
        self._due[server] = _CHANGES.after(self._due.get(server, 0.0), now)

    def _put(self, hosted: Hosted, found: Iterable[Descriptor]) -> list[dict[str, object]]:
        """Take those in that may be, one by one; what became of each."""
        results: list[dict[str, object]] = []
        seen: set[str] = set()
        for each in found:
            why = self._why_not_put(hosted, each, seen)
            seen.add(each.id)
            if why is None:
                self._of.setdefault(hosted.server, {})[each.id] = each
                results.append(wire.registration_of(each.id))
            else:
                # One that is refused is none, though it was let before.
                self._of.get(hosted.server, {}).pop(each.id, None)
                fault, because = why
                results.append(wire.registration_of(each.id, because, fault.code))
        refused = sum(not each["accepted"] for each in results)
        if refused:
            details = {"refused": refused, "of": len(results)}
            deed = Deed(hosted.server, wire.REGISTER, outcome="refused", details=details)
            self.hosting.noting.note(Type.FEATURE_REFUSED, deed, Result.BLOCKED)
        return results

    def _why_not_put(
        self, hosted: Hosted, descriptor: Descriptor, seen: set[str]
    ) -> tuple[Any, str] | None:
        if descriptor.id in seen:
            return INVALID_PARAMS, "the id stands twice"
        own = self._of.get(hosted.server, {})
        if descriptor.id not in own and len(own) >= MOST_CHANNELS:
            return EXHAUSTED, f"there are {MOST_CHANNELS} channels already"
        return _why_not(hosted, descriptor.id, *EITHER)

    # What the host asks

    def _seen(self, hosted: Hosted) -> None:
        """A server is there, or may do something else; those of an older connection are none."""
        is_new = self._on.get(hosted.server) is not hosted
        if is_new:
            self._on[hosted.server] = hosted
            self._of.pop(hosted.server, None)
        may = any(use in each.uses for each in enabled_sets(hosted) for use in EITHER)
        if may and not self._of.get(hosted.server) and hosted.declared.channels:
            self._chores.start(self._asked(hosted))

    async def _asked(self, hosted: Hosted) -> None:
        try:
            await self.relist(hosted)
        except (MalformedMessage, Unavailable) as error:
            # One that registers its channels need not answer this.
            log.info("server %r does not list its channels: %s", hosted.server, error)

    async def relist(self, hosted: Hosted) -> None:
        """Ask a server which channels it has. Raises Unavailable, MalformedMessage."""
        found = wire.listed_in(await hosted.ask(wire.LIST, {}, LIST_WITHIN))
        if self._on.get(hosted.server) is hosted:
            self._put(hosted, found)

    async def open(
        self, server: str, type: str, address: Mapping[str, Any], metadata: Mapping[str, Any]
    ) -> Descriptor:
        """Have a server connect a channel. Raises MalformedMessage, Unavailable. (§14.3)"""
        hosted = self._need(server)
        rules.require(enabled_sets(hosted), *EITHER)
        asked = wire.opening(type, address, metadata)
        try:
            found = wire.opened_in(await hosted.ask(wire.OPEN, asked, OPEN_WITHIN))
        except (MalformedMessage, Unavailable) as error:
            because = f"server {server!r} could not open it: {error}"
            raise MalformedMessage(because[:500], CHANNEL_NOT_OPENED) from None
        self._closed.discard((server, found.id))
        (result,) = self._put(hosted, [found])
        if not result["accepted"]:
            raise MalformedMessage(str(result["reason"]), SCOPE_NOT_PERMITTED)
        return found

    async def reopen(self, server: str, id: str) -> Descriptor:
        """Open one that is known by what its server said of it."""
        found = self._known(server, id)
        return await self.open(server, found.type, found.address, found.metadata)

    async def close(self, server: str, id: str) -> bool:
        """Nothing goes there or comes from there any more; whether its server closed it too."""
        hosted, found = self._need(server), self._known(server, id)
        rules.require(enabled_sets(hosted), *EITHER)
        self._closed.add((server, id))
        return wire.closed_in(await hosted.ask(wire.CLOSE, {"channelId": found.id}, OPEN_WITHIN))

    def _need(self, server: str) -> Hosted:
        hosted = self.hosting.get(server)
        if hosted is None:
            raise Unavailable(f"there is no live server {server!r:.80} here just now")
        return hosted

    def _known(self, server: str, id: str) -> Descriptor:
        found = self.get(server, id)
        if found is None:
            raise MalformedMessage(f"there is no channel {id!r:.80} of {server!r}", CHANNEL_UNKNOWN)
        return found


def enabled_sets(hosted: Hosted) -> list[FeatureSet]:
    return [each for name, each in hosted.declared.sets.items() if name in hosted.enabled]


def _why_not(hosted: Hosted, channel: str, *uses: Use) -> tuple[Any, str] | None:
    sets = [each for each in enabled_sets(hosted) if any(use in each.uses for use in uses)]
    return rules.why_not(channel, sets, hosted.policy.scopes)
