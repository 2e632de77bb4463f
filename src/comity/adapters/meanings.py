"""What tools mean, as vectors: made in the background, kept, and searched. (MGP §16.4 semantic)

Rule 1: a tool is the mean of three texts: what it says, that with its parameters, and with its
        server. Its name stands there in words, since models know no camels and no snakes.
Rule 2: whoever searches waits for no catalog; the newest question is answered first.
Rule 3: until somebody searches nothing is made, unless it was wished for: a model takes memory.
Rule 4: a slot that changed while a search ran is not in its answer: it may be another tool now,
        which the one who asks may not see.
"""

import asyncio
import hashlib
import logging
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

import numpy as np

from comity.adapters.meanings_kept import Kept
from comity.adapters.meanings_questions import Questions, checked
from comity.adapters.meanings_vectors import MOST_SLOTS, Vectors
from comity.ports.finding import Embedder, Nearness, Searchable
from comity.rules.search import MOST_LETTERS, is_real
from comity.rules.search_words import apart
from comity.rules.sentences import sentences
from comity.wire.errors import Unavailable

log = logging.getLogger(__name__)

type Array = np.ndarray[Any, Any]
type _Owner = int | str
"""Whose texts they are: a slot's, or a server's."""

LONGEST: Final = 2_000
"""Letters of a text; a model reads some hundred words."""

PIECE: Final = 256
AT_ONCE: Final = 4
"""Tools that the model is given together: some tens of milliseconds."""

MANY_ROWS: Final = 5_000
"""From here on a search takes milliseconds, and another thread has it."""

SMALL: Final = 100
PATIENCE_SECONDS: Final = 2.0
"""How long the first who searches waits for so few tools: the model is loaded just then."""

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0


