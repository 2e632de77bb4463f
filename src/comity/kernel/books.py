"""Who takes part and by what keys, in memory: looked up by id at every door, without a wait."""

from collections.abc import Mapping

from comity.kernel.certainty import Certainty


class Book[T]:
    """What the records hold of one kind, by id; only as long as that is sure."""

    __slots__ = ("_certainty", "_pages")

    def __init__(self, certainty: Certainty) -> None:
        self._certainty = certainty
        self._pages: dict[str, T] = {}

    def __len__(self) -> int:
        return len(self._pages)

    def get(self, id: str, /) -> T | None:
        """Raises Unavailable where it cannot be known: nobody is turned away as unknown then."""
        self._certainty.demand()
        return self._pages.get(id)

    def replace(self, pages: Mapping[str, T]) -> None:
        self._pages = dict(pages)

    def put(self, id: str, page: T | None) -> None:
        """One entry anew; None where there is none any more."""
        if page is None:
            self._pages.pop(id, None)
        else:
            self._pages[id] = page
