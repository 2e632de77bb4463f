"""A bytearray that counts the bytes looked at, so that a test of cost needs no clock."""

from typing import Any, Self, SupportsIndex


class CountedBuffer(bytearray):
    """Put in place of a module's `bytearray`; each way to grow, search or copy it is counted."""

    looked_at = 0

    def _count(self, more: int = 0) -> None:
        CountedBuffer.looked_at += len(self) + more

    def __iadd__(self, more: Any) -> Self:
        CountedBuffer.looked_at += len(more)
        return super().__iadd__(more)

    def __add__(self, more: Any) -> Self:
        self._count(len(more))
        return type(self)(super().__add__(more))

    def __contains__(self, part: Any) -> bool:
        self._count()
        return super().__contains__(part)

    def __bytes__(self) -> bytes:
        self._count()
        return bytes(memoryview(self))

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, SupportsIndex):
            self._count()
        return super().__getitem__(key)

    def find(self, *arguments: Any) -> int:
        self._count()
        return super().find(*arguments)

    def split(self, sep: Any = None, maxsplit: SupportsIndex = -1) -> list[bytearray]:
        self._count()
        return super().split(sep, maxsplit)

    def replace(self, *arguments: Any) -> bytearray:
        self._count()
        return super().replace(*arguments)

    def partition(self, *arguments: Any) -> tuple[bytearray, bytearray, bytearray]:
        self._count()
        return super().partition(*arguments)
