"""Keeps what calls are judged by in step with the records, whoever changes them.

Rule 1: no call waits for the store. What it is judged by stands in memory, and is replaced whole.
Rule 2: only what has changed is read again: of one subject's grants, of one key, of one party.
Rule 3: what was read is in force before it counts as known; so a change is never skipped.
Rule 4: nothing here holds up the loop: what is long is done in pieces.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from itertools import batched
from typing import Final, Protocol

from comity.kernel.books import Book
from comity.kernel.certainty import Certainty
from comity.kernel.chores import Chores
from comity.kernel.grants import Grants
from comity.ports import Change, Kept, Records
from comity.rules.access import NOTHING_DECIDED, Access, Decided
from comity.rules.entries import Entries, Guardrails
from comity.wire.errors import Misconfigured, Unavailable
from comity.wire.grants import Grant
from comity.wire.parties import Key, Party

log = logging.getLogger(__name__)

HEARTBEAT: Final = timedelta(milliseconds=300)
"""How long the store is left unasked: a notice of a change that got lost costs no more."""

SIGN_OF_LIFE_SECONDS: Final = 0.1
SETTLE_SECONDS: Final = 5.0
"""How long a call waits after a standstill for the store to be asked again."""

AT_ONCE: Final = 200

type Watcher = Callable[[str], None]


class _Named(Protocol):
    @property
    def id(self) -> str: ...


class _Shelf[T](Protocol):
    async def get(self, id: str, /) -> T | None: ...
    async def page(self, after: str = "") -> Sequence[T]: ...


class Snapshot:
    """What the records held when they were last asked, and the care for its being true."""

    def __init__(
        self,
        records: Records,
        grants: Grants,
        certainty: Certainty,
        decided: Decided = NOTHING_DECIDED,
    ) -> None:
        self.records = records
        self.grants = grants
        self.certainty = certainty
        self.keys = Book[Key](certainty)
        self.parties = Book[Party](certainty)
        self._decided = decided
        self._version = 0
        self._is_open = False
        self._is_loaded = False
        self._trouble = ""
        self._looks = Chores("the records")
        self._reading = asyncio.Lock()
        self._watchers: list[tuple[Kept, Watcher]] = []

    @property
    def version(self) -> int:
        """The version of the records that is in force here."""
        return self._version

    @property
    def problem(self) -> str:
        """Why this node should not be sent calls now; empty while it can judge them."""
        if self._trouble:
            return "store unreachable"
        return "" if self.certainty.holds else "policy unknown"

    def watch(self, what: Kept, watcher: Watcher) -> None:
        """Have a watcher told whose records of a kind are others; an empty name means all."""
        self._watchers.append((what, watcher))

    @property
    def decided(self) -> Decided:
        """What the operator has written down beside the records."""
        return self._decided

    async def decide(self, decided: Decided) -> None:
        """Take over what the operator has written down anew beside the records."""
        async with self._reading:
            self._decided = decided
            if self._is_loaded:
                self.grants.replace(self.grants.latest.with_decided(decided))
                for kind, watcher in self._watchers:
                    if kind is Kept.GRANTS:
                        _tell_watcher(watcher, "")

    async def refresh(self) -> None:
        """Bring into force all that was written until now. Raises Unavailable, Misconfigured."""
        async with self._reading:
            if not self._is_open:
                await self.records.open()
                self._is_open = True
            asked = self.certainty.clock()
            news = await self.records.changes.since(self._version)
            if self._is_loaded and news.changes is not None:
                await self._reread(news.changes)
            else:
                await self._load()
            self._version = news.version
            self.certainty.confirm(asked)

    @property
    def holds(self) -> bool:
        """Whether calls can be judged by what is known."""
        return self.certainty.holds

    async def settle(self) -> None:
        """Ask the store again after a standstill, so that nobody is refused because of it.

        Whoever calls waits for the one look that is taken for all, and not for long. Where the
        store is known not to answer nobody waits; either way the judgement that follows is by
        what the store has said since, or it is a refusal.
        """
        if self.certainty.holds or self._trouble:
            return
        # First the standstill is noticed: an answer counts only if it was asked for after that.
        self.certainty.stay_awake()
        if not self._looks:
            self._looks.start(self._look(), at_once=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                await self._looks.finish()

    @asynccontextmanager
    async def followed(self) -> AsyncGenerator[None]:
        """Read everything, then follow every change, until the way out.

        A store that does not answer is waited for, and nothing is allowed meanwhile; one that
        cannot be used at all is told at once.
        """
        try:
            await self._try_again()
            work = [asyncio.ensure_future(self._follow()), asyncio.ensure_future(self._live())]
            try:
                yield
            finally:
                for each in work:
                    each.cancel()
                self._looks.cancel()
                await asyncio.gather(*work, self._looks.finish(), return_exceptions=True)
        finally:
            await self.records.close()

    async def _follow(self) -> None:
        while True:
            await self.records.changes.stirred(HEARTBEAT)
            await self._look()

    async def _look(self) -> None:
        try:
            await self._try_again()
        except Misconfigured as error:
            self._tell(str(error))
        except Exception:
            log.exception("following the records ended in a bug")

    async def _live(self) -> None:
        """Where nothing grows old, nothing is missed by standing still."""
        while self.certainty.grows_old:
            if self.certainty.stay_awake():
                self._looks.start(self._look(), at_once=True)
            await asyncio.sleep(SIGN_OF_LIFE_SECONDS)

    async def _try_again(self) -> None:
        try:
            await self.refresh()
        except Unavailable as error:
            self._tell(str(error))
        else:
            if self._trouble:
                log.warning("the store answers again; what it holds is in force")
            self._trouble = ""

    def _tell(self, trouble: str) -> None:
        """Once, however often it is tried."""
        if not self._trouble:
            log.error("%s; calls are judged by what is known, while it is not too old", trouble)
        self._trouble = trouble

    async def _load(self) -> None:
        self.parties.replace(await _all(self.records.parties))
        self.keys.replace(await _all(self.records.keys))
        await self._load_grants()
        self._is_loaded = True
        for _, watcher in self._watchers:
            _tell_watcher(watcher, "")

    async def _load_grants(self) -> None:
        subjects: dict[str, Entries] = {}
        _lay_out(subjects, self._decided.grants)
        async for page in _pages(self.records.grants.page):
            _lay_out(subjects, page)
        guardrails = Guardrails.of(self._decided.forbids)
        self.grants.replace(Access(subjects, self._decided, guardrails))

    async def _reread(self, changes: Iterable[Change]) -> None:
        changed: dict[Kept, list[str]] = {}
        for what, whose in changes:
            changed.setdefault(what, []).append(whose)
        await _renew(self.parties, changed.get(Kept.PARTIES, ()), self.records.parties)
        await _renew(self.keys, changed.get(Kept.KEYS, ()), self.records.keys)
        await self._reread_grants(changed.get(Kept.GRANTS, ()))
        for kind, watcher in self._watchers:
            for whose in changed.get(kind, ()):
                _tell_watcher(watcher, whose)

    async def _reread_grants(self, subjects: Sequence[str]) -> None:
        if "" in subjects:
            await self._load_grants()
            return
        for some in batched(subjects, AT_ONCE):
            laid_out = {subject: Entries.of(self._decided.of(subject)) for subject in some}
            async for page in _pages(partial(self.records.grants.page, subjects=some)):
                _lay_out(laid_out, page)
            self.grants.replace(self.grants.latest.with_entries(laid_out))


async def _renew[T: _Named](book: Book[T], ids: Sequence[str], shelf: _Shelf[T]) -> None:
    """Read these again; or all, where they are too many to ask for one by one."""
    if "" in ids or len(ids) > AT_ONCE:
        book.replace(await _all(shelf))
        return
    for id in ids:
        book.put(id, await shelf.get(id))


async def _all[T: _Named](shelf: _Shelf[T]) -> dict[str, T]:
    return {each.id: each async for page in _pages(shelf.page) for each in page}


async def _pages[T: _Named](
    read: Callable[[str], Awaitable[Sequence[T]]],
) -> AsyncGenerator[Sequence[T]]:
    after = ""
    while page := await read(after):
        yield page
        after = page[-1].id
        # A store in memory, or a quick one, never waits; others want to be heard all the same.
        await asyncio.sleep(0)


def _lay_out(subjects: dict[str, Entries], grants: Iterable[Grant]) -> None:
    found: dict[str, list[Grant]] = {}
    for grant in grants:
        found.setdefault(grant.subject, []).append(grant)
    for subject, some in found.items():
        subjects.setdefault(subject, Entries()).add(some)


def _tell_watcher(watcher: Watcher, whose: str) -> None:
    try:
        watcher(whose)
    except Exception:
        log.exception("a watcher of the records failed")
