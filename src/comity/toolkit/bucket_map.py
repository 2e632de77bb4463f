"""A map of texts whose changed copies share what did not change."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, overload, override

BUCKETS: Final = 1024
"""With 100,000 keys, a change copies about a hundred of them, and as many buckets' references."""


class BucketMap[Value](Mapping[str, Value]):
    """An immutable map. A change makes a new one, which shares all buckets without a changed key.

    Readers keep the map that they have, so none of them sees half of a change. The place of a key
    comes from the hash of Python, which has another seed in each process. So an attacker cannot
    choose keys that fall into one bucket.
    """

    __slots__ = ("_size", "buckets")

    def __init__(self, items: Mapping[str, Value] | None = None) -> None:
        self.buckets: list[dict[str, Value]] = [{} for _ in range(BUCKETS)]
        for key, value in () if items is None else items.items():
            self.buckets[hash(key) % BUCKETS][key] = value
        self._size = 0 if items is None else len(items)

    @override
    def __getitem__(self, key: str) -> Value:
        return self.buckets[hash(key) % BUCKETS][key]

    @overload
    def get(self, key: str, default: None = None, /) -> Value | None: ...
    @overload
    def get[Default](self, key: str, default: Value | Default, /) -> Value | Default: ...
    @override
    def get(self, key: str, default: Any = None, /) -> Any:
        return self.buckets[hash(key) % BUCKETS].get(key, default)

    @override
    def __contains__(self, key: object) -> bool:
        return key in self.buckets[hash(key) % BUCKETS]

    @override
    def __iter__(self) -> Iterator[str]:
        for bucket in self.buckets:
            yield from bucket

    @override
    def __len__(self) -> int:
        return self._size

    def changed(self, items: Mapping[str, Value | None]) -> "BucketMap[Value]":
        """Return a copy with these items. None removes a key."""
        copy: BucketMap[Value] = BucketMap.__new__(type(self))
        copy.buckets, size = self.buckets.copy(), self._size
        own: set[int] = set()
        for key, value in items.items():
            place = hash(key) % BUCKETS
            if place not in own:
                own.add(place)
                copy.buckets[place] = copy.buckets[place].copy()
            bucket = copy.buckets[place]
            size -= key in bucket
            if value is None:
                bucket.pop(key, None)
            else:
                bucket[key] = value
                size += 1
        copy._size = size
        return copy