class Meanings:
    """The vectors of all tools, and of what servers say of themselves."""

    def __init__(
        self, embedder: Embedder, kept: Kept | None = None, *, at_once: bool = True
    ) -> None:
        self._embedder = embedder
        self._kept = kept
        self._has_begun = at_once
        self._questions = Questions(embedder)
        self._vectors = Vectors(embedder.size)
        self._servers: dict[str, Array] = {}
        # What each server says of itself, and at how many slots its tools are.
        self._said: dict[str, tuple[str, int]] = {}
        self._server_of: dict[int, str] = {}
        self._waiting: dict[_Owner, tuple[str, ...]] = {}
        self._order: deque[_Owner] = deque()
        self._in_order: set[_Owner] = set()
        self._pause = FIRST_PAUSE
        self._beyond: set[int] = set()
        self._searches: list[set[int]] = []
        self._making: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return self._embedder.name

    @property
    def is_complete(self) -> bool:
        return not self._waiting and not self._beyond

    def put(self, slot: int, tool: Searchable) -> None:
        self.drop(slot)
        if slot >= MOST_SLOTS:
            self._beyond.add(slot)
            return
        self._wait(slot, texts_of(tool))
        if is_real(tool.server_description):
            self._server_of[slot] = tool.server
            text = tool.server_description[:LONGEST]
            said, tools = self._said.get(tool.server, ("", 0))
            self._said[tool.server] = (text, tools + 1)
            if said != text:
                self._servers.pop(tool.server, None)
                self._wait(tool.server, (text,))

    def drop(self, slot: int) -> None:
        self._beyond.discard(slot)
        self._waiting.pop(slot, None)
        self._vectors.drop(slot)
        for changed in self._searches:
            changed.add(slot)
        server = self._server_of.pop(slot, None)
        if server is not None:
            said, tools = self._said.pop(server)
            if tools > 1:
                self._said[server] = (said, tools - 1)
            else:
                self._servers.pop(server, None)
                self._waiting.pop(server, None)

    async def near(
        self, query: str, seen: bytes | None, most: int, also: Sequence[int] = ()
    ) -> Nearness:
        query = query[:MOST_LETTERS].strip()
        if not query:
            return Nearness([], [None] * len(also))
        if not self._has_begun:
            await self._begin()
        texts = [query, *sentences(query)]
        asked = await asyncio.gather(*(self._questions.vector(text) for text in texts))
        sought: Array = np.stack(asked)
        with self._watched() as changed:
            search = (sought, seen, most, also)
            if self._vectors.reach < MANY_ROWS:
                best, others, least = self._vectors.near(*search)
            else:
                best, others, least = await asyncio.to_thread(self._vectors.near, *search)
        return Nearness(
            [found for found in best if found[0] not in changed],
            [None if slot in changed else at for slot, at in zip(also, others, strict=True)],
            least,
            {name: float((sought @ vector).max()) for name, vector in self._servers.items()},
        )

    async def settled(self) -> None:
        """Until everything that was put has its vector, for those who measure."""
        if self._making is not None:
            await asyncio.shield(self._making)

    async def close(self) -> None:
        making, self._making = self._making, None
        if making is not None:
            making.cancel()
            await asyncio.wait([making])
        await self._questions.close()
        await self._embedder.close()
        if self._kept is not None:
            self._kept.close()

    @contextmanager
    def _watched(self) -> Generator[set[int]]:
        """The slots that change in the meantime."""
        changed: set[int] = set()
        self._searches.append(changed)
        try:
            yield changed
        finally:
            self._searches = [each for each in self._searches if each is not changed]

    def _wait(self, owner: _Owner, texts: tuple[str, ...]) -> None:
        self._waiting[owner] = texts
        self._queue(owner)
        self._go_on()

    async def _begin(self) -> None:
        self._has_begun = True
        self._go_on()
        if len(self._waiting) <= SMALL and self._making is not None:
            await asyncio.wait([self._making], timeout=PATIENCE_SECONDS)

    def _go_on(self) -> None:
        if self._has_begun and self._order and self._making is None:
            self._making = asyncio.ensure_future(self._make())
            self._making.add_done_callback(self._ended)

    def _queue(self, owner: _Owner) -> None:
        """Once each, so that what changes again and again makes no longer queue."""
        if owner not in self._in_order:
            self._in_order.add(owner)
            self._order.append(owner)

    def _ended(self, making: "asyncio.Task[None]") -> None:
        self._making = None
        if not making.cancelled() and (bug := making.exception()) is not None:
            log.error("the vectors of tools are not made on", exc_info=bug)

    async def _make(self) -> None:
        began, made, found = time.monotonic(), 0, 0
        while self._order:
            wanted = self._next_piece()
            keys = {owner: key_of(texts) for owner, texts in wanted.items()}
            known = await asyncio.to_thread(self._recall, keys)
            self._take(wanted, known)
            found += len(known)
            rest = iter([owner for owner in wanted if owner not in known])
            while several := list(islice(rest, AT_ONCE if self._pause == FIRST_PAUSE else 1)):
                vectors = await self._embedded([wanted[owner] for owner in several])
                if vectors is None:
                    self._put_back(several)
                    continue
                self._take(wanted, dict(zip(several, vectors, strict=True)))
                if self._kept is not None:
                    named = [keys[owner] for owner in several]
                    await asyncio.to_thread(self._kept.add, named, vectors)
                made += len(several)
        if made >= PIECE or found >= PIECE:
            spent = time.monotonic() - began
            log.info("vectors: %d made, %d known from before, %.1f s", made, found, spent)

    def _next_piece(self) -> dict[_Owner, tuple[str, ...]]:
        piece = [self._order.popleft() for _ in range(min(PIECE, len(self._order)))]
        self._in_order.difference_update(piece)
        return {owner: self._waiting[owner] for owner in piece if owner in self._waiting}

    def _put_back(self, several: Iterable[_Owner]) -> None:
        """To the end: a text that a model does not bear holds up nobody else's."""
        for owner in several:
            if owner in self._waiting:
                self._queue(owner)

    def _recall(self, keys: dict[_Owner, bytes]) -> dict[_Owner, Array]:
        kept = self._kept
        if kept is None:
            return {}
        found = ((owner, kept.get(key)) for owner, key in keys.items())
        return {owner: vector for owner, vector in found if vector is not None}

    def _take(self, wanted: dict[_Owner, tuple[str, ...]], made: dict[_Owner, Array]) -> None:
        """What was made of texts that still stand; others have come or gone meanwhile."""
        for owner, vector in made.items():
            if self._waiting.get(owner) is not wanted[owner]:
                continue
            del self._waiting[owner]
            if isinstance(owner, int):
                self._vectors.put(owner, vector)
            else:
                self._servers[owner] = vector

    async def _embedded(self, several: Sequence[tuple[str, ...]]) -> Array | None:
        """The mean of each one's texts, as exact as it is kept; None, after a pause, for now."""
        texts = [text for each in several for text in each]
        try:
            rows = checked(await self._embedder.embed(texts), len(texts), self._embedder.size)
        except Unavailable as failure:
            log.warning("no vectors of %d tools for now: %s", len(several), failure)
            await asyncio.sleep(self._pause)
            self._pause = min(LONGEST_PAUSE, self._pause * 2)
            return None
        self._pause = max(FIRST_PAUSE, self._pause / 2)
        return np.stack(list(_means(rows, map(len, several))))


def _means(rows: Array, lengths: Iterable[int]) -> Iterator[Array]:
    start = 0
    for length in lengths:
        mean = rows[start : start + length].mean(axis=0)
        # Texts of opposite meaning could leave nothing; no model's do.
        mean /= max(float(np.linalg.norm(mean)), 1e-6)
        yield mean.astype(np.float16).astype(np.float32)
        start += length


def texts_of(tool: Searchable) -> tuple[str, ...]:
    """The three texts that a tool is the mean of."""
    plain = f"{apart(tool.name)}: {tool.description}"
    parameters = "; ".join(f"{name}: {said}" if said else name for name, said in tool.parameters)
    return (
        plain[:LONGEST],
        f"{plain} {parameters}"[:LONGEST],
        f"{tool.server_title or tool.server} - {plain}"[:LONGEST],
    )


def key_of(texts: tuple[str, ...]) -> bytes:
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).digest()
