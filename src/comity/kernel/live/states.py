"""The state that servers leave with their host: kept, rebuilt, moved back, and dropped. (MCPL §8)

Rule 1: what a server says of state is kept before the answer that brought it goes on.
Rule 2: what is written rests on checkpoints that never change, so it is made without holding
        anybody up; where one of them has gone meanwhile, it is made again.
Rule 3: a patch that does not fit, or rests on what is not kept here, loses its data and nothing
        else: the checkpoint stays, and its server is asked by its name. (D-67)
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final
from weakref import WeakValueDictionary

from comity.kernel.live.hosted import Hosted
from comity.ports.states import Current, Dropped, New, Patcher, Place, StateRecords, Summary
from comity.rules import keeping, states
from comity.rules.features_of_tools import WHOLE
from comity.rules.states import Retention
from comity.wire import checkpoints
from comity.wire.checkpoints import Checkpoint, RolledBack
from comity.wire.errors import (
    CHECKPOINT_UNKNOWN,
    FEATURE_NOT_ENABLED,
    POLICY_UNKNOWN,
    UPSTREAM_FAILED,
    MalformedMessage,
    Unavailable,
)
from comity.wire.features import Use
from comity.wire.state_trees import Form, Node, Tree

log = logging.getLogger(__name__)

TRIES: Final = 50
"""How often what is written is made anew; each time somebody else has written something."""

REBUILT_BYTES: Final = 64 * 1024 * 1024
"""What was let in by other settings can still be rebuilt."""

_AT_ONCE_BYTES: Final = 8 * 1024
"""Less than that is patched at once; more would hold up everybody else."""


@dataclass(frozen=True, slots=True)
class StateOptions:
    """How much state a server may leave, how much of it is kept, and how long it is waited for."""

    most_bytes: int = 1024 * 1024
    retention: Retention = field(default_factory=Retention)
    rollback_within: timedelta = timedelta(seconds=30)


type Write = Callable[[], Awaitable[Node | None]]
"""Writes something, if what it rests on is still there."""


_CHANGED: Final = replace(POLICY_UNKNOWN, error_type="state_changed")
"""What was looked at is not there any more, so it is looked at again."""


class States:
    """All state of all servers."""

    def __init__(
        self,
        records: StateRecords,
        patcher: Patcher,
        options: StateOptions,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._records = records
        self._patcher = patcher
        self._options = options
        self._clock = clock
        # One step of a set after the other on this node: fewer are made in vain.
        self._turns: WeakValueDictionary[Place, asyncio.Lock] = WeakValueDictionary()

    # What is kept.

    async def current(self, place: Place) -> Current | None:
        return await self._records.current(place)

    async def tree(self, place: Place) -> Tree:
        return await self._records.tree(place)

    async def summaries(self) -> Sequence[Summary]:
        return await self._records.summaries()

    async def state_of(self, place: Place, node: Node) -> bytes | None:
        """The state at a checkpoint, whole; None for an opaque one. Raises MalformedMessage."""
        try:
            return await self._whole(place, node)
        except Unavailable as error:
            if error.fault is not _CHANGED:
                raise
            raise _unknown(node.name) from None

    # What changes it.

    async def keep(self, place: Place, said: Checkpoint) -> Node:
        """Keep what a call left behind, which counts from now. Raises MalformedMessage."""
        for name in (said.name, said.parent):
            if name is not None and not keeping.is_name(name):
                raise MalformedMessage("no checkpoint can have this name", UPSTREAM_FAILED)
        async with self._turn(place):
            node = await self._until_written(lambda: self._kept(place, said))
            every = max(1, self._options.retention.most // states.SLACK)
            if node.number % every == 0:
                await self._prune(place)
        return node

    async def roll_back(self, by: Hosted, feature: str, name: str) -> RolledBack:
        """Have the server go back, and follow it if it does. (§8.5, §8.6)

        Raises MalformedMessage, with the server's own code where it said one; and Unavailable.
        """
        place = Place(by.server, feature)
        if feature == WHOLE or not by.require(feature, Use.TOOLS).has_rollback:
            because = f"server {by.server!r} does not say that this can be rolled back"
            raise MalformedMessage(because, FEATURE_NOT_ENABLED)
        node = await self._records.find(place, name)
        if node is None:
            raise _unknown(name)
        asked = checkpoints.rollback(feature, name)
        try:
            answer = await by.ask(checkpoints.ROLLBACK, asked, self._options.rollback_within)
        except MalformedMessage as error:
            if error.fault.code != CHECKPOINT_UNKNOWN.code:
                raise
            await self._records.lose(place, node.number)
            raise MalformedMessage(str(error), CHECKPOINT_UNKNOWN) from None
        told = checkpoints.rolled_back_in(answer)
        if told.checkpoint != name:
            because = f"server {by.server!r} answered for another checkpoint"
            raise MalformedMessage(because, UPSTREAM_FAILED)
        if told.success:
            await self._follow(place, name)
        return told

    async def forget(self, place: Place) -> int:
        """Drop all that is kept of it; how many checkpoints that were."""
        async with self._turn(place):
            return await self._records.forget(place)

    async def tend(self) -> None:
        """Drop what has been kept for long enough. Raises Unavailable."""
        for each in await self._records.summaries():
            async with self._turn(each.place):
                await self._prune(each.place)

    # How.

    def _turn(self, place: Place) -> asyncio.Lock:
        return self._turns.setdefault(place, asyncio.Lock())

    async def _until_written(self, write: Write) -> Node:
        for _ in range(TRIES):
            try:
                written = await write()
            except Unavailable as error:
                if error.fault is not _CHANGED:
                    raise
                written = None
            if written is not None:
                return written
        raise Unavailable("too many change this state at once", POLICY_UNKNOWN)

    async def _kept(self, place: Place, said: Checkpoint) -> Node | None:
        known = await self._records.find(place, said.name)
        if known is not None and said.is_opaque:
            return await self._moved(place, known)
        base = await self._base(place, said, known)
        state, why = await self._state(place, said, base)
        if known is not None and state is not None and state == await self._whole(place, known):
            return await self._moved(place, known)
        if base is known:
            # It takes the place of what it rests on, and so has to stand by itself.
            base = None
        patch = None if said.data is not None or said.patch is None else bytes(said.patch)
        form, line = states.form_of(state, patch, base)
        number = None if base is None else base.number
        new = New(said.name, self._clock(), said.parent, number, form, line, state, patch, why)
        instead = None if known is None else await self._dropping(place, frozenset({known.number}))
        return await self._records.add(place, new, instead)

    async def _base(self, place: Place, said: Checkpoint, known: Node | None) -> Node | None:
        if said.parent is None:
            return None
        return known if said.parent == said.name else await self._records.find(place, said.parent)

    async def _state(
        self, place: Place, said: Checkpoint, base: Node | None
    ) -> tuple[bytes | None, str]:
        """The whole state that a checkpoint stands for, or why it is not known here."""
        most = self._options.most_bytes
        if said.data is not None:
            data = bytes(said.data)
            return (data, "") if len(data) <= most else (None, f"longer than {most} bytes")
        if said.patch is None:
            return None, ""
        if base is None:
            return None, "its parent is not kept here"
        before = await self._whole(place, base)
        if before is None:
            return None, "its parent has no state here"
        try:
            return await self._patched(before, [bytes(said.patch)], most), ""
        except MalformedMessage as error:
            return None, str(error)

    async def _moved(self, place: Place, node: Node) -> Node | None:
        state = await self._whole(place, node)
        moved = await self._records.move(place, node.number, state, self._clock())
        return node if moved else None

    async def _follow(self, place: Place, name: str) -> None:
        """A server has gone back; if its checkpoint was dropped here meanwhile, it has its name."""

        async def follow() -> Node | None:
            node = await self._records.find(place, name)
            if node is not None:
                return await self._moved(place, node)
            return await self._records.add(place, New(name, self._clock()))

        async with self._turn(place):
            await self._until_written(follow)

    async def _whole(self, place: Place, node: Node) -> bytes | None:
        if node.form is Form.OPAQUE:
            return None
        line = await self._records.line(place, node.number)
        if not line:
            raise _changed()
        return line[0] if len(line) == 1 else await self._patched(line[0], line[1:], REBUILT_BYTES)

    async def _patched(self, data: bytes, patches: Sequence[bytes], most: int) -> bytes:
        if len(data) + sum(map(len, patches)) < _AT_ONCE_BYTES:
            return self._patcher.apply(data, patches, most)
        return await asyncio.to_thread(self._patcher.apply, data, patches, most)

    async def _dropping(
        self, place: Place, numbers: frozenset[int], tree: Tree | None = None
    ) -> Dropped:
        """What it takes to drop these: those that rest on them are made whole."""
        tree = await self._records.tree(place) if tree is None else tree
        if not numbers <= tree.nodes.keys():
            raise _changed()
        whole: dict[int, bytes] = {}
        for each in states.resting_on(tree, numbers):
            whole[each.number] = await self._whole(place, each) or b"null"
        return Dropped(tree.revision, numbers, whole)

    async def _prune(self, place: Place) -> None:
        try:
            tree = await self._records.tree(place)
            late = states.outdated(tree, self._options.retention, self._clock())
            if late and await self._records.drop(place, await self._dropping(place, late, tree)):
                log.info("server %r: %d checkpoints are dropped", place.server, len(late))
        except Unavailable as error:
            # Too much is kept for a while longer; nothing else follows from it.
            log.info("server %r: no checkpoints are dropped now: %s", place.server, error)


def _changed() -> Unavailable:
    return Unavailable("this state has changed meanwhile", _CHANGED)


def _unknown(name: str) -> MalformedMessage:
    return MalformedMessage(f"checkpoint {name!r:.300} is not kept here", CHECKPOINT_UNKNOWN)
