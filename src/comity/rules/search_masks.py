"""Which slots somebody sees, a byte for each: made, and laid upon each other."""

from collections.abc import Iterable


def of_slots(size: int, slots: Iterable[int]) -> bytes:
    """A mask in which these are seen."""
    mask = bytearray(size)
    for slot in slots:
        if slot < size:
            mask[slot] = 1
    return bytes(mask)


def both(one: bytes, other: bytes) -> bytes:
    """What is seen in both masks; the shorter one is dark beyond its end."""
    size = max(len(one), len(other))
    seen = int.from_bytes(one, "little") & int.from_bytes(other, "little")
    return seen.to_bytes(size, "little")


def count(mask: bytes | bytearray) -> int:
    """How many are seen."""
    return int.from_bytes(mask, "little").bit_count()


def up_to(levels: bytes, most: int) -> bytes:
    """What has a level that is no higher."""
    return levels.translate(bytes(1 if level <= most else 0 for level in range(256)))
