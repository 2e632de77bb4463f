"""Embeddings of all tools, and of the queries in progress."""

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import islice
from typing import Any, Final

import numpy as np

from comity.catalog.search.ranking import MAX_QUERY_LETTERS, is_real_description
from comity.catalog.search.tool_index import Embedder, SearchDocument, SimilarityResult
from comity.catalog.search.words import split_name, split_sentences
from comity.catalog.semantic.vectors import MAX_SLOTS, VectorFile, VectorTable
from comity.errors import Unavailable
from comity.toolkit.background import draw_delay
from comity.toolkit.resilience import RetrySchedule

type Array = np.ndarray[Any, Any]

MAX_CACHED_QUERIES: Final = 512
MAX_WAITING_QUERIES: Final = 64
"""Queries that may wait; beyond that, the one that waits longest is refused."""


class QueryEmbedder:
    """Embeds queries one at a time and newest first, so that a new query waits for one at most."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._vector_cache: OrderedDict[str, Array] = OrderedDict()
        self._future_by_text: OrderedDict[str, asyncio.Future[Array]] = OrderedDict()
        self._current_future: asyncio.Future[Array] | None = None
        self._embed_task: asyncio.Task[None] | None = None

    async def embed(self, text: str) -> Array:
        """Return the vector of a text.

        Raises Unavailable if the model fails, too many queries wait, or the gateway closes.
        """
        if text in self._vector_cache:
            self._vector_cache.move_to_end(text)
            return self._vector_cache[text]
        answer = self._future_by_text.get(text)
        if answer is None:
            answer = self._future_by_text[text] = asyncio.get_running_loop().create_future()
            self._fail_oldest()
        self._future_by_text.move_to_end(text)
        if self._embed_task is None:
            self._embed_task = asyncio.ensure_future(self._embed_waiting())
        # Several searches may wait for the same text; the cancellation of one must not end the
        # others.
        return await asyncio.shield(answer)

    async def close(self) -> None:
        if self._embed_task is not None:
            self._embed_task.cancel()
        self._fail_waiting("the gateway is closing")

    def _fail_waiting(self, reason: str) -> None:
        waiting = [
            *self._future_by_text.values(),
            *([self._current_future] if self._current_future else []),
        ]
        self._future_by_text.clear()
        for each in waiting:
            _fail(each, Unavailable(reason))

    def _fail_oldest(self) -> None:
        while len(self._future_by_text) > MAX_WAITING_QUERIES:
            _, oldest = self._future_by_text.popitem(last=False)
            _fail(oldest, Unavailable("too many semantic searches at once"))

    async def _embed_waiting(self) -> None:
        try:
            while self._future_by_text:
                text, answer = self._future_by_text.popitem()
                self._current_future = answer
                try:
                    said = await self._embedder.embed([text])
                    vector = check_vectors(said, 1, self._embedder.size)[0]
                except Unavailable as failure:
                    _fail(answer, failure)
                    continue
                self._cache_vector(text, vector)
                if not answer.done():
                    answer.set_result(vector)
        finally:
            # After an unexpected error no task is left to answer the waiting queries.
            self._embed_task = None
            self._fail_waiting("the embedder failed")

    def _cache_vector(self, text: str, vector: Array) -> None:
        self._vector_cache[text] = vector
        if len(self._vector_cache) > MAX_CACHED_QUERIES:
            self._vector_cache.popitem(last=False)


def check_vectors(vectors: object, count: int, size: int) -> Array:
    """Return the embedder's output as rows of length one.

    Raises Unavailable if the output has the wrong shape, or is not finite numbers of some length.
    """
    try:
        found: Array = np.asarray(vectors, np.float32)
    except (TypeError, ValueError):
        raise Unavailable("the embedder gave no numbers") from None
    if found.shape != (count, size) or not np.isfinite(found).all():
        raise Unavailable("the embedder gave something other than its vectors")
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    if not (lengths > 1e-6).all():
        raise Unavailable("the embedder gave a vector of no length")
    return found / lengths


def _fail(answer: "asyncio.Future[Array]", failure: Unavailable) -> None:
    if not answer.done():
        answer.set_exception(failure)
        answer.exception()  # Mark it as retrieved: no task may be waiting any more.


log = logging.getLogger(__name__)
type _Owner = int | str
"""The owner of texts: a slot (a tool) or the name of a server."""

MAX_TEXT_LENGTH: Final = 2_000
"""Characters of a text; a model reads some hundred words."""

BATCH_SIZE: Final = 256
EMBED_BATCH_SIZE: Final = 4
"""Tools that the model embeds in one batch: some tens of milliseconds."""

THREAD_MIN_ROWS: Final = 5_000
"""With more rows a search takes milliseconds, so it runs in another thread."""

SMALL_BACKLOG: Final = 100
CATCH_UP_TIMEOUT_SECONDS: Final = 2.0
"""How long the first search waits for at most SMALL tools, while the model loads."""

RETRY_SCHEDULE: Final = RetrySchedule(timedelta(seconds=1), timedelta(seconds=60))


class EmbeddingIndex:
    """The vectors of all tools and of server descriptions, made in the background."""

    def __init__(
        self, embedder: Embedder, vector_file: VectorFile | None = None, *, at_once: bool = True
    ) -> None:
        self._embedder = embedder
        self._vector_file = vector_file
        self._has_begun = at_once
        self._query_embedder = QueryEmbedder(embedder)
        self._vectors = VectorTable(embedder.size)
        self._vector_by_server: dict[str, Array] = {}
        # The description of each server, and the number of its tools.
        self._text_by_server: dict[str, tuple[str, int]] = {}
        self._server_of: dict[int, str] = {}
        self._texts_by_owner: dict[_Owner, tuple[str, ...]] = {}
        self._owner_queue: deque[_Owner] = deque()
        self._queued_owners: set[_Owner] = set()
        self._failures = 0
        self._excess_slots: set[int] = set()
        self._searches: list[set[int]] = []
        self._make_task: asyncio.Task[None] | None = None
        # Set while no vectors are made, and from a failure of the model on: it may last.
        self._is_settled = asyncio.Event()
        self._is_settled.set()

    @property
    def name(self) -> str:
        return self._embedder.name

    @property
    def is_complete(self) -> bool:
        return not self._texts_by_owner and not self._excess_slots

    @property
    def is_warming(self) -> bool:
        return not self._is_settled.is_set()

    async def wait_while_warming(self, timeout: timedelta) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout.total_seconds()):
                await self._is_settled.wait()

    def put(self, slot: int, tool: SearchDocument) -> None:
        self.remove(slot)
        if slot >= MAX_SLOTS:
            self._excess_slots.add(slot)
            return
        self._queue_texts(slot, document_texts(tool))
        if is_real_description(tool.server_description):
            self._server_of[slot] = tool.server
            text = tool.server_description[:MAX_TEXT_LENGTH]
            said, tools = self._text_by_server.get(tool.server, ("", 0))
            self._text_by_server[tool.server] = (text, tools + 1)
            if said != text:
                self._vector_by_server.pop(tool.server, None)
                self._queue_texts(tool.server, (text,))

    def remove(self, slot: int) -> None:
        self._excess_slots.discard(slot)
        self._texts_by_owner.pop(slot, None)
        self._vectors.remove(slot)
        for changed in self._searches:
            changed.add(slot)
        server = self._server_of.pop(slot, None)
        if server is not None:
            said, tools = self._text_by_server.pop(server)
            if tools > 1:
                self._text_by_server[server] = (said, tools - 1)
            else:
                self._vector_by_server.pop(server, None)
                self._texts_by_owner.pop(server, None)

    async def find_nearest(
        self, query: str, visible_mask: bytes | None, limit: int, also: Sequence[int] = ()
    ) -> SimilarityResult:
        query = query[:MAX_QUERY_LETTERS].strip()
        if not query:
            return SimilarityResult([], [None] * len(also))
        if not self._has_begun:
            await self._begin()
        texts = [query, *split_sentences(query)]
        asked = await asyncio.gather(*(self._query_embedder.embed(text) for text in texts))
        sought: Array = np.stack(asked)
        with self._track_changes() as changed:
            search = (sought, visible_mask, limit, also)
            if self._vectors.row_count < THREAD_MIN_ROWS:
                best, others, least = self._vectors.find_nearest(*search)
            else:
                best, others, least = await asyncio.to_thread(self._vectors.find_nearest, *search)
        return SimilarityResult(
            [found for found in best if found[0] not in changed],
            [None if slot in changed else at for slot, at in zip(also, others, strict=True)],
            least,
            {
                name: float((sought @ vector).max())
                for name, vector in self._vector_by_server.items()
            },
        )

    async def wait_until_complete(self) -> None:
        """Wait until every tool has its vector, for measurements."""
        if self._make_task is not None:
            await asyncio.shield(self._make_task)

    async def close(self) -> None:
        making, self._make_task = self._make_task, None
        if making is not None:
            making.cancel()
            await asyncio.wait([making])
        await self._query_embedder.close()
        await self._embedder.close()
        if self._vector_file is not None:
            self._vector_file.close()

    @contextmanager
    def _track_changes(self) -> Generator[set[int]]:
        """Collect the slots that change during a search, which may run in another thread."""
        changed: set[int] = set()
        self._searches.append(changed)
        try:
            yield changed
        finally:
            self._searches = [each for each in self._searches if each is not changed]

    def _queue_texts(self, owner: _Owner, texts: tuple[str, ...]) -> None:
        self._texts_by_owner[owner] = texts
        self._queue_owner(owner)
        self._start_making()

    async def _begin(self) -> None:
        self._has_begun = True
        self._start_making()
        if len(self._texts_by_owner) <= SMALL_BACKLOG and self._make_task is not None:
            await asyncio.wait([self._make_task], timeout=CATCH_UP_TIMEOUT_SECONDS)

    def _start_making(self) -> None:
        if self._has_begun and self._owner_queue and self._make_task is None:
            self._is_settled.clear()
            self._make_task = asyncio.ensure_future(self._make_vectors())
            self._make_task.add_done_callback(self._on_made)

    def _queue_owner(self, owner: _Owner) -> None:
        """Queue an owner once, so that frequent changes do not lengthen the queue."""
        if owner not in self._queued_owners:
            self._queued_owners.add(owner)
            self._owner_queue.append(owner)

    def _on_made(self, making: "asyncio.Task[None]") -> None:
        self._make_task = None
        self._is_settled.set()
        if not making.cancelled() and (bug := making.exception()) is not None:
            log.error("Making tool vectors failed", exc_info=bug)

    async def _make_vectors(self) -> None:
        began, made, found = time.monotonic(), 0, 0
        while self._owner_queue:
            wanted = self._next_batch()
            keys = {owner: texts_key(texts) for owner, texts in wanted.items()}
            known = await asyncio.to_thread(self._read_stored, keys)
            self._store_vectors(wanted, known)
            found += len(known)
            rest = iter([owner for owner in wanted if owner not in known])
            # After a failure the texts go one by one, so that a text the model rejects fails alone.
            while several := list(islice(rest, 1 if self._failures else EMBED_BATCH_SIZE)):
                vectors = await self._embed_means([wanted[owner] for owner in several])
                if vectors is None:
                    self._requeue(several)
                    continue
                self._store_vectors(wanted, dict(zip(several, vectors, strict=True)))
                if self._vector_file is not None:
                    named = [keys[owner] for owner in several]
                    await asyncio.to_thread(self._vector_file.add, named, vectors)
                made += len(several)
        if made >= BATCH_SIZE or found >= BATCH_SIZE:
            spent = time.monotonic() - began
            log.info("vectors: %d made, %d from the cache, %.1f s", made, found, spent)

    def _next_batch(self) -> dict[_Owner, tuple[str, ...]]:
        piece = [
            self._owner_queue.popleft() for _ in range(min(BATCH_SIZE, len(self._owner_queue)))
        ]
        self._queued_owners.difference_update(piece)
        return {
            owner: self._texts_by_owner[owner] for owner in piece if owner in self._texts_by_owner
        }

    def _requeue(self, owners: Iterable[_Owner]) -> None:
        """Queue owners again at the end, so that a text the model rejects does not block others."""
        for owner in owners:
            if owner in self._texts_by_owner:
                self._queue_owner(owner)

    def _read_stored(self, keys: dict[_Owner, bytes]) -> dict[_Owner, Array]:
        kept = self._vector_file
        if kept is None:
            return {}
        found = ((owner, kept.get(key)) for owner, key in keys.items())
        return {owner: vector for owner, vector in found if vector is not None}

    def _store_vectors(
        self, wanted: dict[_Owner, tuple[str, ...]], made: dict[_Owner, Array]
    ) -> None:
        """Store the vectors whose texts have not changed while they were made."""
        for owner, vector in made.items():
            if self._texts_by_owner.get(owner) is not wanted[owner]:
                continue
            del self._texts_by_owner[owner]
            if isinstance(owner, int):
                self._vectors.put(owner, vector)
            else:
                self._vector_by_server[owner] = vector

    async def _embed_means(self, several: Sequence[tuple[str, ...]]) -> Array | None:
        """Return the mean vector of each owner's texts, rounded as it is stored.

        Returns None after a delay if the model fails.
        """
        texts = [text for each in several for text in each]
        try:
            rows = check_vectors(await self._embedder.embed(texts), len(texts), self._embedder.size)
        except Unavailable as failure:
            log.warning("%d tools have no vectors yet: %s", len(several), failure)
            self._failures += 1
            self._is_settled.set()
            await asyncio.sleep(draw_delay(RETRY_SCHEDULE, self._failures).total_seconds())
            return None
        # One success does not prove that the provider has recovered.
        self._failures //= 2
        return np.stack(list(_mean_vectors(rows, map(len, several))))


def _mean_vectors(rows: Array, lengths: Iterable[int]) -> Iterator[Array]:
    start = 0
    for length in lengths:
        mean = rows[start : start + length].mean(axis=0)
        # Opposite vectors could cancel out; the floor avoids a division by zero.
        mean /= max(float(np.linalg.norm(mean)), 1e-6)
        yield mean.astype(np.float16).astype(np.float32)
        start += length


def document_texts(tool: SearchDocument) -> tuple[str, ...]:
    """Return the three texts whose mean vector represents a tool."""
    plain = f"{split_name(tool.name)}: {tool.description}"
    parameters = "; ".join(f"{name}: {said}" if said else name for name, said in tool.parameters)
    return (
        plain[:MAX_TEXT_LENGTH],
        f"{plain} {parameters}"[:MAX_TEXT_LENGTH],
        f"{tool.server_title or tool.server} - {plain}"[:MAX_TEXT_LENGTH],
    )


def texts_key(texts: tuple[str, ...]) -> bytes:
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).digest()
