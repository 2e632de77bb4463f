"""From what happens to what is posted: the journal is looked through, entry by entry, to its end.

Rule 1: an event counts from when its entry in the journal is kept. What was looked through is
        marked together with the posts that follow from it, so that no entry is left out and none is
        taken twice, whoever dies when.
Rule 2: a call whose event is for somebody is answered when its entry is kept, or cannot be.
Rule 3: each node looks through its own chain at once, and through others' where they fell behind:
        so the last entries of a dead node are told too.
Rule 4: what stands in no journal (a server's own events, and where servers stand) counts from when
        its post is kept, which is soon; nobody waits for it.
"""

import asyncio
import hashlib
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Final

import msgspec

from comity.kernel.events import Following
from comity.kernel.journal import Journal
from comity.kernel.webhooks import Webhooks
from comity.ports.webhooks import Mark
from comity.rules.standard_channels import STANDARD, UNWRITTEN, channels_of, told
from comity.rules.webhooks import MOST_BODY
from comity.wire import audit
from comity.wire.errors import MalformedMessage, Misconfigured, Unavailable
from comity.wire.events import Event, Wanted, is_pattern
from comity.wire.journal import Line
from comity.wire.mcp_events import occurrence
from comity.wire.webhooks import Post, State, Subscription

log = logging.getLogger(__name__)

EVERY: Final = timedelta(seconds=2)
"""How often others' chains are looked at, and how far behind they are left to their own nodes."""

MOST_FRESH: Final = 10_000
UNMARKED: Final = 500
"""After so many entries that are for nobody the mark is moved all the same."""


