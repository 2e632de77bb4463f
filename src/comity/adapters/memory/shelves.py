"""Things in memory, by their id and in the order of their ids."""

from bisect import bisect_left, bisect_right, insort


class Shelf[T]:
    """Things by their id, and in the order of their ids."""

    def __init__(self) -> None:
        self._things: dict[str, T] = {}
        self._order: list[str] = []

    def put(self, id: str, thing: T) -> None:
        if id not in self._things:
            insort(self._order, id)
        self._things[id] = thing

    def get(self, id: str) -> T | None:
        return self._things.get(id)

    def take(self, id: str) -> bool:
        if self._things.pop(id, None) is None:
            return False
        del self._order[bisect_left(self._order, id)]
        return True

    def page(self, after: str, limit: int) -> list[T]:
        first = bisect_right(self._order, after)
        return [self._things[id] for id in self._order[first : first + limit]]

    def last(self) -> T | None:
        return self._things[self._order[-1]] if self._order else None

    def __len__(self) -> int:
        return len(self._order)

    def all(self) -> list[T]:
        return list(self._things.values())
