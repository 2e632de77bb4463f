"""Messages from outside: each is judged by itself, taken once, and goes where the operator said.

Rule 1: a message is taken once for its server, channel and id: on all nodes, and for good. (D-72)
Rule 2: what could not be taken now is given back, and its server told that it may try again.
Rule 3: who may say something is decided by an error; what comes of it by a result. (D-60)
Rule 4: what we said ourselves, and whatever comes too often, starts nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from comity.kernel.live.channel_places import OWN, LivePlaces
from comity.kernel.live.channels import enabled_sets
from comity.kernel.live.hosting import Hosted, Told
from comity.kernel.live.mirroring import Mirroring
from comity.kernel.live.noting import Deed as Noted
from comity.kernel.live.parts import Cause, Errand, Origin, Turns
from comity.ports.incoming import Deed, Standing
from comity.rules import channels as rules
from comity.rules.channels import Goal, Place, Route
from comity.rules.rates import Rate
from comity.wire import channels as wire
from comity.wire.audit import Result, Type
from comity.wire.channels import Incoming
from comity.wire.errors import MalformedMessage, Unavailable
from comity.wire.features import FeatureSet, Use

log = logging.getLogger(__name__)

HELD: Final = timedelta(minutes=2)
BEGIN_SECONDS: Final = 30.0
MOST_OF_ONE: Final = 1_000
"""So many messages of one server are dealt with at once."""

MANY_CHANNELS: Final = 10
"""All channels of a server together are taken so many times as much of as one."""

_MOST_PACES: Final = 10_000
RATE_LIMITED: Final = "rate_limited"
UNAVAILABLE: Final = "unavailable"
BEING_TAKEN: Final = "being_taken"
DUPLICATE: Final = "duplicate"
ECHO: Final = "own_words"
NO_TURN: Final = "no_turn"
AGAIN: Final = frozenset({RATE_LIMITED, UNAVAILABLE, BEING_TAKEN})
"""What a server is told of messages that it may send again."""

type Turning = Callable[[], Turns | None]
type _Result = dict[str, object]


@dataclass(frozen=True, slots=True)
class _Arrived:
    """One message that may come in: of whom, by what, and what is to be done."""

    by: Hosted
    feature: FeatureSet
    message: Incoming
    route: Route

    @property
    def place(self) -> Place:
        return Place(self.message.channel, self.by.server)

    @property
    def key(self) -> str:
        return rules.message_key(self.by.server, self.message.channel, self.message.id)


class Arrivals:
    """Answers `channels/incoming`."""

    def __init__(self, places: LivePlaces, mirroring: Mirroring, turns: Turning) -> None:
        self._places = places
        self._mirroring = mirroring
        self._turns = turns
        self._due: dict[tuple[str, str], float] = {}
        self._at_once: dict[str, int] = {}
        places.ways.channels.hosting.add(wire.INCOMING, self.answer)

    async def answer(self, told: Told) -> Mapping[str, object]:
        sets = rules.require(enabled_sets(told.by), Use.OBSERVE)
        found = wire.messages_in(told.params)
        server = told.by.server
        if self._at_once.get(server, 0) + len(found) > MOST_OF_ONE:
            return {"results": [_refused(id, RATE_LIMITED) for id, _ in found]}
        self._at_once[server] = self._at_once.get(server, 0) + len(found)
        try:
            return {"results": await self._taken(told.by, sets, found)}
        finally:
            self._at_once[server] -= len(found)
            if not self._at_once[server]:
                del self._at_once[server]

    async def _taken(
        self,
        by: Hosted,
        sets: Sequence[FeatureSet],
        found: Sequence[tuple[str, Incoming | MalformedMessage]],
    ) -> list[_Result]:
        judged = [self._judged(by, sets, id, each) for id, each in found]
        wanted = {each.key: each for each in judged if isinstance(each, _Arrived)}
        deeds = await self._claimed(list(wanted))
        await self._recognised(by.server, found, judged)
        results: list[_Result] = []
        done: dict[str, str] = {}
        for each in judged:
            if isinstance(each, _Arrived):
                # One that stands twice in a batch was done when its first was.
                result = await self._result(each, deeds.get(each.key))
                if result["accepted"]:
                    note = done[each.key] = str(result.get("conversationId", ""))
                    deeds[each.key] = Deed(each.key, Standing.DONE, note)
                results.append(result)
            else:
                results.append(each)
        await self._settled(done)
        self._noted(by, results)
        return results

    # Which of them may come in

    def _judged(
        self,
        by: Hosted,
        sets: Sequence[FeatureSet],
        id: str,
        message: Incoming | MalformedMessage,
    ) -> _Arrived | _Result:
        if isinstance(message, MalformedMessage):
            return _refused(id, str(message)[:200], message.fault.code)
        place, channels = Place(message.channel, by.server), self._places.ways.channels
        known, closed = channels.get(by.server, place.id), channels.is_closed(by.server, place.id)
        why = rules.why_not(place.id, sets, by.policy.scopes)
        why = why or rules.why_not_towards(known, is_out=False, is_closed=closed)
        if why is not None:
            return _refused(id, why[1], why[0].code)
        route = self._places.route_of(place)
        if route is None or (route.to == Goal.NOTHING and not route.mirror):
            return _refused(id, NO_TURN)
        if self._places.ways.publishing.is_echo(place, message.id, message.content):
            return _refused(id, ECHO)
        if not self._is_in_time(place, route):
            return _refused(id, RATE_LIMITED)
        return _Arrived(by, sets[0], message, route)

    def _is_in_time(self, place: Place, route: Route) -> bool:
        """Within the pace of its channel, and of all channels of its server together: else who
        goes on to new channels would go on for ever."""
        now, own, all_own = asyncio.get_running_loop().time(), route.per_minute, MANY_CHANNELS
        paces = {
            (place.server, place.id): Rate(own, 60.0, own),
            (place.server, ""): Rate(own * all_own, 60.0, own * all_own),
        }
        if any(rate.wait(self._due.get(key, 0.0), now) for key, rate in paces.items()):
            return False
        if len(self._due) > _MOST_PACES:
            self._due = {key: due for key, due in self._due.items() if due > now}
        for key, rate in paces.items():
            self._due[key] = rate.after(self._due.get(key, 0.0), now)
        return True

    # What is done with them

    async def _claimed(self, keys: list[str]) -> dict[str, Deed | None]:
        once = self._places.once
        now = once.clock()
        try:
            deeds = await once.records.take(keys, once.holder, now, now + HELD)
        except Unavailable as error:
            log.info("messages cannot be taken just now: %s", error)
            return dict.fromkeys(keys)
        return {each.key: each for each in deeds}

    async def _recognised(
        self,
        server: str,
        found: Sequence[tuple[str, Incoming | MalformedMessage]],
        judged: Sequence[_Arrived | _Result],
    ) -> None:
        """Remember which messages are our own words, should they come once more."""
        for (_, message), result in zip(found, judged, strict=True):
            is_own = isinstance(result, dict) and result.get("reason") == ECHO
            if is_own and isinstance(message, Incoming):
                try:
                    await self._places.remember(Place(message.channel, server), message.id)
                except Unavailable as error:
                    log.info("an echo is not remembered: %s", error)

    async def _result(self, arrived: _Arrived, deed: Deed | None) -> _Result:
        id, once = arrived.message.id, self._places.once
        before = _not_ours(id, deed)
        if before is not None:
            return before
        try:
            async with asyncio.timeout(BEGIN_SECONDS):
                conversation = await self._done(arrived)
        except MalformedMessage as error:
            await once.records.release(once.holder, [arrived.key])
            return _refused(id, str(error)[:200], error.fault.code)
        except (Unavailable, TimeoutError) as error:
            log.info("a message of server %r waits: %s", arrived.by.server, error)
            await self._given_back(arrived.key)
            return _refused(id, UNAVAILABLE)
        return wire.result_of(id, conversation=conversation)

    async def _settled(self, done: Mapping[str, str]) -> None:
        """All of a batch at once. What a crash leaves unsettled is taken again where it is sent
        again, and comes to nothing more: a cause has one turn, an envelope one id."""
        once = self._places.once
        try:
            await once.records.settle(once.holder, done, once.clock())
        except Unavailable as error:
            log.info("messages that were taken are remembered for a while only: %s", error)

    async def _given_back(self, key: str) -> None:
        """Where the store cannot be told, its time lapses."""
        try:
            await self._places.once.records.release(self._places.once.holder, [key])
        except Unavailable as error:
            log.info("a message stays taken for a while: %s", error)

    async def _done(self, arrived: _Arrived) -> str:
        """Have happen what is to; the conversation that it is in. Raises Unavailable."""
        route, message, server = arrived.route, arrived.message, arrived.by.server
        conversation = rules.conversation_of(server, message, route.conversation)
        if route.to == Goal.TURN:
            turns = self._turns()
            if turns is None:
                raise Unavailable("nobody takes turns here; name a model in the settings")
            taken = await turns.begin(self._errand(arrived, conversation))
            conversation = taken.conversation
        elif route.to != Goal.NOTHING:
            await self._mirroring.say_in(rules.place_in(route.to), server, message)
        self._mirroring.came_in(server, message)
        return conversation

    def _errand(self, arrived: _Arrived, conversation: str) -> Errand:
        route, message, place = arrived.route, arrived.message, arrived.place
        say_in = route.say_in or (str(place),)
        candidates = [rules.place_in(each).shown for each in say_in]
        cause = Cause(
            Origin.CHANNEL,
            f"channel:{arrived.key}",
            route.party,
            server=arrived.by.server,
            feature=arrived.feature.name,
            channels=rules.channels_context(place, message, say_in, candidates),
        )
        author = rules.attributed(place.server, message)
        return Errand(cause, conversation, message.content, author, say_in)

    def _noted(self, by: Hosted, results: Sequence[_Result]) -> None:
        accepted = sum(bool(each["accepted"]) for each in results)
        reasons = sorted({str(each["reason"]) for each in results if "reason" in each})
        details = {"accepted": accepted, "refused": len(results) - accepted, "reasons": reasons[:5]}
        noted = Noted(by.server, wire.INCOMING, details=details)
        outcome = Result.SUCCESS if accepted or not results else Result.BLOCKED
        self._places.ways.channels.hosting.noting.note(Type.FEATURE_USED, noted, outcome)


def _not_ours(id: str, deed: Deed | None) -> _Result | None:
    """What is told of a message that is not for us to take; None for one that is."""
    if deed is None:
        return _refused(id, UNAVAILABLE)
    if deed.standing is Standing.OURS:
        return None
    if deed.standing is Standing.BUSY:
        return _refused(id, BEING_TAKEN)
    if deed.note == OWN:
        return _refused(id, ECHO)
    return wire.result_of(id, conversation=deed.note, reason=DUPLICATE)


def _refused(id: str, reason: str, code: int = 0) -> _Result:
    return wire.result_of(id, reason=reason, code=code)