class Intake:
    """Writes down what is to be posted; somebody else posts it."""

    def __init__(self, hooks: Webhooks, journal: Journal) -> None:
        self.stirred = asyncio.Event()
        # Set where there is something new to post.
        self.wrote = asyncio.Event()
        self._hooks = hooks
        self._journal = journal
        self._marks: dict[str, int] = {}
        self._reached: dict[str, int] = {}
        self._fresh: list[Line] = []
        self._unwritten: list[Post] = []
        self._followings: dict[str, Following] = {}
        hooks.watchers.append(self._changed)
        journal.committed.append(self._committed)

    def is_awaited(self, event: audit.Event) -> bool:
        """Whether an entry that is about to be kept is for anybody."""
        if not self._hooks.known:
            return False
        return any(
            self._hooks.of(channel) and self._hooks.is_heard(told(event, channel, "soon"))
            for channel in channels_of(event)
        )

    async def post(self, event: Event) -> None:
        """Have what a server says wait for those whom it is for; it is kept when this returns.

        Each event of a server is posted once to each of them. Raises Unavailable, also where it
        cannot be known whom it is for.
        """
        self._hooks.certain()
        named = replace(event, id=_name_of(event))
        posts = self._posts(named, self._hooks.hearing(event))
        if posts:
            await self._hooks.records.add(posts, self._hooks.options.most_waiting)
            self.wrote.set()

    def _committed(self, lines: Sequence[Line]) -> None:
        if self._hooks.known and lines:
            if len(self._fresh) + len(lines) > MOST_FRESH:
                # They are kept, and read again from there.
                self._fresh.clear()
            self._fresh += lines
            self.stirred.set()

    async def run(self) -> None:
        """Until cancelled; a store that is away is waited for."""
        while True:
            is_late = False
            try:
                async with asyncio.timeout(EVERY.total_seconds()):
                    await self.stirred.wait()
            except TimeoutError:
                is_late = True
            self.stirred.clear()
            try:
                await self._look(everywhere=is_late)
            except (Unavailable, Misconfigured) as problem:
                log.warning("events cannot be written down to be posted: %s", problem)
                await asyncio.sleep(EVERY.total_seconds())
                self.stirred.set()
            except Exception:
                log.exception("looking through the journal for webhooks ended in a bug")
                await asyncio.sleep(EVERY.total_seconds())

    async def _look(self, *, everywhere: bool) -> None:
        if not self._hooks.known:
            self._fresh.clear()
            self._reached.clear()
            return
        await self._keep_unwritten()
        head = self._journal.head
        if not self._reached or everywhere:
            self._marks = dict(await self._hooks.records.marks())
            self._reached = {chain: self._reached.get(chain, 0) for chain in self._marks}
        if head is not None:
            await self._through(head.node)
        if everywhere:
            self._follow_all()
            for chain in await self._journal.store.nodes():
                if head is None or chain != head.node:
                    await self._through(chain, is_own=False)

    async def _through(self, chain: str, *, is_own: bool = True) -> None:
        """All of a chain that nobody has looked through; of others', only what is old enough."""
        while True:
            after = max(self._marks.get(chain, 0), self._reached.get(chain, 0))
            lines = self._at_hand(after) if is_own else []
            lines = lines or await self._journal.store.page(chain, after)
            if not is_own:
                old = self._hooks.clock() - EVERY
                lines = [line for line in lines if line.at <= old]
            if not lines:
                return
            await self._take(chain, lines)

    def _at_hand(self, after: int) -> list[Line]:
        """What was committed just now, where nothing is missing before it."""
        fresh, self._fresh = self._fresh, []
        head = self._journal.head
        if not fresh or head is None or fresh[0].node != head.node or fresh[0].seq > after + 1:
            return []
        return [line for line in fresh if line.seq > after]

    async def _take(self, chain: str, lines: Sequence[Line]) -> None:
        posts = [post for line in lines for post in self._posts_of(line)]
        seen, upto = self._marks.get(chain, 0), lines[-1].seq
        if not posts and upto - seen < UNMARKED:
            self._reached[chain] = upto
            return
        if await self._hooks.records.add(
            posts, self._hooks.options.most_waiting, Mark(chain, seen, upto)
        ):
            self._marks[chain] = self._reached[chain] = upto
            self.wrote.set()
            return
        # Somebody else was here: what it took is not for us.
        self._marks = dict(await self._hooks.records.marks())
        self._reached[chain] = 0

    def _posts_of(self, line: Line) -> list[Post]:
        try:
            entry = audit.event_of(line.body)
        except MalformedMessage:
            return []
        name = f"evt_{line.hash.hex()[:32]}"
        found: list[Post] = []
        for place, channel in enumerate(channels_of(entry)):
            if self._hooks.of(channel):
                event = told(entry, channel, f"{name}{place or ''}")
                found += self._posts(event, self._hooks.hearing(event))
        return found

    def _posts(self, event: Event, hearers: Iterable[Subscription]) -> list[Post]:
        body, now = _body(event), self._hooks.clock()
        return [Post(each.id, event.id, body, now, now) for each in hearers]

    async def _keep_unwritten(self) -> None:
        posts, self._unwritten = self._unwritten, []
        if posts:
            try:
                await self._hooks.records.add(posts, self._hooks.options.most_waiting)
            except Unavailable:
                self._unwritten[:0] = posts
                raise
            self.wrote.set()

    def _changed(self) -> None:
        self._follow_all()
        self.stirred.set()

    def _follow_all(self) -> None:
        """Hear by the plane what stands in no journal, for those who want it and may now."""
        known = self._hooks.known
        wanted = {
            id: one
            for id, one in known.items()
            if one.state is State.ACTIVE and (is_pattern(one.name) or _is_unwritten(one.name))
        }
        for id in self._followings.keys() - wanted.keys():
            self._followings.pop(id).close()
        for id in wanted.keys() - self._followings.keys():
            self._follow(wanted[id])

    def _follow(self, one: Subscription) -> None:
        actor = self._hooks.actor_of(one)
        if actor is None:
            return

        def hear(event: Event) -> None:
            if event.source or event.channel in UNWRITTEN:
                named = replace(event, id=_name_of(event))
                self._unwritten += self._posts(named, self._still(one.id))
                if len(self._unwritten) > MOST_FRESH:
                    log.error("events of servers are too many to be posted; some are lost")
                    self._unwritten.clear()
                self.stirred.set()

        with suppress(Unavailable):
            self._followings[one.id] = self._hooks.plane.follow(
                Wanted((one.name,), one.least), actor, hear
            )

    def _still(self, id: str) -> list[Subscription]:
        one = self._hooks.known.get(id)
        return [] if one is None or self._hooks.actor_of(one) is None else [one]

    def stop(self) -> None:
        for following in self._followings.values():
            following.close()
        self._followings.clear()


def _name_of(event: Event) -> str:
    """A server names its events as it likes, and as others do; what is posted stands in a head."""
    if not event.source:
        return event.id
    whole = f"{event.source}\0{event.id}".encode(errors="surrogatepass")
    return f"evt_{hashlib.sha256(whole).hexdigest()[:32]}"


def _is_unwritten(name: str) -> bool:
    return name not in STANDARD or name in UNWRITTEN


def _body(event: Event) -> bytes:
    """What is posted; data that would make it too long stays out of it."""
    body = msgspec.json.encode(occurrence(event))
    if len(body) <= MOST_BODY:
        return body
    return msgspec.json.encode({**occurrence(event), "data": {"is_shortened": True}})
