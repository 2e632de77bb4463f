"""The vectors of what is asked: each made once, the newest question first."""

import asyncio
from collections import OrderedDict
from typing import Any, Final

import numpy as np

from comity.ports.finding import Embedder
from comity.wire.errors import Unavailable

type Array = np.ndarray[Any, Any]

MOST_KEPT: Final = 512
MOST_WAITING: Final = 64
"""Questions; whoever has waited longest then hears that there are too many."""


class Questions:
    """Asks the model one text at a time, so that the newest is never behind many others."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._kept: OrderedDict[str, Array] = OrderedDict()
        self._waiting: OrderedDict[str, asyncio.Future[Array]] = OrderedDict()
        self._answering: asyncio.Future[Array] | None = None
        self._asking: asyncio.Task[None] | None = None

    async def vector(self, text: str) -> Array:
        """Raises Unavailable where there is none to be had."""
        if text in self._kept:
            self._kept.move_to_end(text)
            return self._kept[text]
        answer = self._waiting.get(text)
        if answer is None:
            answer = self._waiting[text] = asyncio.get_running_loop().create_future()
            self._refuse_the_oldest()
        self._waiting.move_to_end(text)
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._ask())
        # Others may wait for the same, so that one who goes away ends it for nobody else.
        return await asyncio.shield(answer)

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
        self._refuse("the gateway is closing")

    def _refuse(self, because: str) -> None:
        waiting = [*self._waiting.values(), *([self._answering] if self._answering else [])]
        self._waiting.clear()
        for each in waiting:
            _fail(each, Unavailable(because))

    def _refuse_the_oldest(self) -> None:
        while len(self._waiting) > MOST_WAITING:
            _, oldest = self._waiting.popitem(last=False)
            _fail(oldest, Unavailable("too many searches by meaning at once"))

    async def _ask(self) -> None:
        try:
            while self._waiting:
                text, answer = self._waiting.popitem()
                self._answering = answer
                try:
                    said = await self._embedder.embed([text])
                    vector = checked(said, 1, self._embedder.size)[0]
                except Unavailable as failure:
                    _fail(answer, failure)
                    continue
                self._keep(text, vector)
                if not answer.done():
                    answer.set_result(vector)
        finally:
            # With a bug nobody is left to answer those who wait.
            self._asking = None
            self._refuse("the embedder failed")

    def _keep(self, text: str, vector: Array) -> None:
        self._kept[text] = vector
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)


def checked(said: object, count: int, size: int) -> Array:
    """Rows of length one, whoever made them. Raises Unavailable."""
    try:
        found: Array = np.asarray(said, np.float32)
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
        answer.exception()  # It may be that nobody waits for it any longer.
