"""An embedder without a model, for tests: texts are near when they share words."""

import hashlib
import math
from collections.abc import Sequence

from comity.errors import Unavailable


class MemoryEmbedder:
    """Each word is a direction of its own, as long as directions last."""

    def __init__(self, size: int = 64, name: str = "memory/words") -> None:
        self.name = name
        self.size = size
        # How many texts it was given; and whether it can do it now.
        self.embedded = 0
        self.is_available = True

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        if not self.is_available:
            raise Unavailable("the embedder rests")
        self.embedded += len(texts)
        return [self._vector(text) for text in texts]

    async def close(self) -> None:
        self.is_available = False

    def _vector(self, text: str) -> list[float]:
        found = [0.0] * self.size
        # One direction that all share: a text without words has a vector too.
        found[0] = 0.1
        plain = "".join(sign if sign.isalnum() else " " for sign in text.lower())
        for word in plain.split():
            number = int.from_bytes(hashlib.sha256(word.encode("utf-8", "replace")).digest()[:4])
            found[1 + number % (self.size - 1)] += 1.0
        length = math.sqrt(sum(each * each for each in found))
        return [each / length for each in found]
