"""What a search is held against: the bare engines, with nothing around them."""

import sqlite3
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from comity.catalog.search.index import PostingList
from comity.catalog.search.ranking import inverse_document_frequency
from comity.catalog.search.tool_index import ToolIndex
from comity.catalog.search.words import extract_facts, stem_words

MOST = 8
DIMENSIONS = 384


class Fts5:
    """SQLite's full-text search: the same texts, the same weights, stems of its own."""

    def __init__(self, index: ToolIndex) -> None:
        self._database = sqlite3.connect(":memory:")
        self._database.execute(
            "create virtual table tools using fts5(name, description, parameters, texts, "
            "title, content='', tokenize='porter unicode61')"
        )
        offers = [(slot, offer) for slot, offer in enumerate(index.entries) if offer is not None]
        for slot, offer in offers:
            facts = extract_facts(offer.name, offer.definition)
            names = " ".join(name for name, _ in facts.parameters)
            texts = " ".join(text for _, text in facts.parameters)
            spaced = " ".join(stem_words(offer.name))
            row = (slot + 1, spaced, facts.description, names, texts, offer.server)
            self._database.execute(
                "insert into tools(rowid, name, description, parameters, texts, title) "
                "values (?, ?, ?, ?, ?, ?)",
                row,
            )

    def search(self, text: str) -> list[int]:
        sought = " OR ".join(f'"{word}"' for word in dict.fromkeys(stem_words(text)))
        if not sought:
            return []
        found = self._database.execute(
            "select rowid from tools where tools match ? "
            "order by bm25(tools, 3.0, 1.5, 0.5, 0.3, 1.0) limit ?",
            (sought, MOST),
        )
        return [rowid - 1 for (rowid,) in found]

    def close(self) -> None:
        self._database.close()


class BareWords:
    """The same postings, added up and cut to the best, as short as it can be written."""

    def __init__(self, index: ToolIndex) -> None:
        self._index = index

    def search(self, text: str) -> list[int]:
        sums = np.zeros(len(self._index.entries))
        for word in dict.fromkeys(stem_words(text)):
            posting = self._index.words.find_posting(word)
            if posting is not None:
                slots, impacts = _arrays(posting)
                sums[slots] += inverse_document_frequency(len(slots), len(self._index)) * impacts
        best = np.argpartition(sums, -MOST)[-MOST:]
        return best[np.argsort(-sums[best])].tolist()


class BareVectors:
    """One product of a matrix of that size and a vector, cut to the best."""

    def __init__(self, rows: int, vector: Callable[[str], Sequence[float]]) -> None:
        made = np.random.default_rng(7).standard_normal((rows, DIMENSIONS), np.float32)
        self._rows: NDArray[np.float32] = made / np.linalg.norm(made, axis=1, keepdims=True)
        self._vector = vector

    def search(self, text: str) -> list[int]:
        cosines = self._rows @ np.asarray(self._vector(text), np.float32)
        best = np.argpartition(cosines, -MOST)[-MOST:]
        return best[np.argsort(-cosines[best])].tolist()


def _arrays(posting: PostingList) -> tuple[NDArray[np.uint32], NDArray[np.uint16]]:
    return (
        np.frombuffer(posting.slots, dtype=np.uint32),
        np.frombuffer(posting.impacts, dtype=np.uint16),
    )
