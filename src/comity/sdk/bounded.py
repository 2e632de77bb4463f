"""A table that others fill and that stays small: the oldest goes first, and nobody has it alone."""

from collections.abc import Iterator


class Bounded[V]:
    """At most so many values, of at most so much weight together; each belongs to somebody.

    One owner has at most `share` of them and as much of the weight: whoever sends much pushes out
    its own and not another's.
    """

    __slots__ = (
        "_each",
        "_most",
        "_most_weight",
        "_of",
        "_share",
        "_share_weight",
        "_weight",
        "_weight_of",
    )

    def __init__(self, most: int, most_weight: int, share: int | None = None) -> None:
        self._most = most
        self._most_weight = most_weight
        self._share = share or most
        self._share_weight = most_weight * self._share // most
        self._each: dict[str, tuple[V, str, int]] = {}
        # The keys of each owner, the oldest first, and what they weigh together.
        self._of: dict[str, dict[str, None]] = {}
        self._weight_of: dict[str, int] = {}
        self._weight = 0

    def __len__(self) -> int:
        return len(self._each)

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._each))

    def __contains__(self, key: object) -> bool:
        return key in self._each

    @property
    def weight(self) -> int:
        return self._weight

    def get(self, key: str) -> V | None:
        found = self._each.get(key)
        return None if found is None else found[0]

    def put(self, key: str, value: V, weight: int = 0, owner: str = "") -> None:
        """Keep it, as the newest; what weighs more than one owner may have is not kept."""
        self.pop(key)
        whole = weight + len(key) + len(owner)
        if whole > self._share_weight:
            return
        self._make_room(owner, whole)
        self._each[key] = (value, owner, whole)
        self._of.setdefault(owner, {})[key] = None
        self._weight_of[owner] = self._weight_of.get(owner, 0) + whole
        self._weight += whole

    def change(self, key: str, value: V) -> None:
        """The same entry with another value, as old as it was."""
        found = self._each.get(key)
        if found is not None:
            self._each[key] = (value, *found[1:])

    def pop(self, key: str) -> V | None:
        found = self._each.pop(key, None)
        if found is None:
            return None
        value, owner, whole = found
        self._weight -= whole
        self._weight_of[owner] -= whole
        del self._of[owner][key]
        if not self._of[owner]:
            del self._of[owner], self._weight_of[owner]
        return value

    def _make_room(self, owner: str, whole: int) -> None:
        while (theirs := self._of.get(owner)) and (
            len(theirs) >= self._share or self._weight_of[owner] + whole > self._share_weight
        ):
            self.pop(next(iter(theirs)))
        while self._each and (
            len(self._each) >= self._most or self._weight + whole > self._most_weight
        ):
            self.pop(next(iter(self._each)))
